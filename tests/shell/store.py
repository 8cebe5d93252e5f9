"""A cluster port that keeps objects in memory and fails for chosen ones, as a webhook makes it."""

from collections import Counter
from typing import Any

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind

Object = dict[str, Any]
CAUSE = 'Internal error occurred: failed calling webhook "budgets.example.com"'


class Store:
    """Holds one fleet, `chat` in `ns`. `failing` are kinds, or kinds with `/status`, whose writes
    end in `error_kind`; from the first write that begins with `away_at` on nothing answers. `tried`
    counts writes by verb and object."""

    def __init__(self, **spec: Any) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.failing: set[str] = set()
        self.error_kind, self.away_at = ErrorKind.TRANSPORT, ""
        self.away = False
        self.tried: Counter[str] = Counter()
        self.events: list[Object] = []
        self.serial = 0
        self._keep(
            {
                "kind": "ServingDeployment",
                "metadata": {"name": "chat", "namespace": "ns", "generation": 1},
                "spec": {"model": {"uri": "sim://opt-13b-a100"}, **spec},
            }
        )

    @property
    def fleet(self) -> Object:
        return self.objects["ServingDeployment", "chat"]

    def edit(self, **spec: Any) -> None:
        """The user edits the spec."""
        self.fleet["spec"] |= spec
        self.fleet["metadata"]["generation"] += 1

    def condition(self, type_: str) -> Object:
        return next(c for c in self.fleet["status"]["conditions"] if c["type"] == type_)

    def replicas(self, role: str) -> int:
        (found,) = (
            obj
            for (kind, _), obj in self.objects.items()
            if kind == "Deployment" and obj["metadata"]["labels"]["serving.argosy.dev/role"] == role
        )
        return int(found["spec"]["replicas"])

    def told(self, reason: str) -> list[str]:
        """Notes of the Events with this reason."""
        return [event["note"] for event in self.events if event["reason"] == reason]

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self._answers(f"get {kind} {name}")
        return self.objects.get((kind, name))

    async def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        self._answers(f"list {kind}")
        return [obj for (of, _), obj in self.objects.items() if of == kind]

    async def create(self, obj: Object) -> Object:
        self._may("create", obj["kind"], obj["metadata"]["name"])
        if obj["kind"] == "Event":
            self.events.append(obj)
            return obj
        return self._keep(obj)

    async def apply(self, obj: Object, uid: str | None, *, status: bool = False) -> Object:
        kind, name = obj["kind"], obj["metadata"]["name"]
        self._may("apply", f"{kind}/status" if status else kind, name)
        live = self.objects.get((kind, name), {})
        if status:
            live["status"] = obj["status"]
            return live
        return self._keep({**obj, "spec": live.get("spec", {}) | obj.get("spec", {})})

    async def scale(
        self, kind: str, namespace: str, name: str, replicas: int, resource_version: str | None
    ) -> None:
        self._may("scale", kind, name)
        self.objects[kind, name]["spec"]["replicas"] = replicas

    def _keep(self, obj: Object) -> Object:
        self.serial += 1
        key = (obj["kind"], obj["metadata"]["name"])
        old = self.objects.get(key, {"metadata": {"uid": f"uid-{self.serial}"}})
        meta = {**old["metadata"], **obj["metadata"], "resourceVersion": str(self.serial)}
        self.objects[key] = {**obj, "metadata": meta}
        return self.objects[key]

    def _answers(self, what: str) -> None:
        if self.away:
            raise ClusterError(ErrorKind.TRANSPORT, what, "connection refused")

    def _may(self, verb: str, kind: str, name: str) -> None:
        self.tried[f"{verb} {kind}/{name}"] += 1
        self.away |= bool(self.away_at) and f"{verb} {kind}".startswith(self.away_at)
        self._answers(f"{verb} {kind} {name}")
        if kind in self.failing:
            raise ClusterError(self.error_kind, f"{verb} {kind} {name}", CAUSE)
