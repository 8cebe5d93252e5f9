"""Bounds of prefill per decode: the role that is too small grows, and nothing is taken."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.scaling.decision import RoleTarget, Rule
from argosy_operator.core.scaling.goals import Goals, Ratio, RoleGoal, Share, StepLimits
from argosy_operator.core.scaling.pace import ratio
from tests.scaling import known

QUARTER, DOUBLE = Share(1, 4), Share(2, 1)


def targets(prefill: int, decode: int) -> tuple[RoleTarget, ...]:
    return (
        RoleTarget("prefill", 1, prefill, prefill, Rule.DEMAND, "load"),
        RoleTarget("decode", 1, decode, decode, Rule.HOLD, "held"),
    )


def kept(
    prefill: int, decode: int, low: Share | None, high: Share | None, most: int = 1000
) -> tuple[RoleTarget, ...]:
    roles = (RoleGoal("prefill", 1, most), RoleGoal("decode", 1, most))
    goals = replace(known.goals(), ratio=Ratio(low, high), roles=roles)
    return ratio.kept(targets(prefill, decode), goals)


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ((1, 4), (1, 4)),
        ((1, 5), (2, 5)),
        ((2, 8), (2, 8)),
        ((2, 9), (3, 9)),
        ((4, 2), (4, 2)),
        ((5, 2), (5, 3)),
        ((7, 2), (7, 4)),
    ],
)
def test_the_role_that_is_too_small_grows_to_whole_replicas(
    have: tuple[int, int], want: tuple[int, int]
) -> None:
    assert tuple(t.replicas for t in kept(*have, QUARTER, DOUBLE)) == want


def test_the_role_that_grows_says_why_and_the_other_keeps_its_reason() -> None:
    prefill, decode = kept(1, 9, QUARTER, DOUBLE)
    assert (prefill.rule, prefill.demanded) == (Rule.RATIO, 1)
    assert prefill.message == "at least 1 prefill for 4 decode (spec.autoscaling.ratio)"
    assert decode == targets(1, 9)[1]
    prefill, decode = kept(9, 1, QUARTER, DOUBLE)
    assert (decode.replicas, decode.rule) == (5, Rule.RATIO)
    assert decode.message == "at most 2 prefill for 1 decode (spec.autoscaling.ratio)"
    assert prefill == targets(9, 1)[0]


def test_a_ratio_grows_no_role_beyond_its_maximum() -> None:
    assert [t.replicas for t in kept(1, 40, QUARTER, None, most=8)] == [8, 40]
    assert [t.replicas for t in kept(1, 4, QUARTER, None, most=1)] == [1, 4]


def test_one_bound_alone_bounds_one_side() -> None:
    assert [t.replicas for t in kept(1, 40, None, DOUBLE)] == [1, 40]
    assert [t.replicas for t in kept(40, 1, QUARTER, None)] == [40, 1]


def test_a_colocated_fleet_has_no_ratio() -> None:
    goals = known.goals(roles=("colocated",))
    one = (RoleTarget("colocated", 1, 3, 3, Rule.DEMAND, ""),)
    assert ratio.kept(one, replace(goals, ratio=Ratio(QUARTER, DOUBLE))) == one


counts = st.integers(0, 100)
shares = st.builds(Share, st.integers(1, 9), st.integers(1, 9))


@given(counts, counts, shares, shares)
def test_both_bounds_hold_up_to_one_replica_and_nothing_is_taken(
    prefill: int, decode: int, one: Share, other: Share
) -> None:
    low, high = sorted((one, other), key=lambda share: Fraction(share.prefill, share.decode))
    after = [t.replicas for t in kept(prefill, decode, low, high)]
    assert after[0] >= prefill
    assert after[1] >= decode
    assert after[0] * low.decode >= decode * low.prefill
    assert after[1] * high.prefill >= prefill * high.decode
    assert after[0] in (prefill, -(-decode * low.prefill // low.decode))
    assert after[1] in (decode, -(-prefill * high.decode // high.prefill))


def decided(goals: Goals, rates: list[float], have: known.Have) -> list[str]:
    """What the law answers and says to these rates, round by round."""
    state, said = None, []
    for now, rate in zip(known.times(len(rates)), rates, strict=True):
        state, decision = known.play(goals, [(known.metrics(now, rate, have), have)], state)
        have = {role: decision.replicas(role) for role in have}
        said.append(decision.message)
    return said


NEUTRAL = replace(
    known.goals(),
    ratio=Ratio(Share(1, 1000), Share(1000, 1)),
    steps=StepLimits(down_percent=1.0),
)
"""Limits that bind nothing."""


@given(
    rates=st.lists(st.sampled_from([0.5, 2.0, 8.0, 30.0, 60.0]), min_size=1, max_size=30),
    prefill=st.integers(1, 20),
    decode=st.integers(1, 20),
)
def test_limits_that_do_not_bind_change_no_decision(
    rates: list[float], prefill: int, decode: int
) -> None:
    have = {"prefill": prefill, "decode": decode}
    assert decided(NEUTRAL, rates, have) == decided(known.goals(), rates, have)


def test_the_law_keeps_the_ratio_and_a_budget_holds_over_it() -> None:
    have: known.Have = {"prefill": 1, "decode": 6}
    rounds = [(known.metrics(now, 30.0, have), have) for now in known.times(8)]
    goals = replace(known.goals(), ratio=Ratio(Share(2, 1), None))
    _, free = known.play(goals, rounds)
    decode = free.replicas("decode")
    assert free.replicas("prefill") == 2 * decode > known.target(free, "prefill").demanded
    assert known.target(free, "prefill").rule is Rule.RATIO
    assert "Ratio: at least 2 prefill for 1 decode (spec.autoscaling.ratio)" in free.message
    _, bound = known.play(replace(goals, gpu_budget=2 * decode), rounds)
    assert bound.replicas("prefill") + bound.replicas("decode") <= 2 * decode
    assert known.target(bound, "prefill").rule is Rule.GPU_BUDGET
