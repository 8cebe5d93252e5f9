"""The admin port of engine pods: drain, and what is still running there.

The annotation on the pod makes it drain; these calls only make the engine stop earlier, so a pod
that does not answer costs time and nothing else. The engine forgets a request to drain unless it is
repeated, so a lost call that takes it back does no harm either.

Each call shows a token of this operator for the pod's fleet, which is of no use for another fleet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import httpx

from argosy_law.record import parse_json
from argosy_operator.core.snapshot.names import ADMIN_PORT
from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.core.snapshot.pods import Load
from argosy_operator.core.steps.drain import DRAIN_LEASE_S

log = logging.getLogger("argosy.engines")

TIMEOUT_S = 1.0


async def _no_token(_fleet: FleetKey) -> str | None:
    return None


class HttpEngines:
    """`protocols.Engines` over HTTP. Time-outs are short, because the loop asks again."""

    def __init__(self, token: Callable[[FleetKey], Awaitable[str | None]] = _no_token) -> None:
        """`token` is the operator's for a fleet, None if it has none."""
        self._token = token
        # Pods are reached directly; a proxy from the environment is for other addresses.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def load(self, ip: str, fleet: FleetKey, uid: str) -> Load | None:
        """Ask for GET /drain. Return None if the pod does not answer, or not as an engine does."""
        answer = await self._ask("GET", ip, fleet, uid)
        if answer is None:
            return None
        try:
            body = parse_json(answer.content)
            expires_in_s = body.get("expires_in_s")
            return Load(
                bool(body["draining"]),
                int(body["running"]),
                int(body["leases"]),
                None if expires_in_s is None else float(expires_in_s),
                str(body.get("role", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    async def drain(self, ip: str, fleet: FleetKey, uid: str) -> bool:
        return await self._ask("POST", ip, fleet, uid, lease_s=DRAIN_LEASE_S) is not None

    async def take_work_again(self, ip: str, fleet: FleetKey, uid: str) -> bool:
        return await self._ask("DELETE", ip, fleet, uid) is not None

    async def _ask(
        self, method: str, ip: str, fleet: FleetKey, uid: str, **params: float
    ) -> httpx.Response | None:
        host = f"[{ip}]" if ":" in ip else ip
        token = await self._token(fleet)
        headers = {"x-argosy-pod-uid": uid}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            url = f"http://{host}:{ADMIN_PORT}/drain"
            async with asyncio.timeout(TIMEOUT_S):  # httpx's own begins anew with each byte
                answer = await self._http.request(method, url, params=params, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return None
        if answer.status_code == 401:
            log.warning("the engine at %s does not take this operator's token", ip)
        return answer if answer.is_success else None
