"""The answer of the scaling law and its vocabulary. Made by `decide`, read by status and people."""

from dataclasses import dataclass
from enum import StrEnum

from argosy_operator.api.v1alpha1 import RoleName


class Rule(StrEnum):
    """The rule that bound a role's number. Shown to people; adding one is an API change."""

    NO_SLO = "NoSLO"
    POLICY_NONE = "PolicyNone"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    DEMAND = "Demand"
    IDLE = "Idle"
    CAPACITY_GUESSED = "CapacityGuessed"
    JUST_STARTED = "JustStarted"
    HOLD = "Hold"
    ATTAINMENT_BELOW_GOAL = "AttainmentBelowGoal"
    BACKLOG = "Backlog"
    IN_FLIGHT = "InFlight"
    SCALE_UP_PENDING = "ScaleUpPending"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    STEP_LIMIT = "StepLimit"
    GPU_BUDGET = "GPUBudget"
    MIN_REPLICAS = "MinReplicas"
    MAX_REPLICAS = "MaxReplicas"
    SLO_UNREACHABLE = "SLOUnreachable"


MEANING: dict[Rule, str] = {
    Rule.NO_SLO: "no spec.slo: replicas stay at their minimum",
    Rule.POLICY_NONE: "spec.autoscaling.policy is None: replicas stay at their minimum",
    Rule.METRICS_UNAVAILABLE: "the metrics are unknown, stale or incomplete: nothing is removed",
    Rule.DEMAND: "the smallest number whose predicted attainment meets the goal",
    Rule.IDLE: "no request for a whole hold window",
    Rule.CAPACITY_GUESSED: "lengths or capacity are not measured yet: nothing is removed",
    Rule.JUST_STARTED: "a full hold window has not been seen since the metrics came (back)",
    Rule.HOLD: "more was needed within the hold window",
    Rule.ATTAINMENT_BELOW_GOAL: "measured attainment is below the goal: nothing is removed",
    Rule.BACKLOG: "queued work would outlast the start of a new replica",
    Rule.IN_FLIGHT: "requests in flight need this many replicas",
    Rule.SCALE_UP_PENDING: "an earlier scale-up of this role is still starting",
    Rule.ROLLOUT_IN_PROGRESS: "a rollout of this role is in progress",
    Rule.STEP_LIMIT: "spec.autoscaling.scaleUp and scaleDown limit the size of one step",
    Rule.GPU_BUDGET: "spec.autoscaling.gpuBudget.max is used up",
    Rule.MIN_REPLICAS: "spec.roles.<role>.replicas.min",
    Rule.MAX_REPLICAS: "spec.roles.<role>.replicas.max",
    Rule.SLO_UNREACHABLE: "a lone request misses the SLO: replicas only carry the load",
}


@dataclass(frozen=True, slots=True)
class RoleTarget:
    """One role's answer: set `replicas`; `current` was desired before; `rule` bound it.

    `demanded` is what load alone asks for, before holds, steps, limits and budget.
    """

    role: RoleName
    current: int
    replicas: int
    demanded: int
    rule: Rule
    message: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of replicas that was weighed: predicted share of requests within the SLO."""

    role: RoleName
    replicas: int
    attainment: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `rule` and `message` are those of the role that moved, or else of the first.

    `active` False: the law did not run (no SLO, blind) and `rule` says why. `reachable` False: no
    number of replicas meets the SLO; they only carry the load. `numbers`: name with unit → what was
    used. `relearning`: roles whose capacity is measured again because what had been learnt was not
    usable.
    """

    at: float
    targets: tuple[RoleTarget, ...]
    rule: Rule
    message: str
    active: bool
    reachable: bool
    numbers: dict[str, float]
    candidates: tuple[Candidate, ...] = ()
    clock_skew_s: float = 0.0
    """The operator's clock minus that of the metrics' source, s."""
    silent_gateways: tuple[str, ...] = ()
    """Ready gateways of which Prometheus has no fresh samples."""
    relearning: tuple[RoleName, ...] = ()
    unknown: tuple[str, ...] = ()
    """Role and signal of what is unknown now and keeps the role from losing replicas."""

    def replicas(self, role: RoleName) -> int:
        return next(t.replicas for t in self.targets if t.role == role)

    @property
    def changed(self) -> bool:
        return any(t.replicas != t.current for t in self.targets)
