"""The admin port of gateway pods: which pods do not hand over KV caches, and who uses the fleet.
Pods that fetch a model say on theirs how far they are.

Of a gateway that does not answer, pairs, requests and settings are unknown. Names are compared
with the fleet's own pods later (`core/status/facts.py`, `core/steps/recycling`).
"""

import asyncio
import math
import re
import time
from collections.abc import Callable
from typing import Any

import httpx

from argosy_law.record import parse_json
from argosy_law.signals.gateways import Load, Reading
from argosy_operator.core.snapshot.names import FETCH_PORT, GATEWAY_ADMIN_PORT
from argosy_operator.core.snapshot.pods import (
    FailingPair,
    FetchProgress,
    GatewayLoad,
    Handovers,
    SettingsRead,
)

TIMEOUT_S = 1.0
MOST_BYTES = 256 << 10
"""More than a gateway of the largest fleet writes: 2,000 pods with names of 63 characters."""
MOST_PAIRS = 16
MOST_IN_FLIGHT = 10**9
"""More than routing.maxQueue allows."""
MOST_MODEL_BYTES = 1 << 60
MOST_OF_REFUSAL = 300
"""Characters of the reason why a gateway refuses its settings."""
_DIGEST = re.compile(r"([0-9a-f]{16})?")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class HttpGateways:
    """`protocols.Gateways` and `protocols.Fetchers` over HTTP."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self._clock = clock
        # Pods are reached directly; a proxy from the environment is for other addresses.
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def handovers(self, ip: str) -> Handovers:
        """Ask for GET /pairs."""
        data = await self._get(ip, GATEWAY_ADMIN_PORT, "/pairs")
        return Handovers() if data is None else parse_handovers(data)

    async def load(self, ip: str, name: str) -> GatewayLoad | None:
        """Ask for GET /load."""
        data = await self._get(ip, GATEWAY_ADMIN_PORT, "/load")
        return None if data is None else parse_load(data, name, self._clock())

    async def progress(self, ip: str) -> FetchProgress | None:
        """Ask for GET /progress."""
        data = await self._get(ip, FETCH_PORT, "/progress")
        return None if data is None else parse_progress(data)

    async def _get(self, ip: str, port: int, path: str) -> bytes | None:
        """Return the answer's body; None if there is none in time, or not one of success."""
        host = f"[{ip}]" if ":" in ip else ip
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),  # httpx's own begins anew with each byte
                self._http.stream("GET", f"http://{host}:{port}{path}") as answer,
            ):
                data = b""
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > MOST_BYTES:
                        return None
                return data if answer.is_success else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return None


def parse_progress(data: bytes) -> FetchProgress | None:
    """Return what an answer says; None for one that no Job of ours writes."""
    try:
        answer = parse_json(data)
        here, of = answer["bytes"], answer["of"]
        if type(here) is not int or type(of) is not int or not 0 <= here <= of < MOST_MODEL_BYTES:
            return None
        return FetchProgress(here, of) if of else None
    except (ValueError, KeyError, TypeError):
        return None


def parse_load(data: bytes, name: str, now: float) -> GatewayLoad | None:
    """Return what an answer of the gateway `name` says at `now`, in seconds since the epoch.

    None if another pod has its address by now, or if no gateway writes such an answer.
    """
    try:
        answer = parse_json(data)
        if answer["pod"] != name:
            return None
        in_flight = _whole(answer["in_flight"])
        on_pods = {str(uid): row for uid, row in answer["on_pods"].items()}
        return GatewayLoad(
            in_flight,
            _number(answer["idle_s"]),
            _reading(answer, now),
            on_pods={uid: _whole(row["requests"]) for uid, row in on_pods.items()},
            left=frozenset(uid for uid, row in on_pods.items() if row["left"] is True),
            settings=_settings(answer),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _settings(answer: dict[str, Any]) -> SettingsRead | None:
    """Return what it says of its settings. Raises ValueError or KeyError if that is not so much."""
    if "settings" not in answer:  # a gateway that was started with arguments
        return None
    digest, refused = answer["settings"]["digest"], answer["settings"]["refused"]
    if not isinstance(refused, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{answer['settings']!r} are no settings")
    # It becomes a part of a condition's message.
    shown = "".join(letter for letter in refused if letter.isprintable())
    return SettingsRead(digest, shown[:MOST_OF_REFUSAL])


def _reading(answer: dict[str, Any], now: float) -> Reading:
    """Return the gateway's counters. Raises ValueError or KeyError if they are none."""
    accepted, shed = (_number(answer["received"][outcome]) for outcome in ("accepted", "shed"))
    waiting = _number(answer["waiting_prompt_tokens"])
    return Reading(answer["pod"], now, accepted, shed, waiting, _load(answer))


def _load(answer: dict[str, Any]) -> Load:
    """Return the engines' work, as the gateway knows it. Raises as `_reading` does."""
    answered = answer["answered"]
    return Load(
        outstanding_prompt_tokens=_number(answer["outstanding_prompt_tokens"]),
        decoding=_number(answer["decoding"]),
        answered=_number(answered["requests"]),
        prompt_tokens=_number(answered["prompt_tokens"]),
        prompt_tokens_squared=_number(answered["prompt_tokens_squared"]),
        output_tokens=_number(answered["output_tokens"]),
    )


def parse_handovers(data: bytes) -> Handovers:
    """Return what an answer says; nothing of one that a gateway does not write."""
    try:
        answer = parse_json(data)
        failing = frozenset(_pair(row) for row in answer["failing"][:MOST_PAIRS])
        whole = answer["handed_over"].items()
        return Handovers(failing, {str(pod): _number(seconds) for pod, seconds in whole})
    except (ValueError, KeyError, TypeError, AttributeError):
        return Handovers()


def _pair(row: dict[str, Any]) -> FailingPair:
    return FailingPair(
        str(row["prefill"]),
        str(row["decode"]),
        _word(row),
        int(row["failures"]),
        since_s=_number(row["since_s"]),
        last_s=_number(row["last_s"]),
    )


def _number(value: object) -> float:
    """Return a time or a count. Raises ValueError for a number that is none."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is neither a time nor a count")
    return float(value)


def _whole(value: object) -> int:
    """Return a count of requests. Raises ValueError for a number that is none."""
    if type(value) is not int or not 0 <= value <= MOST_IN_FLIGHT:
        raise ValueError(f"{value!r} is no count of requests")
    return value


def _word(row: dict[str, Any]) -> str:
    reason = str(row["reason"])
    return reason if _WORD.fullmatch(reason) else "unknown"
