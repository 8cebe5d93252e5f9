"""Fleets on a one-machine cluster of their own, what is true of them, and what is left in them.

Objects are read and written through the API server. Processes of pods are found in /proc by the
variables that the operator sets, so no other process of the machine is ever meant.
"""

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx

from argosy_bench.cluster.schedule import LEAST, MOST
from local.cluster.cluster import Cluster
from local.cluster.errors import ApiError
from local.demo.kube import Kube, await_answer, is_ready
from local.demo.places.place import SYSTEM, helm_install

NAME = "loss"
GATEWAYS = 2
WHOLE_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.25
_CLAIM = "models"
_GROUP = "/apis/serving.argosy.dev/v1alpha1"
_LABELS = "serving.argosy.dev/"

Pod = dict[str, Any]


class NotWholeError(Exception):
    """The fleet did not become as it should be; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a fleet differs from others."""

    number: int
    weights: Path | None = None
    """Folder of real weights; None: simulated engines."""

    @property
    def spec(self) -> dict[str, Any]:
        """Of the ServingDeployment. Every second fleet moves the streams of a pod that leaves."""
        bounds = {"replicas": {"min": LEAST, "max": MOST}, "resources": {"gpu": 0}}
        spec = {
            "model": {"uri": "sim://llama-70b-h100-tp4"},
            "mode": "disaggregated",
            "routing": {"replicas": GATEWAYS},
            "drain": {"timeout": "40s", "mode": ("finish", "migrate")[self.number % 2]},
            "autoscaling": {
                "policy": "External",
                "roleFlip": True,
                "scaleDown": {"stabilization": "1s"},
            },
            "roles": dict.fromkeys(("prefill", "decode", "colocated"), bounds),
        }
        if self.weights:
            spec["model"] = {"uri": f"pvc://{_CLAIM}/{self.weights.name}"}
            spec["engine"] = {"dtype": "float32"}
        return spec


class Fleet:
    """The fleet `loss`, in a namespace with a name of its own."""

    def __init__(self, cluster: Cluster, wanted: Wanted) -> None:
        self.cluster, self.wanted = cluster, wanted
        self.namespace = f"{NAME}{wanted.number}-{secrets.token_hex(3)}"
        self.api = cluster.api
        self._http = Kube(cluster.kubeconfig).http  # keeps its connections: most calls are reads
        self._sd = f"{_GROUP}/namespaces/{self.namespace}/servingdeployments/{NAME}"

    def create(self) -> str:
        """Apply the fleet and return the URL of its gateways once it is whole."""
        self.api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        if self.wanted.weights:
            self._provide(self.wanted.weights)
        kind = {"apiVersion": "serving.argosy.dev/v1alpha1", "kind": "ServingDeployment"}
        folder = self._sd.rpartition("/")[0]
        self.api.post(folder, {**kind, "metadata": {"name": NAME}, "spec": self.wanted.spec})
        self.until_whole({"prefill": LEAST, "decode": LEAST})
        return await_answer(f"http://127.0.0.1:{self.cluster.host_port(NAME, 80, self.namespace)}")

    def _provide(self, weights: Path) -> None:
        """A volume of this machine and the claim of it."""
        access = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        volume = {
            **access,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(weights.parent), "type": "Directory"},
            "claimRef": {"namespace": self.namespace, "name": _CLAIM},
        }
        name = f"{self.namespace}-{_CLAIM}"
        self.api.post("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
        claim = {**access, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.api.post(claims, {"metadata": {"name": _CLAIM}, "spec": claim})

    def edit(self, **spec: Any) -> None:
        """Change the spec, as `kubectl patch --type=merge` does."""
        self.api.patch(self._sd, {"spec": spec})

    def scale(self, role: str, replicas: int) -> None:
        """What `kubectl scale servingrole` writes."""
        path = f"{_GROUP}/namespaces/{self.namespace}/servingroles/{NAME}-{role}/scale"
        asked = {"spec": {"replicas": replicas}}
        self.until(f"ServingRole {role} exists", lambda: self.api.patch(path, asked), 30)

    def annotate(self, pod: Pod, **annotations: str | None) -> None:
        """Annotations of serving.argosy.dev; None removes one."""
        named = {_LABELS + name: value for name, value in annotations.items()}
        self.api.patch(self._path(pod), {"metadata": {"annotations": named}})

    def delete(self, pod: Pod) -> None:
        """Delete a pod with its grace period."""
        self.api.delete(self._path(pod))

    def delete_at_once(self, pod: Pod) -> None:
        """Delete a pod of any namespace without a grace period."""
        path = "/api/v1/namespaces/{namespace}/pods/{name}".format(**pod["metadata"])
        self.api.delete(path, {"gracePeriodSeconds": 0})

    def _path(self, pod: Pod) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"

    def pods(self, role: str = "") -> list[Pod]:
        """All pods of a role, those that are being deleted too; of all roles without one."""
        selector = f"{_LABELS}fleet={NAME}" + (f",{_LABELS}role={role}" if role else "")
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}"
        found: list[Pod] = self._read(path)["items"]
        return found

    def _read(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()

    def operator(self) -> Pod:
        """The operator's pod that leads."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/argosy-operator"
        holder: str = self._read(path)["spec"]["holderIdentity"]
        found: list[Pod] = self._read(f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
        return next(pod for pod in found if holder.startswith(pod["metadata"]["name"]))

    def until(self, what: str, holds: Callable[[], Any], within_s: float = WHOLE_WITHIN_S) -> Any:
        """Poll until `holds()` is true and return that; NotWholeError says `what` was not."""
        deadline, last = time.monotonic() + within_s, ""
        while time.monotonic() < deadline:
            try:
                if found := holds():
                    return found
            except (OSError, httpx.HTTPError, ApiError, LookupError) as error:
                last = f" ({type(error).__name__}: {error})"
            time.sleep(_LOOK_EVERY_S)
        raise NotWholeError(f"not within {within_s:.0f} s: {what}{last}")

    def until_whole(self, replicas: dict[str, int]) -> None:
        """Until every role has so many pods, all Ready and known to every gateway, and no other pod
        is left. NotWholeError names what is missing."""
        wanted = {**replicas, "gateway": GATEWAYS}
        said = ["nothing was read"]

        def whole() -> bool:
            said[:] = self._missing(wanted)
            return not said

        try:
            self.until("the fleet is whole", whole)
        except NotWholeError as error:
            raise NotWholeError(f"{error}: {'; '.join(said)}") from None

    def is_observed(self) -> bool:
        """Whether status is about the newest spec."""
        found = self._read(self._sd)
        seen: int = found["status"].get("observedGeneration", 0)
        return seen == int(found["metadata"]["generation"])

    def _missing(self, wanted: dict[str, int]) -> list[str]:
        fleet, pods = self._read(self._sd), self.pods()
        said = [] if is_ready(fleet) else ["the fleet is not Ready"]
        for role in {*wanted, *map(role_of, pods)}:
            here = [pod for pod in pods if role_of(pod) == role]
            if len(here) != wanted.get(role, 0):
                said.append(f"{len(here)} {role} pods instead of {wanted.get(role, 0)}")
            said += [f"{name_of(pod)} is {why}" for pod in here if (why := _not_ready(pod))]
            newest = (fleet["status"]["roles"].get(role) or {}).get("revision")
            said += [f"{name_of(pod)} is old" for pod in here if revision_of(pod) != newest]
        return said or self._unknown_to_gateways(wanted, pods)

    def _unknown_to_gateways(self, wanted: dict[str, int], pods: list[Pod]) -> list[str]:
        said = []
        for pod in pods:
            if role_of(pod) == "gateway":
                page = self.metrics(pod, 8081)
                for role in ("prefill", "decode", "colocated"):
                    labels = f'{{role="{role}",state="serving"}}'
                    known = page.get(f"argosy_gateway_endpoints{labels}", 0.0)
                    if known != wanted.get(role, 0):
                        said.append(f"{name_of(pod)} sends to {known:.0f} {role} pods")
        return said

    def metrics(self, pod: Pod, port: int) -> dict[str, float]:
        """All samples of a pod's admin port, by name with labels."""
        path = f"{self._path(pod)}:{port}/proxy/metrics"
        page = self._http.get(path).raise_for_status().text
        lines = (line for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}


def name_of(pod: Pod) -> str:
    """The pod's name."""
    name: str = pod["metadata"]["name"]
    return name


def role_of(pod: Pod) -> str:
    """prefill, decode, colocated or gateway."""
    role: str = pod["metadata"]["labels"][f"{_LABELS}role"]
    return role


def uid_of(pod: Pod) -> str:
    """The pod's uid."""
    uid: str = pod["metadata"]["uid"]
    return uid


def revision_of(pod: Pod) -> str | None:
    """Its revision; None for a gateway."""
    revision: str | None = pod["metadata"]["labels"].get(f"{_LABELS}revision")
    return revision


def restarts_of(pod: Pod) -> int:
    """How often its container was started again."""
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))


def _not_ready(pod: Pod) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "being deleted"
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return "" if conditions.get("Ready") == "True" else f"not Ready ({pod['status']['phase']})"


def processes_of(pod: Pod) -> list[int]:
    """Process ids of a pod's container; empty when none runs."""
    meta = pod["metadata"]
    own = {f"POD_NAME={meta['name']}", f"POD_NAMESPACE={meta['namespace']}"}
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                variables = (process / "environ").read_bytes().decode(errors="replace")
                if own <= set(variables.split("\0")):
                    found.append(int(process.name))
    return sorted(found)


@contextlib.contextmanager
def running(wanted: Sequence[Wanted], say: Callable[[str], None]) -> Iterator[list[Fleet]]:
    """A cluster with the chart, for these fleets, which are yet to be created; all ends with the
    block."""
    with tempfile.TemporaryDirectory(prefix="argosy-loss-") as folder:
        cluster = Cluster(NAME, state_dir=Path(folder) / "c")
        say(f"the cluster is ready after {cluster.start(tied=True).ready_s} s")
        try:
            kube = Kube(cluster.kubeconfig)
            helm_install(kube, "--wait", "--timeout", "120s", embedded=False)
            yield [Fleet(cluster, one) for one in wanted]
        finally:
            cluster.stop()


WITHIN_S = 90.0
"""Time in which the last lease ends by itself."""
_API, _KV = 8000, 8002
_OPEN = {"01": "ESTABLISHED", "08": "CLOSE_WAIT"}
"""States of /proc/net/tcp in which a connection is held. One in TIME_WAIT has no owner."""


@dataclass(slots=True)
class Leftovers:
    """Sums over all engine pods."""

    kv_blocks: float = 0.0
    """Blocks with a reference; those of the prefix cache alone have none."""
    leases: float = 0.0
    requests: float = 0.0
    """In the batch, waiting or pulling."""
    sockets: int = 0
    """Connections on the API and KV ports."""

    def __iadd__(self, other: "Leftovers") -> "Leftovers":
        for field in fields(self):
            both = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, both)
        return self

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def left(fleet: Fleet) -> tuple[Leftovers, list[str]]:
    """What is held once it no longer falls to nothing, and by which pods."""
    last: list[tuple[str, Leftovers]] = []

    def nothing() -> bool:
        engines = [pod for pod in fleet.pods() if role_of(pod) != "gateway"]
        last[:] = [(name_of(pod), _of(fleet, pod)) for pod in engines]
        return not any(held for _, held in last)

    with contextlib.suppress(NotWholeError):
        fleet.until("nothing is held", nothing, WITHIN_S)
    total = Leftovers()
    for _, held in last:
        total += held
    return total, [f"{name}: {held}" for name, held in last if held]


def _of(fleet: Fleet, pod: Pod) -> Leftovers:
    samples = fleet.metrics(pod, 8001)
    tables = [Path(f"/proc/{process}/net/tcp") for process in processes_of(pod)[:1]]
    return Leftovers(
        kv_blocks=round(_one(samples, "vllm:kv_cache_usage_perc") * _blocks(samples)),
        leases=_one(samples, "argosy_kv_leases_active"),
        requests=_one(samples, "vllm:num_requests_running")
        + _one(samples, "vllm:num_requests_waiting{"),
        sockets=sum(held_connections(table.read_text(), (_API, _KV)) for table in tables),
    )


def _one(samples: dict[str, float], beginning: str) -> float:
    """The sample with this name. LookupError: a series that is gone must not read as nothing."""
    return next(v for name, v in samples.items() if name.startswith(beginning))


def _blocks(samples: dict[str, float]) -> int:
    name = next(name for name in samples if name.startswith("vllm:cache_config_info"))
    return int(name.partition('num_gpu_blocks="')[2].partition('"')[0])


def held_connections(table: str, ports: Iterable[int]) -> int:
    """Connections of /proc/net/tcp that are held and have one of the ports at either end."""
    wanted = set(ports)
    count = 0
    for line in table.splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        ends = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
        count += state in _OPEN and not wanted.isdisjoint(ends)
    return count
