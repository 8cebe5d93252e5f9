"""A cluster for verbs: objects and pods' metrics in memory, and a clock that jumps.

What the real API server does with these calls is tested in tests/e2e/test_kubectl.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.aio.client.exceptions import ApiException

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.cli.kubectl.session import Cluster
from argosy_operator.core.snapshot import names

Object = dict[str, Any]
NOW = 1_800_000_000.0
LINKS = {"Deployment": "ServingDeployment", "ReplicaSet": "Deployment", "Pod": "ReplicaSet"}


class World:
    """Namespaces with fleets. Each pod has a ReplicaSet and a Deployment of its own."""

    def __init__(self) -> None:
        self.now = NOW
        self.objects: list[Object] = []
        self.pages: dict[str, Callable[[], str | Exception]] = {}
        """The metrics page of each pod that answers, by name and port."""
        self.refuses: int | None = None
        """The HTTP status that ends every write to a fleet."""
        self.on_sleep: Callable[[float], None] = lambda _: None
        self.down: ClusterError | None = None
        """What every call that reads ends in."""

    # What tests put in.

    def fleet(self, name: str = "chat", namespace: str = "a", **parts: Any) -> Object:
        made = self._put("ServingDeployment", name, namespace, uid=name, **parts)
        made["metadata"] |= {"generation": 1, "resourceVersion": "7"}
        return made

    def pod(
        self,
        name: str,
        role: str = "decode",
        fleet: str = "chat",
        namespace: str = "a",
        **meta: Any,
    ) -> Object:
        labels = {names.FLEET: fleet, names.ROLE: role}
        owner = fleet
        for kind in ("Deployment", "ReplicaSet"):
            self._put(kind, name, namespace, uid=f"{kind}-{name}", labels=labels, owner=owner)
            owner = f"{kind}-{name}"
        container = "gateway" if role == "gateway" else "engine"
        return self._put(
            "Pod", name, namespace, uid=f"Pod-{name}", owner=owner, **{"labels": labels, **meta},
            spec={"containers": [{"name": container}]},
            status={"conditions": [{"type": "Ready", "status": "True"}]},
        )  # fmt: skip

    def _put(self, kind: str, name: str, namespace: str, owner: str = "", **parts: Any) -> Object:
        meta = {"name": name, "namespace": namespace}
        meta |= {key: parts.pop(key) for key in ("uid", "labels", "annotations") if key in parts}
        if owner:
            reference = {"uid": owner, "kind": LINKS[kind], "controller": True}
            meta["ownerReferences"] = [reference]
        self.objects.append({"kind": kind, "metadata": meta, **parts})
        return self.objects[-1]

    def gone(self, name: str) -> None:
        self.objects = [o for o in self.objects if (o["kind"], _name(o)) != ("Pod", name)]

    def past(self, revision: str, number: int, fleet: str = "chat") -> None:
        """A revision of the fleet's history."""
        labels = {names.FLEET: fleet, names.REVISION: revision}
        made = self._put("ControllerRevision", f"{fleet}-{revision}", "a", labels=labels)
        made["metadata"]["ownerReferences"] = [{"uid": fleet}]
        made |= {"revision": number, "data": {"spec": {}}}

    # What verbs call.

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        found = await self.list(kind, namespace)
        return next((o for o in found if _name(o) == name), None)

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        if self.down is not None:
            raise self.down
        wanted = [part.partition("=") for part in (selector or "").split(",") if part]

        def fits(obj: Object) -> bool:
            has = obj["metadata"].get("labels", {})
            return all(key in has and value in ("", has[key]) for key, _, value in wanted)

        return [
            obj
            for obj in self.objects
            if obj["kind"] == kind and namespace in (None, obj["metadata"]["namespace"])
            if fits(obj)
        ]

    async def connect_get_namespaced_pod_proxy_with_path(
        self, pod: str, namespace: str, path: str, _request_timeout: float
    ) -> str:
        assert path == "metrics"
        if await self.get("Pod", namespace, pod.partition(":")[0]) is None:
            raise ApiException(status=404)
        page = self.pages.get(pod, lambda: ApiException(status=503))()
        if isinstance(page, Exception):
            raise page
        return page

    async def patch_namespaced_pod(self, name: str, namespace: str, body: Object, **_: Any) -> None:
        pod = await self.get("Pod", namespace, name)
        assert pod is not None
        assert body["metadata"]["uid"] == pod["metadata"]["uid"]
        marks = pod["metadata"].get("annotations", {}) | body["metadata"]["annotations"]
        pod["metadata"]["annotations"] = {key: v for key, v in marks.items() if v is not None}

    async def patch_namespaced_custom_object(
        self,
        group: str,
        version: str,
        namespace: str,
        plural: str,
        name: str,
        body: Object,
        **_: Any,
    ) -> None:
        fleet = await self.get("ServingDeployment", namespace, name)
        assert fleet is not None
        if self.refuses is not None:
            raise ApiException(status=self.refuses)
        for part in ("spec", "status"):
            for key, value in body.get(part, {}).items():
                fleet.setdefault(part, {})[key] = value

    patch_namespaced_custom_object_status = patch_namespaced_custom_object

    async def delete_namespaced_pod(self, name: str, namespace: str, body: Any) -> None:
        self.gone(name)


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def connect(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every verb reach `world`, in namespace `a` where none is named, by its clock."""
    sleep = asyncio.sleep

    @asynccontextmanager
    async def connected(_: object, namespace: str | None) -> AsyncIterator[Cluster]:
        yield Cluster(world, namespace or "a", world, world)  # type: ignore[arg-type]

    async def slept(seconds: float) -> None:
        world.now += seconds
        world.on_sleep(seconds)
        await sleep(0)

    monkeypatch.setattr("argosy_operator.cli.kubectl.session.connected", connected)
    monkeypatch.setattr(asyncio, "sleep", slept)
    clock = SimpleNamespace(time=lambda: world.now, monotonic=lambda: world.now - NOW + 50.0)
    for verb in ("status", "drain", "rollout"):
        monkeypatch.setattr(f"argosy_operator.cli.kubectl.{verb}.time", clock)
