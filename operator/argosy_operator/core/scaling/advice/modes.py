"""Would the other mode need fewer GPUs for the same SLO? Advice that nothing applies.

Both modes are sized by the law's own models, for the load that is planned for, with the constants
that engines showed. `core.reconcile.targets.ask` keeps the `Modes` between rounds, `core.status`
shows what they say. One mode is advised when it needs less at the 95th percentile of a day.
"""

from dataclasses import dataclass, replace
from math import inf

from argosy_operator.api.v1alpha1 import Mode
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.goals import Inputs
from argosy_operator.core.scaling.signals import lengths
from argosy_operator.core.scaling.size.joint import Demanded, fewest, reach_of
from argosy_operator.core.scaling.size.model import Limits, Model, model_of
from argosy_operator.core.scaling.size.work import Replica
from argosy_operator.core.scaling.state import RoleState, ScalingState

EVERY_S = 60.0
"""How often both modes are sized."""
SLOT_S, DAY_S = 900.0, 86_400.0
"""The largest need of each slot is kept, for a day."""
ENOUGH_SLOTS = 88
"""Of the 96 slots of a day, how many must have been seen before one mode is advised."""
QUANTILE = 0.95
SAVES, STAYS = 0.15, 0.10
"""A mode is advised when it saves this share of the GPUs, and no longer when it saves less than the
second one. TaiChi (2025) and DistServe (2024) find differences of 10 to 100 %."""


@dataclass(frozen=True, slots=True)
class Need:
    """GPUs of each mode for one load; infinite where no number meets the SLO."""

    colocated: float
    disaggregated: float

    def of(self, mode: Mode) -> float:
        return self.colocated if mode == "colocated" else self.disaggregated


@dataclass(frozen=True, slots=True)
class Modes:
    """What both modes needed within the last day."""

    at: float | None = None
    """When they were sized last, seconds since the epoch."""
    slots: tuple[tuple[float, Need], ...] = ()
    """Start of a slot and the largest needs in it, oldest first."""
    advised: Mode | None = None
    """The mode that is advised; None while it is the fleet's own, or too little was seen."""

    @property
    def hours(self) -> float:
        """Hours of the last day that were seen."""
        return len(self.slots) * SLOT_S / 3600

    @property
    def usual(self) -> Need | None:
        """The 95th percentile of the day's needs, by nearest rank; None before the first."""
        if not self.slots:
            return None
        rank = min(int(QUANTILE * len(self.slots)), len(self.slots) - 1)
        needs = [need for _, need in self.slots]
        return Need(
            sorted(need.colocated for need in needs)[rank],
            sorted(need.disaggregated for need in needs)[rank],
        )


def need_of(state: ScalingState, inputs: Inputs, rate: float) -> Need | None:
    """GPUs of each mode at `rate` requests per second.

    None while lengths or capacity are guessed, and where the replicas of prefill and decode differ:
    then nothing is known of a replica that does both.
    """
    roles = {role.role: role for role in state.roles}
    sizes = {supply.gpus_per_replica for supply in inputs.observations.supply}
    known = state.lengths.measured and all(role.estimate.learnt for role in state.roles)
    if rate <= 0 or not known or len(sizes) != 1 or not sizes - {0}:
        return None
    prefill, decode, both = _replicas(roles.get("prefill"), roles.get("decode"), state, inputs)
    work = lengths.work(state.lengths, inputs.metrics)
    slo = inputs.slo
    limits = Limits(
        ttft_s=slo.ttft_s - inputs.goals.control_round_trip_s,
        tpot_s=slo.tpot_s,
        goal=slo.attainment,
        pause_s=state.lengths.transfer_s or 0.0,
        order=inputs.goals.serving.order,
    )
    (gpus,) = sizes
    apart = (model_of("prefill", prefill, work, limits), model_of("decode", decode, work, limits))
    together = (model_of("colocated", both, work, limits),)
    return Need(_gpus(together, rate, limits, gpus), _gpus(apart, rate, limits, gpus))


def _replicas(
    prefill: RoleState | None, decode: RoleState | None, state: ScalingState, inputs: Inputs
) -> tuple[Replica, Replica, Replica]:
    """A prefill, a decode and a colocated replica, with the constants of those that there are."""

    def replica(role: RoleState) -> Replica:
        kv_tokens = role.gauges.kv_capacity_tokens or 0.0
        return capacity.replica(role.estimate, kv_tokens, inputs.goals.serving)

    if prefill is None or decode is None:
        both = replica(state.roles[0])
        return both, both, both
    computes, generates = replica(prefill), replica(decode)
    both = replace(
        generates,
        # A step with prompts and decodes takes the longer of the two bases.
        base_s=max(computes.base_s, generates.base_s),
        per_prompt_token_s=computes.per_prompt_token_s,
    )
    return computes, generates, both


def _gpus(models: tuple[Model, ...], rate: float, limits: Limits, gpus: int) -> float:
    """GPUs of the fewest replicas; infinite if no number meets the goal."""
    if reach_of(models).both < limits.goal:
        return inf
    return float(gpus * sum(fewest(tuple(Demanded(m, rate, gpus) for m in models), limits.goal)))


def with_need(modes: Modes, need: Need | None, own: Mode, now: float) -> Modes:
    """The modes with one more need, and whether another mode is advised then."""
    kept = tuple(slot for slot in modes.slots if slot[0] > now - DAY_S)
    if need is not None:
        start = now - now % SLOT_S
        if kept and kept[-1][0] >= start:
            start, before = kept[-1]
            most = Need(
                max(before.colocated, need.colocated),
                max(before.disaggregated, need.disaggregated),
            )
            kept, need = kept[:-1], most
        kept = (*kept, (start, need))
    after = Modes(now, kept, modes.advised)
    return replace(after, advised=_advised(after, own))


def _advised(modes: Modes, own: Mode) -> Mode | None:
    other: Mode = "disaggregated" if own == "colocated" else "colocated"
    usual = modes.usual
    if usual is None or usual.of(other) == inf:
        return None
    saves = STAYS if modes.advised == other else SAVES
    seen_enough = modes.advised == other or len(modes.slots) >= ENOUGH_SLOTS
    less = usual.of(other) <= (1 - saves) * usual.of(own)
    return other if less and seen_enough else None


def in_words(modes: Modes, own: Mode) -> str | None:
    """A sentence for status; None while nothing is known."""
    usual = modes.usual
    if usual is None:
        return None
    figures = f"colocated {_shown(usual.colocated)}, disaggregated {_shown(usual.disaggregated)}"
    day = f"at the 95th percentile of {_span(modes.hours)}"
    if modes.advised is not None:
        return (
            f"spec.mode {modes.advised} would need fewer GPUs for the same SLO: {figures}, {day}. "
            "Nothing is changed: set spec.mode to follow it"
        )
    if len(modes.slots) < ENOUGH_SLOTS:
        return f"{figures}, {day}; a mode is advised after a day"
    return f"spec.mode {own} stays the choice: {figures}, {day}"


def _span(hours: float) -> str:
    return f"{min(hours, 24):.0f} h" if hours >= 1 else f"{hours * 60:.0f} min"


def _shown(gpus: float) -> str:
    return "cannot meet the SLO" if gpus == inf else f"{gpus:.0f} GPUs"
