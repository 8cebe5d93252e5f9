"""What the user wants and allows: SLO, bounds of each role, step limits, windows, GPU budget.

`core.steps.goals` fills it from a ServingDeployment's spec; every scaling law reads it. Values, and
the durations that follow from them and from the pods' cold starts. Durations are seconds, shares
are 0..1. Defaults are those of the spec's fields.
"""

from dataclasses import dataclass, field
from typing import Literal

from argosy_law.observe import FleetMetrics, Mode, Observations, RoleName, RoleSupply


@dataclass(frozen=True, slots=True)
class SLO:
    """`spec.slo`: limits of one request, and how many requests must meet both."""

    ttft_s: float
    """Time to first token."""
    tpot_s: float
    """Time per output token after the first: the mean over one answer."""
    attainment: float = 0.9
    """Wanted share of requests that meet both limits."""


Whose = Literal["object", "namespace", "operator"]
"""Which GPU budget is meant: `gpuBudget.max` of the object, that of its namespace, or that of all
fleets of the operator."""
FirstToken = Literal["AtOnce", "WithinTarget", "Auto"]
"""`slo.firstToken`: whether decode pods hold first tokens, or the law chooses."""
Order = Literal["fifo", "deadline"]
"""Which waiting prompt goes next: the first that came, or by `routing.queue: deadline`."""


@dataclass(frozen=True, slots=True)
class RoleGoal:
    """`spec.roles.<role>.replicas`: bounds that hold at once and over every other rule."""

    role: RoleName
    min: int
    max: int
    gpu_cost_per_hour: float | None = None
    """`spec.roles.<role>.gpuCostPerHour`; None: unknown, so that a GPU costs what others cost."""
    gpu_type: str = ""
    """Name of the GPU type that the role runs on, of `spec.roles.<role>.gpuTypes`; empty: any."""
    profile: "Profile | None" = None
    """Known constants of a replica on that type; None: `Goals.prior`."""
    min_schedule: str = ""
    """Name of the schedule that has raised `min` now; empty: it is that of the spec."""
    max_schedule: str = ""
    """Name of the schedule that has lowered `max` now; empty: it is that of the spec."""
    unscheduled_min: int | None = None
    """`replicas.min`, where a schedule has raised `min`."""

    @property
    def least(self) -> int:
        """What a GPU budget leaves to the role in any case: a schedule gives way to it."""
        return self.min if self.unscheduled_min is None else self.unscheduled_min


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Largest change of one role in one interval (`autoscaling.scaleUp` and `scaleDown`)."""

    up_percent: float = 100.0
    """Share of the replicas that may be added."""
    up_pods: int = 4
    """Up, the larger of `up_percent` and `up_pods` counts: 2 may become 6, and 20 become 40."""
    down_pods: int = 1
    """Down, one replica at a time: each removal is measured before the next."""
    down_percent: float | None = None
    """Share of the replicas that may be removed, rounded down. The larger of the two counts; None:
    `down_pods` alone."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Every duration of a law, from fields of the spec and from nothing else."""

    scrape_s: float = 15.0
    """metrics.scrapeInterval"""
    rate_s: float = 60.0
    """metrics.rateWindow"""
    interval_s: float = 15.0
    """autoscaling.interval: time from one decision to the next."""
    up_hold_s: float = 0.0
    """autoscaling.scaleUp.stabilization"""
    down_hold_s: float = 300.0
    """autoscaling.scaleDown.stabilization"""
    cold_start_s: float = 180.0
    """autoscaling.coldStart: used until starts of pods were measured."""

    @property
    def fresh_s(self) -> float:
        """Age at which a newest sample is stale: two scrapes may fail, the third may not."""
        return 3 * self.scrape_s

    @property
    def stale_reason(self) -> str:
        """Why older samples are not used. It leaves out their age, which changes every round."""
        return f"Stale: the newest sample is older than three scrape intervals ({self.fresh_s:g} s)"

    @property
    def attainment_s(self) -> float:
        """Window over which attainment is measured."""
        return max(self.down_hold_s, 2 * self.rate_s)

    @property
    def lengths_s(self) -> float:
        """Window over which prompt lengths, output lengths and KV transfers are averaged."""
        return 3 * self.rate_s

    @property
    def idle_s(self) -> float:
        """Time without a request after which a fleet is idle; at least one rate window."""
        return max(self.down_hold_s, self.rate_s)

    @property
    def forget_s(self) -> float:
        """Time constant with which learnt capacity is forgotten."""
        return 40 * self.idle_s


@dataclass(frozen=True, slots=True)
class Profile:
    """Constants of one replica, in seconds, from a published fit.

    A prefill of a prompt of L tokens takes prefill_base + per_prompt_token·L +
    per_prompt_token_squared·L². A decode step of n sequences with Σctx tokens of context takes
    decode_base + per_sequence·n + per_context_token·Σctx.
    """

    prefill_base_s: float
    per_prompt_token_s: float
    decode_base_s: float
    per_sequence_s: float
    per_context_token_s: float
    per_prompt_token_squared_s: float = 0.0
    """Attention over the prompt. The simulator uses it; the law learns it as part of the rest."""
    kv_tokens: float = 0.0
    """KV tokens of one replica. 0: unknown, so memory sets no bound until engines report it."""

    def prefill_s(self, tokens: float) -> float:
        """Seconds of a step that prefills one prompt."""
        squared = self.per_prompt_token_squared_s * tokens * tokens
        return self.prefill_base_s + self.per_prompt_token_s * tokens + squared

    def step_s(self, sequences: float, context: float) -> float:
        """Seconds of a decode step of so many sequences with so many tokens of context together."""
        read = self.per_context_token_s * context
        return self.decode_base_s + read + self.per_sequence_s * sequences


@dataclass(frozen=True, slots=True)
class Serving:
    """How requests are served, as far as a fleet's spec says it. None: unknown."""

    order: Order = "fifo"
    """`routing.queue`."""
    step_tokens: int | None = None
    """`engine.maxNumBatchedTokens`: longer prompts are prefilled in chunks. With `auto_steps` the
    most of them."""
    sequences: int | None = None
    """`engine.maxNumSeqs`: most sequences in one step."""
    first_token: FirstToken = "AtOnce"  # noqa: S105 (a moment, not a secret)
    """`slo.firstToken`."""
    pulls_first: bool = False
    """Whether decode pods draw the first token themselves, once they have the prompt's KV, as those
    of vLLM and SGLang do: TTFT then has the transfer and a decode step. Ours pass on the token of
    the prefill pod, and the transfer delays the second one."""
    auto_steps: bool = False
    """Whether the engine chooses the tokens of its steps, up to `step_tokens`. Then the law takes
    the saturation length of its own estimate (`estimate.capacity.auto_step_tokens`)."""

    @property
    def auto_first_token(self) -> bool:
        """Whether the law chooses if first tokens are held."""
        return self.first_token == "Auto"  # noqa: S105 (a moment, not a secret)


@dataclass(frozen=True, slots=True)
class Goals:
    """What the user wants and allows."""

    mode: Mode
    roles: tuple[RoleGoal, ...]
    slo: SLO | None
    """None: there is nothing to size by, and replicas stay at their minimum."""
    windows: Windows = field(default_factory=Windows)
    steps: StepLimits = field(default_factory=StepLimits)
    role_flip: bool = False
    """Whether pods may change between prefill and decode (`autoscaling.roleFlip`)."""
    gpu_budget: int | None = None
    """GPUs that all roles may use together; None: no limit."""
    gpu_cap: int | None = None
    """GPUs that budgets for several fleets leave to this one; None: no such budget."""
    gpu_cap_of: Literal["namespace", "operator"] = "operator"
    """Whose budget that is."""
    policy: Literal["Goodput", "None"] = "Goodput"
    """`None` keeps replicas at their minimum, even with an SLO."""
    zero_after_s: float | None = None
    """`autoscaling.scaleToZero.after`; None: the fleet never goes to zero."""
    control_round_trip_s: float = 0.0
    """Time of a request outside the engines before its first token; taken off the TTFT limit."""
    prior: Profile | None = None
    """Known constants of a replica; None: a guess from the SLO. Both may only add replicas until
    enough was measured."""
    serving: Serving = field(default_factory=Serving)

    @property
    def gpus(self) -> int | None:
        """The smaller of the two GPU limits."""
        return min((n for n in (self.gpu_budget, self.gpu_cap) if n is not None), default=None)

    @property
    def gpus_of(self) -> Whose:
        """Whose limit that is; the object's own if both are equal."""
        own = self.gpu_cap is None or self.gpus == self.gpu_budget
        return "object" if own else self.gpu_cap_of

    def price(self, role: RoleName) -> float:
        """What a GPU of the role costs, in those of the cheapest role; 1 if not all are known."""
        costs = [goal.gpu_cost_per_hour for goal in self.roles]
        known = [cost for cost in costs if cost is not None and cost > 0]
        own = self.role(role).gpu_cost_per_hour
        return own / min(known) if own is not None and len(known) == len(costs) else 1.0

    def role(self, role: RoleName) -> RoleGoal:
        return next(r for r in self.roles if r.role == role)


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that one decision is made from, apart from the law's own state."""

    observations: Observations
    goals: Goals
    slo: SLO
    now: float
    """Seconds since the epoch, on the clock of the samples."""

    @property
    def metrics(self) -> FleetMetrics:
        return self.observations.metrics

    @property
    def windows(self) -> Windows:
        return self.goals.windows


NEWEST = 20
"""Starts that count: enough for a 90th percentile, few enough to follow a faster image."""


def cold_start_s(supply: RoleSupply, windows: Windows) -> float:
    """90th percentile of a role's newest measured starts, in seconds.

    `autoscaling.coldStart` is used until one was measured. The percentile is by nearest rank: of
    20 starts the 18th, so that two slow starts in twenty do not raise it.
    """
    starts = sorted(supply.cold_starts_s[-NEWEST:])
    return starts[int(0.9 * (len(starts) - 1) + 0.5)] if starts else windows.cold_start_s


def forecast_horizon_s(supply: tuple[RoleSupply, ...], windows: Windows) -> float:
    """How far ahead demand is forecast: until a replica that is added now would serve.

    The slowest role's start, the interval until the next decision, and the age of a sample.
    """
    slowest_s = max(cold_start_s(role, windows) for role in supply)
    return slowest_s + windows.interval_s + windows.scrape_s


def removal_hold_s(supply: RoleSupply, windows: Windows) -> float:
    """How long fewer replicas must suffice before one is removed.

    At least a cold start: a replica that is missed takes one to come back, and holds its GPUs
    meanwhile, so that to keep it for that long costs no more than to start it again.
    """
    return max(windows.down_hold_s, cold_start_s(supply, windows))
