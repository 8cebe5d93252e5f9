"""The fleet's engine pods as this gateway knows them.

`watch` writes the Directory from the API server or from a file; `relay` and `metrics` read it. When
the source fails, the last known pods stay: a stale list serves better than none, and `health` shows
which of its pods are gone. If the API server denies access to this gateway alone, other gateways
have newer lists: `denied_for_s` then ends this one's readiness.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from argosy_gateway.pods.health import Health
from argosy_gateway.pods.pairs import Pairs
from argosy_gateway.wire.http1 import Head

__all__ = ["Directory", "Endpoint", "Role", "State", "endpoint_of_pod", "is_ready_gateway"]

log = logging.getLogger(__name__)

FLEET_LABEL = "serving.argosy.dev/fleet"
ROLE_LABEL = "serving.argosy.dev/role"
REVISION_LABEL = "serving.argosy.dev/revision"
TEMPLATE_LABEL = "pod-template-hash"
"""Kubernetes' own label; the name of a pod's ReplicaSet ends with its value."""
DRAIN_ANNOTATION = "serving.argosy.dev/drain"
TLS_ANNOTATION = "serving.argosy.dev/tls"
"""Of the pod template: "true" if its engines speak TLS."""
ENGINE_ANNOTATION = "serving.argosy.dev/engine"
"""Of the pod template: the type of engine, if it is not ours."""
GATEWAY_ROLE = "gateway"
_ADAPTERS_FLAG = "--lora-modules"
"""Of vLLM; words that follow are `name=path`."""
_NAME_FLAGS = ("--served-name", "--served-model-name")
"""Of our engine, and of vLLM and SGLang. The first name that follows is as good as any other."""
API_PORT = 8000
KV_PORT = 8002


class Role(StrEnum):
    """Roles of engine pods, as their label says. The gateway's own pods have another one."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


class State(StrEnum):
    """Only SERVING pods are chosen."""

    SERVING = "serving"
    """Ready, with an address, not being deleted, without the drain annotation."""
    DRAINING = "draining"
    """Being deleted, or with the drain annotation."""
    UNREADY = "unready"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine pod."""

    uid: str
    name: str
    """The pod's name; the engine sends it in `x-argosy-pod`."""
    ip: str
    role: Role
    revision: str
    """Digest of the pod template; a prefill and a decode pod of one revision can serve together."""
    state: State
    port: int = API_PORT
    """For requests."""
    kv_port: int = KV_PORT
    """For transfers of KV cache between engines."""
    tls: bool = False
    """Both ports speak TLS only, and ask for a certificate."""
    model: str | None = None
    """The name by which its engine knows the model; None: any that a client asks for."""
    adapters: frozenset[str] = frozenset()
    """Names of the LoRA adapters that its engine has."""
    engine: str = "argosy"
    """The type of its engine. One that is not ours names no pod, and its API key is the pod's
    uid."""

    @property
    def can_compute(self) -> bool:
        """Whether it computes a prompt itself: a decode pod of SGLang only gets its KV."""
        return self.role is not Role.DECODE or self.engine != "sglang"

    @property
    def moves_kv(self) -> bool:
        """Whether streams leave it, and go on at it, with their KV."""
        return self.role is Role.DECODE and self.engine == "argosy"

    @property
    def keyed(self) -> bool:
        """Whether its API key is the pod's uid."""
        return self.engine != "argosy"

    def wrote(self, head: Head) -> bool:
        """Whether an answer came from this pod.

        Our engines name their pod: a decode engine in the first header, a colocated one in the
        second. Another engine that has got this pod's address refuses the key.
        """
        name = head.get(b"x-argosy-decode-pod") or head.get(b"x-argosy-pod")
        if self.keyed:
            return name is None and head.status != 401
        return name == self.name.encode() and head.status != 421


def endpoint_of_pod(pod: Mapping[str, Any]) -> Endpoint | None:
    """An Endpoint from a Pod of the API server; None if it is no engine pod of the fleet."""
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    role = labels.get(ROLE_LABEL)
    if (
        role not in set(Role)
        or not _made_by_us(meta, labels, FLEET_LABEL, ROLE_LABEL, REVISION_LABEL, TEMPLATE_LABEL)
        or status.get("phase") in ("Succeeded", "Failed")
    ):
        return None
    ip = status.get("podIP") or ""
    ready = _is_ready(status)
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
        tls=annotations.get(TLS_ANNOTATION) == "true",
        model=_model_of(pod),
        adapters=_adapters_of(pod),
        engine=annotations.get(ENGINE_ANNOTATION, "argosy"),
    )


def _model_of(pod: Mapping[str, Any]) -> str | None:
    """From the engine's command line, which is what it obeys; pods of any version have one."""
    for words in _command_lines(pod):
        for at, word in enumerate(words):
            flag, given, value = word.partition("=")
            if flag in _NAME_FLAGS:
                return value if given else next(iter(words[at + 1 :]), None)
    return None


def _adapters_of(pod: Mapping[str, Any]) -> frozenset[str]:
    """Of the same command line: during a rollout some pods have an adapter and others do not."""
    for words in _command_lines(pod):
        if _ADAPTERS_FLAG in words:
            values = words[words.index(_ADAPTERS_FLAG) + 1 :]
            modules = takewhile(lambda word: not word.startswith("-"), values)
            return frozenset(module.partition("=")[0] for module in modules)
    return frozenset()


def _command_lines(pod: Mapping[str, Any]) -> Iterator[list[str]]:
    """The words of each container."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        yield [*(container.get("command") or ()), *(container.get("args") or ())]


def is_ready_gateway(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod of the API server is a gateway of the fleet that takes requests."""
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels = meta.get("labels") or {}
    return (
        labels.get(ROLE_LABEL) == GATEWAY_ROLE
        and _made_by_us(meta, labels, FLEET_LABEL, ROLE_LABEL, TEMPLATE_LABEL)
        and _is_ready(status)
        and not meta.get("deletionTimestamp")
    )


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _made_by_us(meta: Mapping[str, Any], labels: Mapping[str, str], *keys: str) -> bool:
    """Whether its controller is a ReplicaSet with the name that the fleet's Deployment gives it.

    The name is made of the labels `keys`. Every user who may create pods can set labels, and no
    prompt may go to such a pod. Kubernetes
    deletes a pod whose owner does not exist, and a ReplicaSet that exists controls its pods.
    """
    name = "-".join(labels.get(key, "") for key in keys)
    return any(
        owner.get("controller") and (owner.get("kind"), owner.get("name")) == ("ReplicaSet", name)
        for owner in meta.get("ownerReferences") or ()
    )


class Directory:
    """Known endpoints and their health, and a way to await a change."""

    def __init__(self, clock: Callable[[], float], *, speaks_tls: bool = False) -> None:
        """`speaks_tls`: this gateway has a certificate. Without one, it never chooses pods that ask
        for TLS: nothing is sent to them in the clear."""
        self.clock = clock
        """Seconds, as `Health` reads it."""
        self._speaks_tls = speaks_tls
        self._warned_of_tls = False
        self._known: dict[str, Endpoint] = {}
        self._roles: Counter[Role] = Counter()
        self._moved: set[str] = set()
        """Uids of pods that changed in state or health since `take_changes`."""
        self._changed = asyncio.Event()
        self.health = Health(clock, lambda uid: uid in self._known, self._moved.add)
        self.pairs = Pairs(clock)
        self.gateways: dict[str, str] = {}
        """Uid → name of the fleet's gateways that take requests, this one included."""
        self.listed = False
        """Whether a full list was read, even an empty one."""
        self._denied: tuple[float, float] | None = None
        """Clock times of the first and the last denial since access was last granted."""

    def replace(
        self, endpoints: Iterable[Endpoint], gateways: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Take a full list: endpoints and gateways that are not in it are gone."""
        self.gateways = dict(gateways)
        before, self._known = self._known, {e.uid: self._without_tls(e) for e in endpoints}
        self._roles = Counter(e.role for e in self._known.values())
        for uid in before.keys() | self._known.keys():
            if before.get(uid) != self._known.get(uid):
                self._forget(uid)
        self.listed = True
        self.notify()

    def put(self, endpoint: Endpoint) -> None:
        """Add or change one. A changed pod starts without a health record."""
        endpoint = self._without_tls(endpoint)
        before = self._known.get(endpoint.uid)
        self._known[endpoint.uid] = endpoint
        if before != endpoint:
            self._roles[endpoint.role] += 1
            if before is not None:
                self._roles[before.role] -= 1
            self._forget(endpoint.uid)
            self.notify()

    def put_gateway(self, uid: str, name: str) -> None:
        """A gateway of the fleet takes requests; `remove` takes it out."""
        self.gateways[uid] = name

    def remove(self, uid: str) -> None:
        """Remove a pod that is gone."""
        self.gateways.pop(uid, None)
        if (before := self._known.pop(uid, None)) is not None:
            self._roles[before.role] -= 1
            self._forget(uid)
            self.notify()

    def _without_tls(self, endpoint: Endpoint) -> Endpoint:
        if endpoint.tls and not self._speaks_tls and endpoint.state is State.SERVING:
            if not self._warned_of_tls:
                self._warned_of_tls = True  # said once: the reason is the same for all pods
                log.warning("%s asks for TLS: this gateway needs --tls-dir", endpoint.name)
            return replace(endpoint, state=State.UNREADY)
        return endpoint

    def _forget(self, uid: str) -> None:
        """A pod changed or is gone: what it did before says nothing about it now."""
        self._moved.add(uid)
        self.health.forget(uid)
        self.pairs.forget(uid)

    def deny_access(self) -> None:
        """The API server works, but does not let this gateway read (401, 403)."""
        now = self.clock()
        self._denied = (self._denied[0] if self._denied else now, now)

    def grant_access(self) -> None:
        """The API server lets this gateway read."""
        self._denied = None

    def denied_for_s(self) -> float:
        """Seconds from the first denial to the last one; 0 if the gateway may read."""
        return self._denied[1] - self._denied[0] if self._denied else 0.0

    def all(self) -> Collection[Endpoint]:
        """Every known endpoint, in any state."""
        return self._known.values()

    def get(self, uid: str) -> Endpoint | None:
        """The endpoint with this uid, in any state."""
        return self._known.get(uid)

    def serving(self) -> list[Endpoint]:
        """Endpoints in the state SERVING, in any health."""
        return [e for e in self._known.values() if e.state is State.SERVING]

    def has(self, role: Role) -> bool:
        """Whether a pod of this role is known, in any state."""
        return self._roles[role] > 0

    def take_changes(self) -> set[str]:
        """Uids of pods that changed in state or health since the last call. For one reader, the
        `routing.roster.Roster`."""
        moved = set(self._moved)
        self._moved.clear()
        return moved

    def drains(self, uid: str) -> bool:
        """Whether this pod is known, and leaves."""
        endpoint = self._known.get(uid)
        return endpoint is not None and endpoint.state is State.DRAINING

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return at a change, when a pod's absence ends, or after `timeout_s`."""
        return_s = self.health.next_return_s()
        try:
            async with asyncio.timeout(timeout_s if return_s is None else min(timeout_s, return_s)):
                await self._changed.wait()
        except TimeoutError:
            pass

    def notify(self) -> None:
        """Wake the requests that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
