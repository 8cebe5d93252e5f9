"""What the law remembers from one decision to the next. Written and read by `validity` and `decide`.

It begins empty after a restart of the operator, so that every hold begins anew.
"""

from dataclasses import dataclass, field, replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.estimate.capacity import Estimate
from argosy_operator.core.scaling.estimate.demand import DemandState
from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.pace.holds import Memory


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the gateways measured last of a request; None: never yet.

    Tokens of a prompt and of an answer (means), E[L²]/E[L]² of prompts, seconds of a KV transfer.
    """

    prompt: float | None = None
    variation: float | None = None
    output: float | None = None
    transfer_s: float | None = None

    @property
    def measured(self) -> bool:
        return self.prompt is not None and self.output is not None


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a role's engines said last, over all its ready pods; None: never yet. A gauge that is
    unknown now counts as it was: with nothing in its place it would read as zero."""

    running: float | None = None
    outstanding_prompt_tokens: float | None = None
    kv_capacity_tokens: float | None = None
    """Of one replica."""


@dataclass(frozen=True, slots=True)
class RoleState:
    """Memory of one role: learnt constants, last gauges, headroom of the feedback, holds."""

    role: RoleName
    estimate: Estimate
    gauges: Gauges = field(default_factory=Gauges)
    headroom: float = 1.0
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Memory between two decisions; begins empty after a restart, so that holds begin anew.

    `valid_since`: since when the metrics have been true without a gap; `last_valid_at`: last true round;
    `busy_at`: last round that was not idle; `lengths`: last measured lengths.
    """

    valid_since: float | None = None
    last_valid_at: float | None = None
    busy_at: float | None = None
    lengths: Lengths = field(default_factory=Lengths)
    demand: DemandState = field(default_factory=DemandState)
    roles: tuple[RoleState, ...] = ()


def restarted(state: ScalingState) -> ScalingState:
    """The state after the clock of the samples went back: what was learnt stays, and everything
    that is counted from a time begins anew, as after a restart of the operator."""
    return replace(
        state,
        valid_since=None,
        last_valid_at=None,
        busy_at=None,
        demand=DemandState(residuals=state.demand.residuals),
        roles=tuple(
            replace(role, memory=Memory(), estimate=replace(role.estimate, at=None))
            for role in state.roles
        ),
    )


def idle(state: ScalingState, windows: Windows, now: float) -> bool:
    return state.busy_at is not None and now - state.busy_at >= windows.idle_s
