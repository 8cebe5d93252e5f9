"""The fleet's engine pods as this gateway knows them.

`watch` (or `endpoints_file`) writes, `relay` and `metrics` read. Knowledge stays when its source is
away: a stale list serves better than none, and `suspend` skips what turned out to be dead. Where
the source refuses this gateway alone, others know better: `refused_for_s` ends its readiness.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Directory", "Endpoint", "Role", "State", "endpoint_of_pod"]

FLEET_LABEL = "serving.argosy.dev/fleet"
ROLE_LABEL = "serving.argosy.dev/role"
REVISION_LABEL = "serving.argosy.dev/revision"
DRAIN_ANNOTATION = "serving.argosy.dev/drain"
API_PORT = 8000
KV_PORT = 8002

_FIRST_SUSPENSION_S = 0.25
_LONGEST_SUSPENSION_S = 5.0


class Role(StrEnum):
    """Roles that serve requests (the gateway's own pods carry another one)."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


class State(StrEnum):
    """`serving` alone is chosen."""

    SERVING = "serving"
    DRAINING = "draining"
    UNREADY = "unready"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine pod."""

    uid: str
    name: str
    ip: str
    role: Role
    revision: str
    state: State
    port: int = API_PORT
    kv_port: int = KV_PORT


def endpoint_of_pod(pod: Mapping[str, Any]) -> Endpoint | None:
    """An Endpoint from a Pod of the API server; None for pods that are no engines.

    Serving = Ready, with an address, not being deleted, without the drain annotation.
    """
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    role = labels.get(ROLE_LABEL)
    if role not in set(Role) or status.get("phase") in ("Succeeded", "Failed"):
        return None
    ip = status.get("podIP") or ""
    conditions = status.get("conditions") or []
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    if DRAIN_ANNOTATION in annotations or meta.get("deletionTimestamp"):
        state = State.DRAINING
    else:
        state = State.SERVING if ready and ip else State.UNREADY
    return Endpoint(
        uid=meta.get("uid") or meta.get("name", ""),
        name=meta.get("name", ""),
        ip=ip,
        role=Role(role),
        revision=labels.get(REVISION_LABEL, ""),
        state=state,
    )


class Directory:
    """Known endpoints, those to be left alone for a moment, and a way to await a change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, Endpoint] = {}
        self._suspended: dict[str, tuple[float, float]] = {}  # uid → (until, length), seconds
        self._changed = asyncio.Event()
        self.listed = False
        """The first full list was seen, even an empty one."""
        self._refused: tuple[float, float] | None = None  # the first and the last time

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """A full list: what it does not name is gone."""
        self._known = {e.uid: e for e in endpoints}
        self._suspended = {u: s for u, s in self._suspended.items() if u in self._known}
        self.listed = True
        self._announce()

    def put(self, endpoint: Endpoint) -> None:
        """Add or change one. A change of state ends its suspension."""
        before = self._known.get(endpoint.uid)
        self._known[endpoint.uid] = endpoint
        if before != endpoint:
            self._suspended.pop(endpoint.uid, None)
            self._announce()

    def remove(self, uid: str) -> None:
        """Forget one."""
        self._suspended.pop(uid, None)
        if self._known.pop(uid, None) is not None:
            self._announce()

    def refuse(self) -> None:
        """The source is well and does not let this gateway read."""
        now = self._clock()
        self._refused = (self._refused[0] if self._refused else now, now)

    def hear(self) -> None:
        """The source lets this gateway read."""
        self._refused = None

    def refused_for_s(self) -> float:
        """Seconds from the first refusal to the last one; 0 when it may read."""
        return self._refused[1] - self._refused[0] if self._refused else 0.0

    def all(self) -> Collection[Endpoint]:
        """Every known endpoint, whatever its state."""
        return self._known.values()

    def serving(self) -> list[Endpoint]:
        """Endpoints that may be chosen now."""
        now = self._clock()
        return [
            e
            for e in self._known.values()
            if e.state is State.SERVING and self._suspended.get(e.uid, (0.0, 0.0))[0] <= now
        ]

    def suspend(self, uid: str) -> None:
        """Skip an endpoint that just failed: 0.25 s, doubled by every further failure up to 5 s."""
        if uid in self._known:
            last_s = self._suspended.get(uid, (0.0, 0.0))[1]
            length_s = min(last_s * 2 or _FIRST_SUSPENSION_S, _LONGEST_SUSPENSION_S)
            self._suspended[uid] = (self._clock() + length_s, length_s)

    def absolve(self, uid: str) -> None:
        """It answered: the next failure starts with the short suspension again."""
        self._suspended.pop(uid, None)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return at a change, when a suspension ends, or after `timeout_s`."""
        now = self._clock()
        ends = [until - now for until, _ in self._suspended.values() if until > now]
        try:
            async with asyncio.timeout(min([timeout_s, *ends])):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
