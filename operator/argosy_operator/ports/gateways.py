"""The admin port of gateway pods: which pods do not hand over KV caches to each other.

A gateway that does not answer, or an older one that does not know the path, names nobody. Names are
compared with the fleet's own pods later (`core/status/findings.py`, `core/recycling`).
"""

import asyncio
import json
import math
import re
from dataclasses import replace
from typing import Any

import httpx

from argosy_operator.core.fleet.names import GATEWAY_ADMIN_PORT
from argosy_operator.core.fleet.pods import FailingPair, Handovers

TIMEOUT_S = 1.0
MOST_BYTES = 256 << 10
"""More than a gateway of the largest fleet writes: 2,000 pods with names of 63 characters."""
MOST_PAIRS = 16
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class HttpGateways:
    """`protocols.Gateways` over HTTP."""

    def __init__(self) -> None:
        # Pods are reached directly; a proxy from the environment is for other addresses.
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def handovers(self, ip: str) -> Handovers:
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
                        return Handovers()
                ok = answer.is_success
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return Handovers()
        return handovers_of(data) if ok else Handovers()


def handovers_of(data: bytes) -> Handovers:
    """What an answer says; nothing of one that a gateway does not write."""
    try:
        answer = json.loads(data)
        failing = frozenset(_pair(row) for row in answer["failing"][:MOST_PAIRS])
        whole = answer.get("handed_over", {}).items()  # an older gateway does not say
        return Handovers(failing, {str(pod): _age(seconds) for pod, seconds in whole})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Handovers()


def _pair(row: dict[str, Any]) -> FailingPair:
    ends, failures = (str(row["prefill"]), str(row["decode"])), int(row["failures"])
    known = FailingPair(*ends, _word(row), failures)
    if "since_s" not in row:  # an older gateway
        return known
    return replace(known, since_s=_age(row["since_s"]), last_s=_age(row["last_s"]))


def _age(value: object) -> float:
    """Seconds ago. Raises ValueError for a number that is none."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no age")
    return float(value)


def _word(row: dict[str, Any]) -> str:
    reason = str(row["reason"])
    return reason if _WORD.fullmatch(reason) else "unknown"
