"""The answer of a scaling law and its vocabulary.

Made by `decide` and `explain`; `core.steps`, `core.status` and the CLI read it.
"""

from dataclasses import dataclass
from enum import StrEnum

from argosy_law.goals import RoleGoal, Whose
from argosy_law.observe import RoleName


class Rule(StrEnum):
    """What bound a role's number of replicas. Users read the values: adding one changes the API."""

    NO_SLO = "NoSLO"
    POLICY_NONE = "PolicyNone"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    GATEWAYS_ALONE = "GatewaysAlone"
    JUST_STARTED = "JustStarted"
    CAPACITY_GUESSED = "CapacityGuessed"
    DEMAND = "Demand"
    IN_FLIGHT = "InFlight"
    BACKLOG = "Backlog"
    HOLD = "Hold"
    ATTAINMENT_BELOW_GOAL = "AttainmentBelowGoal"
    SCALE_UP_PENDING = "ScaleUpPending"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    STEP_LIMIT = "StepLimit"
    IDLE = "Idle"
    SCALED_TO_ZERO = "ScaledToZero"
    WAKING = "Waking"
    MIN_REPLICAS = "MinReplicas"
    MAX_REPLICAS = "MaxReplicas"
    SCHEDULE = "Schedule"
    ROLE_FLIP = "RoleFlip"
    GPU_BUDGET = "GPUBudget"
    SLO_UNREACHABLE = "SLOUnreachable"


MEANING: dict[Rule, str] = {
    Rule.NO_SLO: "there is no spec.slo: replicas stay at spec.roles.<role>.replicas.min",
    Rule.POLICY_NONE: (
        "spec.autoscaling.policy is None: replicas stay at spec.roles.<role>.replicas.min"
    ),
    Rule.METRICS_UNAVAILABLE: "metrics are unknown, stale or incomplete: nothing is removed",
    Rule.GATEWAYS_ALONE: "only gateways say what the load is: nothing is removed",
    Rule.JUST_STARTED: "metrics have been valid for less than one hold: nothing is removed",
    Rule.CAPACITY_GUESSED: "lengths or capacity are not measured yet: nothing is removed",
    Rule.DEMAND: "the fewest replicas whose predicted attainment meets the goal",
    Rule.IN_FLIGHT: "requests in flight need this many replicas",
    Rule.BACKLOG: "queued prompts would outlast the start of a new replica",
    Rule.HOLD: "more was needed within the hold",
    Rule.ATTAINMENT_BELOW_GOAL: "measured attainment is below the goal: nothing is removed",
    Rule.SCALE_UP_PENDING: "an earlier scale-up is still starting: nothing is removed",
    Rule.ROLLOUT_IN_PROGRESS: "pods of two revisions serve: nothing is removed",
    Rule.STEP_LIMIT: "spec.autoscaling.scaleUp or scaleDown limits the size of one step",
    Rule.IDLE: "no request for a whole idle window",
    Rule.SCALED_TO_ZERO: (
        "no gateway has had a request for spec.autoscaling.scaleToZero.after: the fleet has no "
        "engine pods until the next one"
    ),
    Rule.WAKING: (
        "requests wait in the gateways of a fleet at zero: it starts with "
        "spec.roles.<role>.replicas.min"
    ),
    Rule.MIN_REPLICAS: "bounded by spec.roles.<role>.replicas.min",
    Rule.MAX_REPLICAS: "bounded by spec.roles.<role>.replicas.max",
    Rule.ROLE_FLIP: (
        "pods may change their role (spec.autoscaling.roleFlip): a replica that is only held goes "
        "to the other role that needs one, or goes if both roles together need fewer"
    ),
    Rule.SCHEDULE: ("a window of spec.autoscaling.schedules is open, or opens within a cold start"),
    Rule.GPU_BUDGET: (
        "spec.autoscaling.gpuBudget.max, or the GPU budget of the namespace, or the operator's GPU "
        "budget for all fleets, is used up"
    ),
    Rule.SLO_UNREACHABLE: "a request alone misses the SLO: replicas only carry the load",
}
"""What each rule means. The last part after a colon says what follows from it."""


def meaning_of(rule: Rule, role: RoleName) -> str:
    """The meaning, with the fields of this role."""
    return MEANING[rule].replace("<role>", role)


def bounded(replicas: int, rule: Rule, goal: RoleGoal) -> tuple[int, Rule]:
    """Apply the user's minimum and maximum, at once and over every hold."""
    if replicas > goal.max:
        return goal.max, Rule.SCHEDULE if goal.max_schedule else Rule.MAX_REPLICAS
    if replicas < goal.min:
        return goal.min, Rule.SCHEDULE if goal.min_schedule else Rule.MIN_REPLICAS
    return replicas, rule


def why_bounded(rule: Rule, goal: RoleGoal, replicas: int) -> str:
    """The meaning of a rule that `bounded` named or left; a schedule by its name."""
    if rule is not Rule.SCHEDULE:
        return meaning_of(rule, goal.role)
    if goal.min_schedule and replicas == goal.min:
        return f"schedule {goal.min_schedule} asks for at least {goal.min}"
    return f"schedule {goal.max_schedule} allows at most {goal.max}"


@dataclass(frozen=True, slots=True)
class RoleTarget:
    """One role's answer."""

    role: RoleName
    current: int
    """Replicas that were asked for before."""
    replicas: int
    """Replicas to ask for now."""
    demanded: int
    """What load alone asks for, before holds, steps, limits and budget."""
    rule: Rule
    """What bound `replicas`."""
    message: str
    """Why, for users."""
    over_budget: int = 0
    """Replicas that the GPU budget took off."""

    @property
    def wanted(self) -> int:
        """Replicas without any GPU budget."""
        return self.replicas + self.over_budget


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of replicas that was weighed."""

    role: RoleName
    replicas: int
    attainment: float
    """Predicted share of requests within the SLO, 0..1."""
    gpus: int
    """GPUs that so many replicas take."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What a GPU budget keeps a fleet from."""

    gpus: int
    """GPUs that are wanted beyond it."""
    whose: Whose


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and why."""

    at: float
    """Seconds since the epoch, on the clock of the metrics."""
    targets: tuple[RoleTarget, ...]
    rule: Rule
    """That of the first role that moves, otherwise of the first role."""
    message: str
    active: bool
    """False: the law did not run, because there is no SLO or no metrics; `rule` says which."""
    reachable: bool
    """False: no number of replicas meets the SLO; they only carry the load."""
    numbers: dict[str, float]
    """What was used, by name with unit."""
    candidates: tuple[Candidate, ...] = ()
    clock_skew_s: float = 0.0
    """The operator's clock minus that of the metrics' source, in seconds."""
    scraped_twice: tuple[str, ...] = ()
    """Jobs of Prometheus that scrape the same pods."""
    silent_gateways: tuple[str, ...] = ()
    """Ready gateways of which Prometheus has no fresh samples."""
    gateways_alone: str = ""
    """Why Prometheus had no metrics, where the decision stands on what gateways said alone."""
    relearning: tuple[RoleName, ...] = ()
    """Roles whose capacity is measured again, because what had been learnt was not usable."""
    unknown: tuple[str, ...] = ()
    """Role and signal of what is unknown now and keeps the role from losing replicas."""
    lack: Lack | None = None
    """None: no GPU budget bound the answer."""
    holds_first_tokens: bool | None = None
    """Whether decode pods hold first tokens from now on; None: not decided, it stays as it was."""
    worth: tuple[tuple[int, float], ...] = ()
    """(GPUs, predicted requests per second within the SLO): the fleet's bid for a budget that it
    shares with others. Empty without one."""

    def replicas(self, role: RoleName) -> int:
        """Raises StopIteration for a role that was not decided on."""
        return next(t.replicas for t in self.targets if t.role == role)

    @property
    def changed(self) -> bool:
        """Whether any role moves."""
        return any(t.replicas != t.current for t in self.targets)


def lacks_metrics(decision: Decision | None) -> bool:
    """The law did not run because it had no metrics. A role that keeps its replicas because its own
    pods are silent does not count."""
    return (
        decision is not None and not decision.active and decision.rule is Rule.METRICS_UNAVAILABLE
    )


def not_judged(decision: Decision | None) -> bool:
    """There are no verdicts of requests: no metrics at all, or the gateways' own alone."""
    return lacks_metrics(decision) or (decision is not None and bool(decision.gateways_alone))
