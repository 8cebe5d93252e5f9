"""The admin port of gateway pods: which pods do not hand over KV caches to each other.

Only a finding for status: a gateway that does not answer, or an older one that does not know the
path, names nobody. Names are compared with the fleet's own pods later (`core/status/findings.py`).
"""

import asyncio
import json
import re

import httpx

from argosy_operator.core.fleet.names import GATEWAY_ADMIN_PORT
from argosy_operator.core.fleet.pods import FailingPair

TIMEOUT_S = 1.0
MOST_BYTES = 64 << 10
MOST_PAIRS = 16
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class HttpGateways:
    """`protocols.Gateways` over HTTP."""

    def __init__(self) -> None:
        # Pods are reached directly; a proxy from the environment is for other addresses.
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def failing_pairs(self, ip: str) -> frozenset[FailingPair]:
        """GET /pairs."""
        host = f"[{ip}]" if ":" in ip else ip
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),  # httpx's own begins anew with each byte
                self._http.stream("GET", f"http://{host}:{GATEWAY_ADMIN_PORT}/pairs") as answer,
            ):
                data = b""
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > MOST_BYTES:
                        return frozenset()
                ok = answer.is_success
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return frozenset()
        return pairs_of(data) if ok else frozenset()


def pairs_of(data: bytes) -> frozenset[FailingPair]:
    """The pairs of an answer; none of one that a gateway does not write."""
    try:
        rows = json.loads(data)["failing"][:MOST_PAIRS]
        return frozenset(
            FailingPair(str(row["prefill"]), str(row["decode"]), _word(row), int(row["failures"]))
            for row in rows
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return frozenset()


def _word(row: dict[str, object]) -> str:
    reason = str(row["reason"])
    return reason if _WORD.fullmatch(reason) else "unknown"
