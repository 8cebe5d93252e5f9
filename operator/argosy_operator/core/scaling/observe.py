"""What the scaling law may know: signals, one round of metrics, the supply of pods, the goals.

Filled by `samples.assemble` (from Prometheus or the simulator) and by the operator's snapshot
(pods, spec); read by `decide`. Values only: no clock, no I/O. Times are seconds since the epoch,
durations seconds, shares 0..1. Every value survives `record.to_json` / `record.from_json`.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from argosy_operator.api.v1alpha1 import Mode, RoleName

LARGEST = 1e15
"""No rate, length, time or count of a fleet is larger; a larger number is not a measurement."""


@dataclass(frozen=True, slots=True)
class Value:
    """A measured number; `at` is the time of its newest sample."""

    v: float
    at: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The source is up and its counter exists, and nothing happened: a measured nothing."""

    at: float


@dataclass(frozen=True, slots=True)
class Blind:
    """Nothing is known. Never read as zero, never a ground for removing capacity."""

    reason: str


Signal = Value | Idle | Blind

NOT_ASKED = Blind("NotAsked")


def plausible(number: float) -> bool:
    """Can it be a measurement: finite, not negative, no larger than any fleet's?"""
    return isfinite(number) and 0 <= number <= LARGEST


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests that arrived at all gateways in the scrape interval that ended at `end`."""

    end: float
    count: float


@dataclass(frozen=True, slots=True)
class StepDelta:
    """Growth of the step counters between two scrapes of one pod, all kinds of steps together.

    Steps are linear in their features, so a sum over many steps still obeys the step's equation.
    """

    at: float
    seconds: float
    steps: float
    prefill_tokens: float = 0.0
    prefill_requests: float = 0.0
    decode_sequences: float = 0.0
    context_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class RoleMetrics:
    """Engines of one role. Sums are over the pods that report; `pods_reporting` says how many."""

    role: RoleName
    pods_reporting: int = 0
    steps: tuple[StepDelta, ...] = ()
    running: Signal = NOT_ASKED
    outstanding_prompt_tokens: Signal = NOT_ASKED
    kv_capacity_tokens: Signal = NOT_ASKED
    """Of one replica (smallest of the reporting pods)."""


@dataclass(frozen=True, slots=True)
class FleetMetrics:
    """One round of questions to the metrics' source.

    `arrivals` (per second, over the rate window) decides between Value, Idle and Blind; `bins`
    carries the same counts exactly, oldest first, one per scrape interval. Attainments are over
    the attainment window; `scored` is the number of verdicts in it (shed requests count as misses).
    """

    at: float
    arrivals: Signal
    bins: tuple[Bin, ...] = ()
    prompt_tokens: Signal = NOT_ASKED
    prompt_tokens_squared: Signal = NOT_ASKED
    """Second moment E[L²] of the prompt's length."""
    output_tokens: Signal = NOT_ASKED
    kv_transfer_s: Signal = NOT_ASKED
    """Mean time of one KV transfer as decode sees it; charged to TPOT."""
    attainment: Signal = NOT_ASKED
    ttft_attainment: Signal = NOT_ASKED
    tpot_attainment: Signal = NOT_ASKED
    ttft_p90_s: Signal = NOT_ASKED
    tpot_p90_s: Signal = NOT_ASKED
    """What people read in status; nothing is decided by these two."""
    scored: float = 0.0
    clock_skew_s: float = 0.0
    """The operator's clock minus the clock of the samples' source, s. `at` and all other times are
    on the source's clock."""
    silent_gateways: tuple[str, ...] = ()
    """Ready gateways whose arrivals are not known: the other numbers are a part of the whole."""
    roles: tuple[RoleMetrics, ...] = ()

    def role(self, role: RoleName) -> RoleMetrics:
        return next((r for r in self.roles if r.role == role), RoleMetrics(role))


def blind_metrics(at: float, reason: str) -> FleetMetrics:
    """The round that failed as a whole (Prometheus away, time-out, no gateway target up)."""
    return FleetMetrics(at=at, arrivals=Blind(reason))


@dataclass(frozen=True, slots=True)
class RoleSupply:
    """Pods of one role as Kubernetes knows them. `desired` is what the operator asked for last.

    `pending` are pods that are wanted but not ready yet (unschedulable ones included);
    `cold_starts_s` are the newest measured times from "replica wanted" to "ready", newest last.
    """

    role: RoleName
    desired: int
    ready: int
    pending: int = 0
    unschedulable: int = 0
    draining: int = 0
    cold_starts_s: tuple[float, ...] = ()
    gpus_per_replica: int = 1
    rolling: bool = False
    """A rollout is in progress in this role: no scale-down."""


@dataclass(frozen=True, slots=True)
class Observations:
    metrics: FleetMetrics
    supply: tuple[RoleSupply, ...]

    def of(self, role: RoleName) -> RoleSupply:
        return next(s for s in self.supply if s.role == role)


@dataclass(frozen=True, slots=True)
class SLO:
    """Limits in seconds; `attainment` is the wanted share of requests that meet both."""

    ttft_s: float
    tpot_s: float
    attainment: float = 0.9


@dataclass(frozen=True, slots=True)
class RoleGoal:
    role: RoleName
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Largest change of one role in one interval. Up: the larger of the two; down: pods."""

    up_percent: float = 100.0
    up_pods: int = 4
    down_pods: int = 1


@dataclass(frozen=True, slots=True)
class Windows:
    """Every duration of the law, from explicit fields of the spec and from nothing else.

    `scrape_s` metrics.scrapeInterval · `rate_s` metrics.rateWindow · `interval_s`
    autoscaling.interval · `up_hold_s`, `down_hold_s` scaleUp/scaleDown.stabilization ·
    `cold_start_s` autoscaling.coldStart (prior, used until starts were measured).
    """

    scrape_s: float = 15.0
    rate_s: float = 60.0
    interval_s: float = 15.0
    up_hold_s: float = 0.0
    down_hold_s: float = 300.0
    cold_start_s: float = 180.0

    @property
    def fresh_s(self) -> float:
        """Older newest samples are stale."""
        return 3 * self.scrape_s

    @property
    def attainment_s(self) -> float:
        """Attainment is measured over this; also "recently" of the rule against scale-down."""
        return max(self.down_hold_s, 2 * self.rate_s)

    @property
    def lengths_s(self) -> float:
        """Prompt and output lengths are averaged over this."""
        return 3 * self.rate_s

    @property
    def idle_s(self) -> float:
        """No request for so long is idleness; no shorter than what a rate is measured over."""
        return max(self.down_hold_s, self.rate_s)

    @property
    def forget_s(self) -> float:
        """Time constant of the capacity learner."""
        return 40 * self.idle_s


def stale_reason(windows: Windows) -> str:
    """Why old samples are not used. Without their age, which changes at every look."""
    return f"Stale: the newest sample is older than three scrape intervals ({windows.fresh_s:g} s)"


@dataclass(frozen=True, slots=True)
class Profile:
    """Constants of one replica: step = base + per_prompt_token·tokens + per_sequence·n +
    per_context_token·Σctx seconds. A prompt alone costs base + per_prompt_token·L."""

    prefill_base_s: float
    per_prompt_token_s: float
    decode_base_s: float
    per_sequence_s: float
    per_context_token_s: float
    kv_tokens: float = 0.0
    """0: unknown, no memory bound until the engines report it."""


@dataclass(frozen=True, slots=True)
class Goals:
    """What the user wants and allows. `slo` None: replicas stay at their minimum."""

    mode: Mode
    roles: tuple[RoleGoal, ...]
    slo: SLO | None
    windows: Windows = field(default_factory=Windows)
    steps: StepLimits = field(default_factory=StepLimits)
    gpu_budget: int | None = None
    policy: Literal["Goodput", "None"] = "Goodput"
    """None: replicas stay at their minimum, whatever the SLO says."""
    control_round_trip_s: float = 0.0
    """Time of a request outside the engines before its first token (X' = X − this)."""
    prior: Profile | None = None
    """Known constants; None: a guess from the SLO. Either may only scale up until measured."""

    def role(self, role: RoleName) -> RoleGoal:
        return next(r for r in self.roles if r.role == role)
