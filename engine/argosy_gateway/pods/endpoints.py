"""The fleet's engine pods as this gateway knows them.

`watch` (or `endpoints_file`) writes, `relay` and `metrics` read. Knowledge stays when its source is
away: a stale list serves better than none, and `health` knows which of its pods turned out dead.
Where the source refuses this gateway alone, others know better: `denied_for_s` ends its readiness.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from argosy_gateway.pods.health import Health

__all__ = ["Directory", "Endpoint", "Role", "State", "endpoint_of_pod"]

FLEET_LABEL = "serving.argosy.dev/fleet"
ROLE_LABEL = "serving.argosy.dev/role"
REVISION_LABEL = "serving.argosy.dev/revision"
TEMPLATE_LABEL = "pod-template-hash"  # Kubernetes' own; a ReplicaSet's name ends with it
DRAIN_ANNOTATION = "serving.argosy.dev/drain"
API_PORT = 8000
KV_PORT = 8002


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
    """An Endpoint from a Pod of the API server; None for pods that are no engines of ours.

    Serving = Ready, with an address, not being deleted, without the drain annotation.
    """
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    role = labels.get(ROLE_LABEL)
    if (
        role not in set(Role)
        or not _made_by_us(meta, labels)
        or status.get("phase") in ("Succeeded", "Failed")
    ):
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


def _made_by_us(meta: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Its controller is the ReplicaSet that a Deployment of the fleet has for such a pod.

    Every user who may create pods can write labels, and prompts must not go to such pods.
    Kubernetes deletes a pod whose owner does not exist; a ReplicaSet that exists controls it.
    """
    keys = (FLEET_LABEL, ROLE_LABEL, REVISION_LABEL, TEMPLATE_LABEL)
    name = "-".join(labels.get(key, "") for key in keys)
    return any(
        owner.get("controller") and (owner.get("kind"), owner.get("name")) == ("ReplicaSet", name)
        for owner in meta.get("ownerReferences") or ()
    )


class Directory:
    """Known endpoints, the experience with them, and a way to await a change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, Endpoint] = {}
        self._changed = asyncio.Event()
        self.health = Health(clock, lambda uid: uid in self._known)
        self.listed = False
        """The first full list was seen, even an empty one."""
        self._denied: tuple[float, float] | None = None  # the first and the last time

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """A full list: what it does not name is gone."""
        before, self._known = self._known, {e.uid: e for e in endpoints}
        self.health.keep({uid for uid, e in self._known.items() if before.get(uid) == e})
        self.listed = True
        self.notify()

    def put(self, endpoint: Endpoint) -> None:
        """Add or change one. A changed pod starts without a record."""
        before = self._known.get(endpoint.uid)
        self._known[endpoint.uid] = endpoint
        if before != endpoint:
            self.health.forget(endpoint.uid)
            self.notify()

    def remove(self, uid: str) -> None:
        """Forget one."""
        self.health.forget(uid)
        if self._known.pop(uid, None) is not None:
            self.notify()

    def access_denied(self) -> None:
        """The source is well and does not let this gateway read."""
        now = self._clock()
        self._denied = (self._denied[0] if self._denied else now, now)

    def access_granted(self) -> None:
        """The source lets this gateway read."""
        self._denied = None

    def denied_for_s(self) -> float:
        """Seconds from the first refusal to the last one; 0 when it may read."""
        return self._denied[1] - self._denied[0] if self._denied else 0.0

    def all(self) -> Collection[Endpoint]:
        """Every known endpoint, whatever its state."""
        return self._known.values()

    def serving(self) -> list[Endpoint]:
        """Endpoints in the state `serving`, whatever the experience with them."""
        return [e for e in self._known.values() if e.state is State.SERVING]

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return at a change, when a pod's absence ends, or after `timeout_s`."""
        return_s = self.health.next_return_s()
        try:
            async with asyncio.timeout(timeout_s if return_s is None else min(timeout_s, return_s)):
                await self._changed.wait()
        except TimeoutError:
            pass

    def notify(self) -> None:
        """Wake those who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
