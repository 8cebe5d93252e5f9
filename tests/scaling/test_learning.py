"""What one round teaches: when metrics are valid, what a state may hold, gauges and headroom."""

from collections.abc import Callable
from dataclasses import replace
from math import exp, inf, nan
from typing import Any

import pytest

from argosy_law.decide import decide
from argosy_law.estimate import capacity
from argosy_law.estimate.capacity import PRESETS
from argosy_law.estimate.demand import DemandState, Forecast
from argosy_law.estimate.season import SeasonState
from argosy_law.goals import Goals, Inputs
from argosy_law.observe import (
    LARGEST,
    FleetMetrics,
    Observations,
    RoleSupply,
    StepDelta,
)
from argosy_law.signals import learning
from argosy_law.state import (
    Gauges,
    HoldState,
    Lengths,
    RoleState,
    ScalingState,
    ShiftState,
    Want,
)
from tests.scaling import known
from tests.scaling.known import START, USUAL, goals

NOW = START
GOALS = goals()
STILL_VALID_S = GOALS.windows.fresh_s + GOALS.windows.interval_s
"""The longest time between two rounds of valid metrics."""


def inputs(metrics: FleetMetrics | None = None, law: Goals = GOALS, **supply: Any) -> Inputs:
    metrics = metrics or known.metrics(NOW, 1.0, {"prefill": 1, "decode": 1})
    pods = tuple(
        replace(RoleSupply(goal.role, 1, 1), **supply.get(goal.role, {})) for goal in law.roles
    )
    return Inputs(Observations(metrics, pods), law, USUAL, NOW)


def state_of(*roles: RoleState, **more: Any) -> ScalingState:
    roles = roles or tuple(
        RoleState(goal.role, capacity.begin(goal.role, GOALS.prior, USUAL)) for goal in GOALS.roles
    )
    return replace(ScalingState(roles=roles), **more)


# --- the time of valid metrics --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("away_s", "since"),
    [(STILL_VALID_S, NOW - 500), (STILL_VALID_S + 0.1, NOW)],
)
def test_metrics_stay_valid_over_two_scrapes_and_an_interval(away_s: float, since: float) -> None:
    before = state_of(valid_since=NOW - 500, last_valid_at=NOW - away_s, busy_at=NOW - 400)
    after = learning.mark_valid(before, inputs())
    assert (after.valid_since, after.last_valid_at, after.busy_at) == (since, NOW, NOW)


@pytest.mark.parametrize(("ahead_s", "kept"), [(45.0, True), (45.1, False)])
def test_a_clock_that_goes_back_by_more_than_three_scrapes_begins_anew(
    ahead_s: float, kept: bool
) -> None:
    demand = DemandState(end=NOW, counts=(5.0,), residuals=((1.0, 2.0),))
    before = state_of(valid_since=NOW - 500, last_valid_at=NOW + ahead_s, demand=demand)
    after = learning.mark_valid(before, inputs())
    assert after.demand.counts == ((5.0,) if kept else ())
    assert after.demand.residuals == ((1.0, 2.0),)
    assert after.valid_since == (NOW - 500 if kept else NOW)


def test_a_state_that_cannot_be_right_gives_way_to_the_prior_and_says_so() -> None:
    spoilt = state_of(valid_since=NOW - 500, last_valid_at=NOW - 15, busy_at=nan)
    after = learning.mark_valid(spoilt, inputs())
    assert after.valid_since == NOW
    assert [role.estimate.renewed for role in after.roles] == [True, True]
    right = learning.mark_valid(replace(spoilt, busy_at=None), inputs())
    assert [role.estimate.renewed for role in right.roles] == [False, False]


def test_a_role_that_is_new_begins_at_its_prior_with_the_memory_of_its_pods() -> None:
    fresh = learning.mark_valid(ScalingState(), inputs())
    assert [role.role for role in fresh.roles] == ["prefill", "decode"]
    for role in fresh.roles:
        assert role.estimate == capacity.begin(role.role, GOALS.prior, USUAL)
        assert role.gauges == Gauges(kv_capacity_tokens=known.LLAMA.kv_tokens)
        assert role.gpu_type == ""
    guessed = learning.mark_valid(ScalingState(), inputs(law=goals(prior=None)))
    assert guessed.roles[1].gauges == Gauges()
    unsized = goals(prior=replace(known.LLAMA, kv_tokens=0.0))
    assert learning.mark_valid(ScalingState(), inputs(law=unsized)).roles[0].gauges == Gauges()


def test_on_another_gpu_type_a_role_begins_at_that_types_prior_with_its_holds() -> None:
    other = next(p for name, p in PRESETS.items() if p != known.LLAMA)
    law = replace(
        GOALS, roles=(replace(GOALS.roles[0], gpu_type="l40s", profile=other), GOALS.roles[1])
    )
    holds = HoldState(highs=(Want(NOW, 4),))
    prefill, decode = state_of().roles
    before = state_of(replace(prefill, holds=holds, aim=0.95, headroom=0.9), decode)
    changed, same = learning.mark_valid(before, inputs(law=law)).roles
    assert changed.estimate == capacity.begin("prefill", other, USUAL)
    assert (changed.holds, changed.aim, changed.gpu_type) == (holds, 0.95, "l40s")
    assert changed.headroom == 1.0
    assert same == decode
    again = learning.mark_valid(state_of(changed, same), inputs(law=law))
    assert again.roles == (changed, same)


# --- what a state may hold ------------------------------------------------------------------------

Spoil = Callable[[ScalingState], ScalingState]


def of_role(**fields: Any) -> Spoil:
    return lambda state: replace(state, roles=(state.roles[0], replace(state.roles[1], **fields)))


def of_part(part: str, **fields: Any) -> Spoil:
    return lambda state: replace(state, **{part: replace(getattr(state, part), **fields)})


SPOILT: dict[str, Spoil] = {
    **{
        f"{field} of the lengths": of_part("lengths", **{field: -1.0})
        for field in ("prompt", "variation", "output", "transfer_s", "cached", "context")
    },
    "a bucket of prompts": of_part("lengths", prompts=((10.0, nan),)),
    "an edge of prompts": of_part("lengths", prompts=((-10.0, 1.0),)),
    "a bucket of answers": of_part("lengths", answers=((10.0, inf),)),
    **{
        f"{field} of the gauges": of_role(gauges=Gauges(**{field: -1.0}))
        for field in ("running", "outstanding_prompt_tokens", "kv_capacity_tokens")
    },
    "a count": of_part("demand", counts=(1.0, -1.0)),
    "the rate of a forecast": of_part("demand", pending=(Forecast(NOW, nan),)),
    "the time of a forecast": of_part("demand", pending=(Forecast(inf, 1.0),)),
    "a residual": of_part("demand", residuals=((-1.0, 1.0),)),
    "the weight of a residual": of_part("demand", residuals=((1.0, nan),)),
    "the end of the counts": of_part("demand", end=nan),
    "when the load rose": of_part("demand", rose_at=inf),
    "the season": of_part("season", trend_error=-1.0),
    "since when metrics are valid": lambda state: replace(state, valid_since=nan),
    "when they were valid last": lambda state: replace(state, last_valid_at=-inf),
    "when requests came": lambda state: replace(state, busy_at=inf),
    "a want of both roles": of_part("shift", highs=(Want(NOW, -1),)),
    "the time of a want of both roles": of_part("shift", highs=(Want(nan, 1),)),
    "when a pod changed its role": of_part("shift", at=inf),
    "a want": of_role(holds=HoldState(highs=(Want(NOW, -1),))),
    "a low want": of_role(holds=HoldState(lows=(Want(NOW, -1),))),
    "the time of a want": of_role(holds=HoldState(highs=(Want(inf, 1),))),
    "the time of a low want": of_role(holds=HoldState(lows=(Want(nan, 1),))),
    "when a role was raised": of_role(holds=HoldState(raised_at=nan)),
    "an aim": of_role(aim=nan),
    "a low headroom": of_role(headroom=0.849),
    "a high headroom": of_role(headroom=1.101),
    "an estimate": of_role(
        estimate=replace(capacity.begin("decode", GOALS.prior, USUAL), rows=-1)
    ),
}  # fmt: skip


def full() -> ScalingState:
    """A state with a number in every place."""
    prefill, decode = state_of().roles
    holds = HoldState((Want(NOW, 3),), (Want(NOW, 2),), NOW - 5)
    gauges = Gauges(4.0, 5.0, 6.0)
    return ScalingState(
        valid_since=NOW - 9,
        last_valid_at=NOW - 3,
        busy_at=NOW - 4,
        lengths=Lengths(9.0, 1.0, 8.0, 0.1, 0.5, 7.0, ((10.0, 1.0),), ((20.0, 2.0),)),
        demand=DemandState(NOW, (3.0,), (Forecast(NOW, 2.0),), ((1.0, 2.0),), NOW - 6),
        roles=(
            replace(prefill, gauges=gauges, holds=holds, aim=0.0, headroom=0.85),
            replace(decode, gauges=gauges, holds=holds, aim=1.0, headroom=1.1),
        ),
        season=SeasonState(rates=(1.0, None)),
        shift=ShiftState((Want(NOW, 5),), NOW - 7, "decode"),
    )


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_one_number_that_cannot_be_right_spoils_a_state(spoil: Spoil) -> None:
    assert not learning.sound(spoil(full()))


# --- gauges, capacity and headroom ----------------------------------------------------------------


def test_gauges_are_scaled_up_for_pods_that_are_ready_and_silent() -> None:
    metrics = known.metrics(
        NOW, 1.0, {"prefill": 2, "decode": 3}, running=12.0, outstanding_prompt_tokens=90.0
    )
    ready = {"prefill": {"ready": 1}, "decode": {"ready": 4}}
    prefill, decode = learning.learn(state_of(), inputs(metrics, **ready)).roles
    assert prefill.gauges == Gauges(12.0, 90.0, known.LLAMA.kv_tokens), "never scaled down"
    assert decode.gauges == Gauges(16.0, 120.0, known.LLAMA.kv_tokens)
    none = replace(metrics, roles=tuple(replace(r, pods_reporting=0) for r in metrics.roles))
    assert learning.learn(state_of(), inputs(none, **ready)).roles[1].gauges.running == 12.0
    many = {"decode": {"ready": int(LARGEST)}}
    assert learning.learn(state_of(), inputs(metrics, **many)).roles[1].gauges.running == LARGEST


def test_during_a_rollout_what_is_known_becomes_a_guess_again() -> None:
    rows = learning.learn(state_of(), inputs()).roles
    assert [(role.estimate.rows, role.estimate.steps) for role in rows] == [(1, 10.0)] * 2
    rolling = learning.learn(state_of(*rows), inputs(decode={"mixed": True})).roles
    assert [(role.estimate.rows, role.estimate.steps) for role in rolling] == [(0, 0.0)] * 2
    assert all(role.estimate.at == NOW for role in rolling), "rows are taken all the same"


def decode_steps(pod: str, at: float, slowness: float, sequences: float) -> StepDelta:
    """Steps of a pod whose steps take so many times as long as those of the preset."""
    each_s = known.LLAMA.decode_base_s + known.LLAMA.per_sequence_s * sequences
    return StepDelta(at, 100 * slowness * each_s, 100.0, decode_sequences=100 * sequences, pod=pod)


def rolled(
    state: ScalingState, at: float, rows: tuple[StepDelta, ...], revision: str, *old: str
) -> ScalingState:
    """The state after a round in which the decode pods report these steps."""
    metrics = known.metrics(at, 1.0, {"prefill": 1, "decode": 1})
    roles = tuple(
        replace(role, steps=rows if role.role == "decode" else ()) for role in metrics.roles
    )
    supply = {"revision": revision, "old_pods": old, "mixed": bool(old)}
    seen = inputs(replace(metrics, roles=roles), decode=supply, prefill={"mixed": bool(old)})
    return learning.learn(state, replace(seen, now=at))


def half_rolled(slowness: float = 2.0) -> ScalingState:
    """After ten minutes with pods of two revisions: the old one has more sequences."""
    state = rolled(state_of(), NOW, (), "1")
    for tick in range(1, 41):
        at = NOW + 15 * tick
        rows = (
            decode_steps("old", at, 1.0, 40.0 + tick % 7),
            decode_steps("new", at, slowness, 10.0 + tick % 5),
        )
        state = rolled(state, at, rows, "2", "old")
    return state


def test_in_a_rollout_each_revision_is_learnt_from_its_own_pods() -> None:
    decode = half_rolled().roles[1]
    assert decode.former is not None
    for estimate, slowness in ((decode.former, 1.0), (decode.estimate, 2.0)):
        step = estimate.theta[0] + 10 * estimate.theta[2]
        whole = known.LLAMA.decode_base_s + 10 * known.LLAMA.per_sequence_s
        assert step == pytest.approx(slowness * whole, rel=0.05)
        assert estimate.theta[2] == pytest.approx(slowness * known.LLAMA.per_sequence_s, rel=0.5)


def test_while_two_revisions_serve_a_role_has_the_size_that_the_slower_one_needs() -> None:
    at, state = NOW + 615, half_rolled(1.2)
    prefill, decode = state.roles
    swapped = replace(decode, estimate=decode.former or decode.estimate, former=decode.estimate)
    quick = replace(decode, estimate=swapped.estimate)

    def demanded(role: RoleState) -> int:
        metrics = known.metrics(at, 40.0, {"prefill": 4, "decode": 4})
        roles = tuple(replace(one, steps=()) for one in metrics.roles)
        supply = {"revision": "2", "old_pods": ("old",), "mixed": True}
        seen = inputs(replace(metrics, roles=roles), decode=supply, prefill={"mixed": True})
        learnt = replace(state, roles=(prefill, role))
        _, decision = decide(learnt, seen.observations, GOALS, at)
        return next(t.demanded for t in decision.targets if t.role == "decode")

    assert demanded(decode) == demanded(swapped) > demanded(quick)


def test_after_a_rollout_the_old_revision_is_forgotten() -> None:
    after = rolled(half_rolled(), NOW + 615, (), "2").roles[1]
    assert (after.former, after.revision) == (None, "2")


def test_an_edit_that_is_taken_back_finds_what_was_known() -> None:
    state = half_rolled()
    back = rolled(state, NOW + 615, (), "1", "new").roles[1]
    before = state.roles[1]
    assert before.former is not None
    assert back.estimate.theta == before.former.theta
    assert back.former is not None
    assert back.former.theta == before.estimate.theta


def test_a_state_with_a_broken_former_estimate_is_not_sound() -> None:
    state = half_rolled()
    decode = state.roles[1]
    assert learning.sound(state)
    broken = replace(decode, former=replace(decode.estimate, theta=(nan, 0.0, 0.0, 0.0)))
    assert not learning.sound(replace(state, roles=(state.roles[0], broken)))


def verdicts(
    *, ttft: float = 1.0, tpot: float = 1.0, both: float = 1.0, scored: float = 100.0
) -> FleetMetrics:
    metrics = known.metrics(
        NOW, 1.0, {"prefill": 1}, attainment=both, ttft_attainment=ttft, tpot_attainment=tpot
    )
    return replace(metrics, scored=scored)


def corrected(role: Any, metrics: FleetMetrics, **fields: Any) -> float:
    state = RoleState(role, capacity.begin(role, None, USUAL), **fields)
    return learning.corrected_headroom(state, metrics, 0.9)


def test_each_role_is_corrected_by_its_own_limit() -> None:
    """Aimed at 0.95, half of what may be missed: an error of 0.05 grows it by exp(0.03 · 0.05)."""
    assert corrected("prefill", verdicts(ttft=0.9)) == pytest.approx(exp(0.03 * 0.05))
    assert corrected("prefill", verdicts(tpot=0.9)) == pytest.approx(exp(0.03 * -0.03))
    assert corrected("decode", verdicts(tpot=0.9)) == pytest.approx(exp(0.03 * 0.05))
    assert corrected("decode", verdicts(ttft=0.9)) == pytest.approx(exp(0.03 * -0.03))
    assert corrected("colocated", verdicts(both=0.9)) == pytest.approx(exp(0.03 * 0.05))
