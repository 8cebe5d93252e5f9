"""What one round leaves for the next: the only thing of a fleet that outlives a round.

`plan` reads it from the snapshot and writes the next one; the worker of `shell/workers.py` keeps it
between the two. A restarted operator begins with an empty one, so no safety may depend on it: what
must survive is in the cluster (replicas of ServingRoles, annotations of pods, status). What the
scaling law has learnt is kept by `core.recall`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet.actions import ErrorKind
from argosy_operator.core.fleet.objects import ChildKey
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.prices import Prices
from argosy_operator.core.scaling.signals.alone import Heard
from argosy_operator.core.scaling.state import ScalingState
from argosy_operator.core.slo.errors import Errors


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that failed in every round since `since`. Times are on the monotonic clock, in
    seconds."""

    what: str
    """The object, as `actions.target` writes it."""
    builds: bool
    """Whether pods are missing because of it: the object is a Deployment."""
    error: ErrorKind
    message: str
    """The server's words; kept as they were first while only numbers in them change."""
    since: float
    times: int
    retry_at: float
    generation: int
    """metadata.generation at the last attempt. An edit of the spec ends the wait."""


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A change by another writer that was reverted `times` in a row. Times are on the monotonic
    clock, in seconds."""

    cause: str
    """Who changes what, for the condition FieldConflict; without numbers that change."""
    times: int
    at: float
    """When it was reverted last."""
    retry_at: float
    """When it may be reverted next."""


@dataclass(frozen=True, slots=True)
class LoopMemory:
    """Times are on the monotonic clock, in seconds, unless a field says otherwise."""

    uid: str = ""
    """Of the ServingDeployment that it belongs to; "" before the first round."""
    scaling: ScalingState = field(default_factory=ScalingState)
    """What the scaling law has learnt."""
    heard: Heard = field(default_factory=Heard)
    """What gateways said of their load when they were asked."""
    errors: Errors = field(default_factory=Errors)
    """Verdicts of requests, for the error budget."""
    prices: Prices = field(default_factory=Prices)
    """What the fleet would cost on each of its GPU types."""
    learnt_read: bool = False
    """What an earlier operator kept of `scaling` was looked for."""
    learnt_at: float = float("-inf")
    """When `scaling` was last written to its ConfigMap, or read from it."""
    decision: Decision | None = None
    """The scaling law's last decision that rests on metrics. Conditions speak of it between two
    decisions."""
    decide_at: float = 0.0
    """When the scaling law is due next. 0: at once."""
    figures_at: float = float("-inf")
    """When status last updated what users got."""
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    """Pods wanted per role in the last round. They replace a number that another writer puts into a
    ServingRole that the operator scales."""
    listen: tuple[tuple[str, str], ...] = ()
    """Gateways (pod, address) of a fleet at zero, which are asked for requests until the next
    round; empty for any other fleet."""
    unheard_since: float | None = None
    """Since when a Ready gateway of a fleet at zero has not answered; None if all answer."""
    ask_loads: bool = False
    """The next round asks all engines how busy they are, because a pod must be chosen for removal.
    """
    accepted_drift: Mapping[ChildKey, str] = field(default_factory=dict)
    """Digests of the differences, fields and values, that a child kept after an apply (a webhook
    changes it back). They are accepted until either side changes."""
    starting: frozenset[str] = frozenset()
    """Uids of pods that were seen before their first readiness."""
    starts: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Role, and measured seconds from creation to first readiness, by uid of the pod."""
    published: Mapping[str, float] = field(default_factory=dict)
    """When each event was published last, by its key."""
    failed: Mapping[str, Failure] = field(default_factory=dict)
    """Actions that failed when they were last tried, by `actions.key_of`."""
    field_conflicts: Mapping[str, FieldConflict] = field(default_factory=dict)
    """Changes of other writers that were reverted lately, by the key of the action that reverts."""

    def of(self, uid: str) -> "LoopMemory":
        """This memory, or an empty one if it is that of an earlier fleet of the same name."""
        return self if self.uid == uid else LoopMemory(uid)
