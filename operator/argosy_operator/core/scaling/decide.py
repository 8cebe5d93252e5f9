"""decide(): from one round of observations to the wanted replicas of every role, with reasons."""

from dataclasses import dataclass
from enum import StrEnum

from argosy_operator.core.scaling.observe import Goals, Observations, Role


class Rule(StrEnum):
    """The rule that bound a role's number. Shown to people; adding one is an API change."""

    NO_SLO = "NoSLO"
    BLIND = "MetricsUnavailable"
    DEMAND = "Demand"
    IDLE = "Idle"
    HOLD = "Hold"
    STARTING = "JustStarted"
    LEARNING = "CapacityGuessed"
    MISSED = "AttainmentBelowGoal"
    BACKLOG = "Backlog"
    IN_FLIGHT = "InFlight"
    PENDING = "ScaleUpPending"
    ROLLING = "RolloutInProgress"
    STEP = "StepLimit"
    BUDGET = "GPUBudget"
    MIN = "MinReplicas"
    MAX = "MaxReplicas"
    UNREACHABLE = "SLOUnreachable"


@dataclass(frozen=True, slots=True)
class RoleTarget:
    """One role's answer: set `replicas`; `current` was desired before; `rule` bound it."""

    role: Role
    current: int
    replicas: int
    rule: Rule
    message: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of replicas that was weighed: predicted share of requests within the SLO."""

    role: Role
    replicas: int
    attainment: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `rule` and `message` are those of the role that moved, or else of the first.

    `reachable` False: no number of replicas meets the SLO (growth stopped there).
    `active` False: the law did not run (no SLO, blind), `rule` says why.
    """

    at: float
    targets: tuple[RoleTarget, ...]
    rule: Rule
    message: str
    active: bool
    reachable: bool
    numbers: dict[str, float]
    candidates: tuple[Candidate, ...] = ()

    def replicas(self, role: Role) -> int:
        return next(t.replicas for t in self.targets if t.role == role)

    @property
    def changed(self) -> bool:
        return any(t.replicas != t.current for t in self.targets)


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Memory between two decisions; begins empty after a restart."""

    started_at: float | None = None


def decide(
    state: ScalingState, observations: Observations, goals: Goals, now: float
) -> tuple[ScalingState, Decision]:
    """The scaling law. Pure: equal arguments give equal answers."""
    raise NotImplementedError
