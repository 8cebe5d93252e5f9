"""The API as a value: objects with uids and resourceVersions, and calls that fail as a test asks.

It is the operator's port to the cluster (`protocols.Cluster`), in memory and not reachable as a
server. A write is refused as Kubernetes refuses it: 404 for what is not there, 409 for another uid
or an old resourceVersion. What the real API server does is tested in tests/reconcile.
"""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind

Object = dict[str, Any]
Objects = list[Object]
Key = tuple[str, str]
FLEET = "serving.argosy.dev/fleet"
REMEMBERED = 12
"""States to which a stale list may go back."""


class DiedError(BaseException):
    """The operator's process ended here. No `except Exception` of it runs."""


def written(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _uid(number: int) -> str:
    """As random as Kubernetes' uids, and the same in every run."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:12]


def owns_replicas(manager: str, time: float) -> list[Object]:
    return [
        {
            "manager": manager,
            "time": written(time),
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
    ]


class Api:
    """The namespace `ns`. `changed` is called with every object that was written or deleted."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[Object], None]) -> None:
        self.clock, self.changed = clock, changed
        self.objects: dict[Key, Object] = {}
        self._serial = count(1)
        self.states: deque[dict[Key, Object]] = deque([{}], maxlen=REMEMBERED)
        self.stale: Mapping[str, int] = {}
        """By how many writes the lists of a kind are behind."""
        self.faults: deque[ErrorKind | str | None] = deque()
        """What the operator's next writes end in: an error, `lost` (it is carried out, and its
        answer is lost), or None (it succeeds)."""
        self.dies_after: int | None = None
        """So many more calls, and the operator dies."""
        self.dead = False
        self.refused: list[str] = []
        """Writes that a precondition stopped."""
        self.orders: list[tuple[str, Object]] = []
        """Objects that the operator's writes found, as they were before the write."""
        self.relabelled: Objects = []
        """Pods that the operator gave other labels, as they were before."""
        self.calls = 0
        """Calls of the operator so far."""
        self.written = 0

    def twin(self, clock: Callable[[], float], changed: Callable[[Object], None]) -> "Api":
        """Another API in the same state. Both keep the same objects: each is replaced as a whole,
        and never changed in place."""
        serial = next(self._serial)
        self._serial = count(serial)
        other = copy.copy(self)
        other.clock, other.changed, other._serial = clock, changed, count(serial)
        other.objects, other.states = dict(self.objects), self.states.copy()
        other.faults, other.refused = self.faults.copy(), [*self.refused]
        other.orders, other.relabelled = [*self.orders], [*self.relabelled]
        return other

    # What the operator calls.

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self.alive()
        return self.objects.get((kind, name))

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        self.alive()
        behind = min(self.stale.get(kind, 0), len(self.states) - 1)
        state = self.states[-1 - behind]
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            obj
            for (of, _), obj in state.items()
            if of == kind and wanted.items() <= obj["metadata"].get("labels", {}).items()
        ]

    async def create(self, obj: Object) -> Object:
        kind, name = obj["kind"], obj["metadata"]["name"]
        if kind == "Event":
            self.alive()
            return obj
        lost = self._begin(f"create {kind} {name}")
        if (kind, name) in self.objects:
            raise ClusterError(ErrorKind.EXISTS, f"create {kind} {name}", "already exists")
        return self._end(self.put(_with_defaults(obj, self.clock())), lost)

    async def apply(
        self, obj: Object, uid: str | None, *, status: bool = False, manager: str = "argosy"
    ) -> Object:
        kind, name = obj["kind"], obj["metadata"]["name"]
        lost = self._begin(f"apply {kind} {name}")
        live = self.objects.get((kind, name))
        if live is None:
            if uid is not None or status:
                self._refuse(ErrorKind.CONFLICT, f"apply {kind} {name}", "uid mismatch")
            new = _with_defaults(obj, self.clock())
            if "replicas" in obj.get("spec", {}):
                new["metadata"]["managedFields"][0]["operation"] = "Apply"
            return self._end(self.put(new), lost)
        if uid is not None and live["metadata"]["uid"] != uid:
            self._refuse(ErrorKind.CONFLICT, f"apply {kind} {name}", "uid mismatch")
        if uid is None and live.get("spec") != obj.get("spec"):
            self._refuse(ErrorKind.CONFLICT, f"apply {kind} {name}", "conflict with another")
        self.orders.append((f"{kind}/status" if status else kind, live))
        if status:
            mark = {k: v for k, v in live.get("status", {}).items() if k == "refused"}
            return self._end(self.put({**live, "status": {**obj["status"], **mark}}), lost)
        meta = {**live["metadata"], **obj["metadata"]}
        version = obj["metadata"].get("resourceVersion")
        if version not in (None, live["metadata"]["resourceVersion"]):
            self._refuse(ErrorKind.CONFLICT, f"apply {kind} {name}", "the object has been modified")
        if manager != "argosy":  # it sends the replicas alone
            meta["managedFields"] = [*meta["managedFields"], *_applied(manager, self.clock())]
            return self._end(self.put({**live, "metadata": meta}), lost)
        merged = {**live, **obj, "metadata": meta}
        if "replicas" in live.get("spec", {}):
            number, meta["managedFields"] = _after_apply(live, obj, self.clock())
            merged["spec"] = {**obj["spec"], "replicas": number}
        return self._end(self.put(merged), lost)

    async def scale(
        self, kind: str, namespace: str, name: str, replicas: int, resource_version: str | None
    ) -> None:
        what = f"scale {kind} {name}"
        lost = self._begin(what)
        live = self._there(kind, name, what)
        if resource_version not in (None, live["metadata"]["resourceVersion"]):
            self._refuse(ErrorKind.CONFLICT, what, "the object has been modified")
        self.orders.append((kind, live))
        self._end(self.set_replicas(kind, name, replicas, "argosy"), lost)

    async def annotate(
        self, kind: str, namespace: str, name: str, uid: str, values: Mapping[str, str | None]
    ) -> None:
        what = f"annotate {kind} {name}"
        lost = self._begin(what)
        live = self._meant(kind, name, uid, what)
        both = {**live["metadata"].get("annotations", {}), **values}
        annotations = {key: value for key, value in both.items() if value is not None}
        meta = {**live["metadata"], "annotations": annotations}
        self._end(self.put({**live, "metadata": meta}), lost)

    async def relabel(
        self,
        kind: str,
        namespace: str,
        name: str,
        uid: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
    ) -> None:
        what = f"relabel {kind} {name}"
        lost = self._begin(what)
        live = self._meant(kind, name, uid, what)
        meta = live["metadata"]
        self.relabelled.append(live)
        both = {"labels": {**meta["labels"], **labels}}
        both["annotations"] = {**meta.get("annotations", {}), **annotations}
        self._end(self.put({**live, "metadata": {**meta, **both}}), lost)

    async def refuse(
        self, namespace: str, name: str, uid: str, version: str, mark: Object | None
    ) -> None:
        what = f"refuse ServingDeployment {name}"
        lost = self._begin(what)
        live = self._there("ServingDeployment", name, what)
        if uid != live["metadata"]["uid"]:
            self._refuse(ErrorKind.CONFLICT, what, "uid mismatch")
        self.orders.append(("ServingDeployment/status", live))
        if version != live["metadata"]["resourceVersion"]:
            self._refuse(ErrorKind.CONFLICT, what, "the object has been modified")
        rest = {key: value for key, value in live.get("status", {}).items() if key != "refused"}
        status = rest if mark is None else {**rest, "refused": mark}
        self._end(self.put({**live, "status": status}), lost)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        what = f"delete {kind} {name}"
        lost = self._begin(what)
        self._meant(kind, name, uid, what)
        self.remove((kind, name))
        self._end({}, lost)

    def alive(self) -> None:
        """One more call of the operator begins."""
        self.calls += 1
        if self.dies_after is not None:
            self.dies_after -= 1
            self.dead = self.dead or self.dies_after < 0
        if self.dead:
            raise DiedError

    def _begin(self, what: str) -> bool:
        """Whether the answer of this write is lost. Raises if it is refused."""
        self.alive()
        self.written += 1
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, ErrorKind):
            raise ClusterError(fault, what, "as the test asked")
        return fault == "lost"

    def _end(self, obj: Object, lost: bool) -> Object:
        if lost:
            raise ClusterError(ErrorKind.TRANSPORT, "write", "connection reset")
        return obj

    def _there(self, kind: str, name: str, what: str) -> Object:
        if (kind, name) not in self.objects:
            self._refuse(ErrorKind.NOT_FOUND, what, "not found")
        return self.objects[kind, name]

    def _meant(self, kind: str, name: str, uid: str, what: str) -> Object:
        """The object that the write is for; refused if another one has its name."""
        live = self._there(kind, name, what)
        if live["metadata"]["uid"] != uid:
            self._refuse(ErrorKind.CONFLICT, what, "uid mismatch")
        self.orders.append((kind, live))
        return live

    def _refuse(self, kind: ErrorKind, what: str, message: str) -> None:
        self.refused.append(f"{what}: {kind}")
        raise ClusterError(kind, what, message)

    # What everyone else does.

    def put(self, obj: Object) -> Object:
        """Store the object; a new one gets a uid. Without a change nothing is written."""
        key = (obj["kind"], obj["metadata"]["name"])
        live = self.objects.get(key)
        if live is None:
            born = {"uid": _uid(next(self._serial)), "creationTimestamp": written(self.clock())}
            obj = {**obj, "metadata": {"generation": 1, **obj["metadata"], **born}}
        elif obj == live:
            return live
        elif obj.get("spec") != live.get("spec"):
            generation = live["metadata"]["generation"] + 1
            obj = {**obj, "metadata": {**obj["metadata"], "generation": generation}}
        version = str(next(self._serial))
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}
        self.objects[key] = obj
        self._remember(obj)
        return obj

    def remove(self, key: Key) -> None:
        self._remember(self.objects.pop(key))

    def set_replicas(self, kind: str, name: str, replicas: int, manager: str) -> Object:
        live = self.objects[kind, name]
        meta = {**live["metadata"], "managedFields": owns_replicas(manager, self.clock())}
        return self.put({**live, "metadata": meta, "spec": {**live["spec"], "replicas": replicas}})

    def of(self, kind: str) -> Objects:
        return [obj for (of, _), obj in self.objects.items() if of == kind]

    def _remember(self, obj: Object) -> None:
        self.states.append(dict(self.objects))
        self.changed(obj)


def _applied(manager: str, time: float) -> list[Object]:
    return [entry | {"operation": "Apply"} for entry in owns_replicas(manager, time)]


def _after_apply(live: Object, obj: Object, time: float) -> tuple[int, list[Object]]:
    """The replicas after our apply, and who owns them. Of a field that no other manager owns, an
    apply without it leaves the default."""
    before = live["metadata"].get("managedFields") or []
    ours = [e for e in before if (e["manager"], e.get("operation")) == ("argosy", "Apply")]
    others = [entry for entry in before if entry not in ours]
    number: int = live["spec"]["replicas"]
    if "replicas" in obj["spec"]:
        asked: int = obj["spec"]["replicas"]
        ours = ours or _applied("argosy", time)
        return asked, ours + (others if asked == number else [])
    return (1 if ours and not others else number), others


def _with_defaults(obj: Object, now: float) -> Object:
    """Replicas default to 1, and belong to who created the object."""
    if obj["kind"] not in ("Deployment", "ServingRole"):
        return obj
    replicas = obj["spec"].get("replicas", 1 if obj["kind"] == "Deployment" else None)
    spec = {**obj["spec"]} | ({} if replicas is None else {"replicas": replicas})
    meta = {**obj["metadata"], "managedFields": owns_replicas("argosy", now)}
    return {**obj, "metadata": meta, "spec": spec}
