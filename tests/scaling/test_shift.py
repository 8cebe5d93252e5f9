"""Role flips in the law: a held replica of one role is the first that the other one gets."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.decision import RoleTarget, Rule
from argosy_law.goals import Goals
from argosy_law.observe import RoleSupply
from argosy_law.pace.gates import GATES, Gate, Side, Span, shift_replicas
from argosy_law.record import Kept, kept_of, resumed, text_of
from argosy_law.state import ScalingState, ShiftState, Want
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling import known

NOW, SPAN = 1000.0, Span(hold_s=300.0, dwell_s=390.0)
GATE = {gate.rule: gate for gate in GATES}
BELOW_GOAL, STARTED = GATE[Rule.ATTAINMENT_BELOW_GOAL], GATE[Rule.JUST_STARTED]
PEAK = ShiftState(highs=(Want(NOW - 100, 99),))
"""Both roles together needed more than they have within the hold."""


def side(
    role: RoleName,
    current: int,
    replicas: int,
    needs: int,
    gate: Gate | None = None,
    least: int = 1,
) -> Side:
    return Side(RoleTarget(role, current, replicas, needs, Rule.HOLD, "held"), needs, least, gate)


def after(state: ShiftState, prefill: Side, decode: Side) -> tuple[int, int]:
    _, (one, other) = shift_replicas(state, (prefill, decode), SPAN, NOW)
    return one.replicas, other.replicas


def test_a_held_replica_is_the_first_that_the_other_role_gets() -> None:
    grows = side("decode", 4, 6, 6)
    state, (giver, taker) = shift_replicas(PEAK, (side("prefill", 5, 5, 4), grows), SPAN, NOW)
    assert (giver.replicas, giver.rule) == (4, Rule.ROLE_FLIP)
    assert "autoscaling.roleFlip" in giver.message
    assert taker == grows.target
    assert (state.at, state.to) == (NOW, "decode")
    assert after(PEAK, side("prefill", 4, 6, 6), side("decode", 5, 5, 4)) == (6, 4)


def test_a_role_gives_nothing_that_it_needs_or_the_user_wants() -> None:
    assert after(PEAK, side("prefill", 5, 5, 5), side("decode", 4, 6, 6)) == (5, 6)
    assert after(PEAK, side("prefill", 5, 5, 1, least=5), side("decode", 4, 6, 6)) == (5, 6)
    assert after(PEAK, side("prefill", 5, 4, 1), side("decode", 4, 6, 6)) == (4, 6)


@pytest.mark.parametrize(
    ("ago_s", "to", "gives"),
    [
        (29.9, "decode", False),
        (30.0, "decode", True),
        (389.9, "prefill", False),
        (390.0, "prefill", True),
    ],
)
def test_flips_are_apart_and_further_apart_against_the_last_one(
    ago_s: float, to: RoleName, gives: bool
) -> None:
    state = replace(PEAK, at=NOW - ago_s, to=to)
    pair = (side("prefill", 5, 5, 4), side("decode", 4, 5, 5))
    assert after(state, *pair) == ((4, 5) if gives else (5, 5))


def test_what_both_roles_need_together_is_held() -> None:
    pair = (side("prefill", 6, 6, 3), side("decode", 5, 5, 4))
    held = ShiftState(highs=(Want(NOW - 299.9, 11),))
    assert after(held, *pair) == (6, 5)
    fewer = ShiftState(highs=(Want(NOW - 299.9, 10),))
    state, (prefill, decode) = shift_replicas(fewer, pair, SPAN, NOW)
    assert (prefill.replicas, prefill.rule, decode.replicas) == (5, Rule.ROLE_FLIP, 5)
    assert (state.at, state.highs) == (None, (Want(NOW - 299.9, 10), Want(NOW, 7)))
    over = ShiftState(highs=(Want(NOW - 300, 11),))
    assert after(over, *pair) == (5, 5)


SIDES = st.builds(
    lambda role, current, step, needs, gate: side(role, current, current + step, needs, gate),
    st.just("prefill"),
    st.integers(1, 9),
    st.integers(-1, 4),
    st.integers(1, 12),
    st.sampled_from((None, BELOW_GOAL, STARTED)),
)


@given(SIDES, SIDES, st.integers(0, 30), st.sampled_from((None, 10.0, 60.0, 500.0)))
def test_one_replica_at_most_goes_and_never_one_that_is_needed(
    one: Side, two: Side, high: int, ago_s: float | None
) -> None:
    other = replace(two, target=replace(two.target, role="decode"))
    at = None if ago_s is None else NOW - ago_s
    state = ShiftState((Want(NOW - 100, high),), at, "prefill")
    _, targets = shift_replicas(state, (one, other), SPAN, NOW)
    before = [s.target for s in (one, other)]
    changed = [(s, t) for s, t in zip((one, other), targets, strict=True) if t != s.target]
    assert len(changed) <= 1
    for giver, target in changed:
        assert target.replicas == giver.target.current - 1 >= max(giver.needs, giver.least)
        assert giver.gate is not STARTED
        if not any(t.replicas > t.current for t in before):
            assert sum(t.replicas for t in targets) >= high


def goals(**more: object) -> Goals:
    return replace(known.goals(), role_flip=True, **more)  # type: ignore[arg-type]


def shift_of(law: Goals, gpus: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Prefill that has had a peak of its own, when answers become ten times as long."""
    have = {"prefill": 8, "decode": 2}
    calm = [(known.metrics(at, 8.0, have), have) for at in known.times(20)]
    state, _ = known.play(law, calm)
    prefill = next(role for role in state.roles if role.role == "prefill")
    peak = (Want(known.START + 285, 8), *prefill.holds.highs)
    held = replace(prefill, holds=replace(prefill.holds, highs=peak))
    state = replace(state, roles=tuple(held if r is prefill else r for r in state.roles))
    at = known.times(1, 20)[0]
    seen = known.Observations(
        known.metrics(at, 8.0, have, running=600.0),
        tuple(
            RoleSupply(role, n, n, gpus_per_replica=of)
            for (role, n), of in zip(have.items(), gpus, strict=True)
        ),
    )
    _, decision = known.decide(state, seen, law, at)
    return decision.replicas("prefill"), decision.replicas("decode")


def test_decide_gives_a_held_prefill_replica_to_decode_where_pods_may_flip() -> None:
    kept, grown = shift_of(known.goals())
    assert kept == 8
    assert grown > 2
    assert shift_of(goals()) == (7, grown)
    assert shift_of(goals(), gpus=(1, 2))[0] == 8


def test_the_hold_of_both_and_the_last_flip_outlive_a_restart() -> None:
    shift = ShiftState((Want(NOW - 100, 9), Want(NOW, 7)), NOW - 50, "decode")
    state = ScalingState(valid_since=NOW - 500, last_valid_at=NOW, shift=shift)
    kept = kept_of(text_of(Kept(1, "r", state)))
    assert kept.state.shift == shift
    windows = known.goals().windows
    later = resumed(kept, "r", windows, 300.0, NOW + 200).shift
    by_s = 200 - windows.interval_s
    assert later.highs == (Want(NOW - 100 + by_s, 9), Want(NOW + by_s, 7))
    assert (later.at, later.to) == (NOW - 50 + by_s, "decode")
    assert resumed(kept, "r", windows, 300.0, NOW + 301).shift == ShiftState()
