"""Protocols of the outside world: what the loop needs of the cluster, metrics and engine pods.

`cluster.py`, `prometheus/metrics.py`, `engines.py` and `lease.py` fulfil them; `shell/app.py` wires
them up. A failure of the API server arrives as a `ClusterError` with an `ErrorKind`, never as a
library's exception, so that the loop decides on causes and not on class names of a client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from argosy_law.observe import FleetMetrics
from argosy_law.signals.gateways import Reading
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.names import FIELD_MANAGER
from argosy_operator.core.snapshot.objects import FleetKey, Object
from argosy_operator.core.snapshot.pods import FetchProgress, GatewayLoad, Handovers, Load
from argosy_operator.core.snapshot.snapshot import Issuer, VerdictsRead


@dataclass(eq=False)  # not frozen: Python writes an exception's traceback as it passes
class ClusterError(Exception):
    """A call to the API server that failed."""

    kind: ErrorKind
    what: str
    """Verb, kind and name, such as `apply Deployment chat-gateway`."""
    message: str
    """The server's own sentence."""
    retry_after_s: float | None = None
    """The server's Retry-After."""

    def __str__(self) -> str:
        return f"{self.what}: {self.kind}: {self.message}"


class Cluster(Protocol):
    """The Kubernetes API. Objects are plain dictionaries as the server sends them."""

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]: ...

    async def get(self, kind: str, namespace: str, name: str) -> Object | None: ...

    async def create(self, obj: Object) -> Object: ...

    async def apply(
        self, obj: Object, uid: str | None, *, status: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        """Apply server-side as the field manager. With a uid: forced, and only on the object that
        has it. With a resourceVersion in its metadata: only if it is still that one."""

    async def scale(
        self, kind: str, namespace: str, name: str, replicas: int, resource_version: str | None
    ) -> None:
        """Write the scale subresource. With a resourceVersion: only if it is still that one."""

    async def annotate(
        self, kind: str, namespace: str, name: str, uid: str, values: Mapping[str, str | None]
    ) -> None:
        """Set annotations; remove those whose value is None."""

    async def relabel(
        self,
        kind: str,
        namespace: str,
        name: str,
        uid: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
    ) -> None:
        """Set labels and annotations in one write."""

    async def refuse(
        self, namespace: str, name: str, uid: str, version: str, mark: Object | None
    ) -> None:
        """Write status.refused of a fleet, or remove it for None, if its resourceVersion is still
        that one. `apply` never sends it: the mark may be a person's."""

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FleetPods:
    """Pods of one fleet by name, as Kubernetes knows them."""

    ready_gateways: frozenset[str] = frozenset()
    """Arrivals are complete only if each of them reports."""
    engines: frozenset[str] | None = None
    """Engine pods that the fleet owns; another pod with the fleet's labels does not count. None:
    every pod that answers scrapes counts."""
    readings: tuple[Reading, ...] = ()
    """What gateways said that the operator asked itself, newer than what Prometheus has."""
    closed: bool = False
    """There are gateway pods, and none is ready: requests reach none of them."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One fleet's share of a round of queries that all fleets have in common."""

    metrics: FleetMetrics
    """`metrics.at` says when it was measured."""
    next_at: float
    """When to ask again, in seconds on the monotonic clock: an interval after the round began."""


class Metrics(Protocol):
    """Measurements of fleets. Never raises: what is not known arrives as Unknown."""

    async def measure(self, fleet: ServingDeployment, pods: FleetPods) -> Measurement:
        """Return the fleet's share of the newest round; starts a round if there is none in time."""

    async def verdicts(self, fleet: ServingDeployment, since: float) -> VerdictsRead:
        """Return the samples of verdicts by revision since then, seconds since the epoch."""


class Engines(Protocol):
    """The admin port of engine pods. None or False if a pod does not answer in time, or if another
    pod than `uid` answers."""

    async def load(self, ip: str, fleet: FleetKey, uid: str) -> Load | None: ...

    async def drain(self, ip: str, fleet: FleetKey, uid: str) -> bool: ...

    async def take_work_again(self, ip: str, fleet: FleetKey, uid: str) -> bool: ...


class TrustSource(Protocol):
    """Who signs service-account tokens in this cluster. Never raises."""

    async def issuer(self) -> Issuer | None:
        """Return what the API server said last; None if it has not said it yet."""


class Gateways(Protocol):
    """The admin port of gateway pods."""

    async def handovers(self, ip: str) -> Handovers:
        """Return what this gateway has seen; nothing if the pod does not answer in time."""

    async def load(self, ip: str, name: str) -> GatewayLoad | None:
        """Return the requests of the gateway with this name; None if it does not answer in time."""


class Fetchers(Protocol):
    """The port of pods that fetch a model."""

    async def progress(self, ip: str) -> FetchProgress | None:
        """Return how far this one is; None if it does not answer in time."""


class Gate(Protocol):
    """Asked before every write. It closes before another replica may lead."""

    def allowance_s(self, longest_s: float) -> float:
        """Return seconds that a write which begins now may last, `longest_s` at most. Raises
        ClusterError(NOT_LEADER) if this process does not lead for long enough to write."""
