"""What the user wants and allows: SLO, bounds of each role, step limits, windows, GPU budget.

`core.reconcile.targets.goals_of` fills it from a ServingDeployment's spec; every scaling law reads
it. Values only. Durations are seconds, shares are 0..1.
"""

from dataclasses import dataclass, field
from typing import Literal

from argosy_operator.api.v1alpha1 import Mode, RoleName


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
    def stale_reason(self) -> str:
        """Why older samples are not used. It leaves out their age, which changes every round."""
        return f"Stale: the newest sample is older than three scrape intervals ({self.fresh_s:g} s)"

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
