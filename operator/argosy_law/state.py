"""What the law remembers from one decision to the next.

`signals.validity` and `decide` write and read it; `core.snapshot.snapshot` keeps it between rounds.
It is empty after a restart of the operator, so that every hold starts again.
"""

from dataclasses import dataclass, field, replace

from argosy_law.estimate.capacity import Estimate
from argosy_law.estimate.demand import DemandState
from argosy_law.estimate.longer import AnsweredState
from argosy_law.estimate.season import SeasonState
from argosy_law.goals import Windows
from argosy_law.observe import Buckets, RoleName


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the gateways and engines last measured of one request. None: never measured."""

    prompt: float | None = None
    """Mean tokens of a prompt."""
    variation: float | None = None
    """E[L²]/E[L]² of the prompts' lengths; 1 if all are equally long."""
    output: float | None = None
    """Mean tokens of an answer."""
    transfer_s: float | None = None
    """Mean seconds of one KV transfer from prefill to decode."""
    cached: float | None = None
    """Share of the prompts' tokens that prefix caches have, 0..1."""
    context: float | None = None
    """Mean tokens of context of a sequence in a decode step."""
    prompts: Buckets = ()
    """Requests by the length of their prompts."""
    answers: Buckets = ()
    """Requests by the length of their answers."""

    @property
    def measured(self) -> bool:
        """Whether an answer has ended since the start, so that both lengths are known."""
        return self.prompt is not None and self.output is not None


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a role's engines last reported, scaled up to all its ready pods. None: never reported.

    A gauge that is unknown now keeps its last value, because an absent one would read as zero.
    """

    running: float | None = None
    """Sequences in flight."""
    outstanding_prompt_tokens: float | None = None
    """Prompt tokens that are queued or being prefilled."""
    kv_capacity_tokens: float | None = None
    """KV tokens of one replica."""


@dataclass(frozen=True, slots=True)
class Want:
    """How many replicas were wanted at one time (seconds since the epoch)."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class HoldState:
    """Past wants of one role within its two hold windows, oldest first."""

    highs: tuple[Want, ...] = ()
    """For going down: wants that no later one reaches. The first is the window's maximum."""
    lows: tuple[Want, ...] = ()
    """For going up: wants that no later one undercuts. The first is the window's minimum."""
    raised_at: float | None = None
    """When this role was last scaled up; None if never."""


@dataclass(frozen=True, slots=True)
class ShiftState:
    """What is remembered of both roles together, where pods may change their role."""

    highs: tuple[Want, ...] = ()
    """What both wanted within the hold and no later sum reaches, oldest first."""
    at: float | None = None
    """When a replica last was to change its role; None: never."""
    to: RoleName | None = None
    """The role that it was for."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """What the law has chosen where `slo.firstToken` is Auto."""

    holds: bool = False
    """Whether decode pods hold first tokens."""
    other_since: float | None = None
    """Since when the other choice has been the better one; None: it is not."""


@dataclass(frozen=True, slots=True)
class RoleState:
    """What is remembered about one role."""

    role: RoleName
    estimate: Estimate
    """Learnt constants of one replica."""
    gauges: Gauges = field(default_factory=Gauges)
    headroom: float = 1.0
    """Factor on the planned load, corrected by measured attainment."""
    aim: float | None = None
    """Share of requests that should meet this role's limit, 0..1; None: not sized yet."""
    holds: HoldState = field(default_factory=HoldState)
    gpu_type: str = ""
    """The GPU type whose replicas `estimate` is about; empty: any."""
    revision: str = ""
    """The revision whose pods `estimate` is about; empty: not known."""
    former: Estimate | None = None
    """In a rollout, what was learnt of the pods of the revision before."""
    former_revision: str = ""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Memory of our law. Times are seconds since the epoch; None: not since the start."""

    valid_since: float | None = None
    """Start of the unbroken time of valid metrics: a full hold must pass before a scale-down."""
    last_valid_at: float | None = None
    """The last round with valid metrics."""
    busy_at: float | None = None
    """The last round with arrivals."""
    lengths: Lengths = field(default_factory=Lengths)
    demand: DemandState = field(default_factory=DemandState)
    roles: tuple[RoleState, ...] = ()
    season: SeasonState = field(default_factory=SeasonState)
    shift: ShiftState = field(default_factory=ShiftState)
    first_tokens: FirstTokens = field(default_factory=FirstTokens)
    answered: AnsweredState = field(default_factory=AnsweredState)


def restarted(state: ScalingState) -> ScalingState:
    """The state after the clock of the samples went back.

    What was learnt stays. Everything that counts from a time starts again, as after a restart of
    the operator.
    """
    return replace(
        state,
        valid_since=None,
        last_valid_at=None,
        busy_at=None,
        answered=AnsweredState(),
        demand=DemandState(residuals=state.demand.residuals),
        season=replace(state.season, pending=()),
        shift=ShiftState(),
        first_tokens=replace(state.first_tokens, other_since=None),
        roles=tuple(
            replace(
                role,
                holds=HoldState(),
                estimate=replace(role.estimate, at=None),
                former=role.former and replace(role.former, at=None),
            )
            for role in state.roles
        ),
    )


def idle(state: ScalingState, windows: Windows, now: float) -> bool:
    """Whether no request has arrived for a whole idle window."""
    return state.busy_at is not None and now - state.busy_at >= windows.idle_s
