"""What is learnt from counters and arrivals, and what holds it back."""

from math import exp
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decision import Rule, bounded
from argosy_law.estimate import capacity, demand
from argosy_law.estimate.demand import DemandState
from argosy_law.goals import SLO, RoleGoal, StepLimits, Windows
from argosy_law.observe import Bin, StepDelta
from argosy_law.pace import gates
from argosy_law.state import HoldState

WINDOWS = Windows(scrape_s=1, rate_s=5, interval_s=2, down_hold_s=15, cold_start_s=6)
GOALS = SLO(0.6, 0.04)
BASE, SEQUENCE, CONTEXT = 28.8e-3, 0.2825e-3, 9.4e-8


def decode_row(at: float, n: float, context: float, *, slower: float = 1.0) -> StepDelta:
    steps = 50.0
    seconds = slower * steps * (BASE + SEQUENCE * n + CONTEXT * n * context)
    return StepDelta(
        at, seconds, steps, decode_sequences=n * steps, context_tokens=n * context * steps
    )


def taught(rows: list[StepDelta], start: capacity.Estimate | None = None) -> capacity.Estimate:
    estimate = start or capacity.begin("decode", None, GOALS)
    for row in rows:
        estimate = capacity.learn(estimate, (row,), WINDOWS)
    return estimate


def loads(count: int, *, begin: int = 0, slower: float = 1.0) -> list[StepDelta]:
    dice = Random(3)
    return [
        decode_row(2.0 * (begin + i), dice.uniform(1, 40), dice.uniform(200, 4000), slower=slower)
        for i in range(count)
    ]


def step_s(estimate: capacity.Estimate, n: float, context: float) -> float:
    replica = capacity.replica(estimate, 0.0)
    return replica.base_s + n * replica.sequence_s(context)


def test_steps_time_is_learnt_from_a_guess_within_five_percent() -> None:
    estimate = taught(loads(60))
    for n, context in ((1, 300), (20, 1200), (40, 4000)):
        assert step_s(estimate, n, context) == pytest.approx(
            BASE + SEQUENCE * n + CONTEXT * n * context, rel=0.05
        )


def poisson(dice: Random, mean: float) -> int:
    limit, product, n = exp(-mean), dice.random(), 0
    while product > limit:
        product *= dice.random()
        n += 1
    return n


def seen(counts: list[float]) -> demand.Demand:
    bins = tuple(Bin(float(i + 1), c) for i, c in enumerate(counts))
    state = demand.append_bins(DemandState(), bins, 1.0)
    return demand.estimate_demand(state, WINDOWS, 9.0, float(len(counts)))[1]


def test_a_fourfold_step_is_seen_in_two_bins() -> None:
    found = seen([3.0] * 45 + [12.0] * 2)
    assert found.bins == 2
    assert found.rate == 12.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0.5, 12))
def test_poisson_noise_is_rarely_taken_for_a_change(seed: int, rate: float) -> None:
    """Forty estimates of a steady rate: few of them look at less than ten bins."""
    dice = Random(seed)
    counts = [float(poisson(dice, rate)) for _ in range(120)]
    short = sum(seen(counts[: 80 + i]).bins < 10 for i in range(40))
    assert short <= 10


@given(counts=st.lists(st.floats(0, 1e6), max_size=60))
def test_the_forecast_is_finite_and_never_negative(counts: list[float]) -> None:
    found = seen(counts)
    assert 0 <= found.planned < 1e8


LIMITS = StepLimits(up_percent=100, up_pods=4, down_pods=1)


def held_after(*wanted: tuple[float, int], up_s: float = 0.0, down_s: float = 15.0) -> HoldState:
    state = HoldState()
    for at, replicas in wanted:
        state = gates.record_wants(state, replicas, replicas, at, gates.HoldWindows(up_s, down_s))
    return state


def test_the_most_wanted_within_the_hold_counts() -> None:
    held = held_after((0, 5), (10, 2))
    assert gates.apply_holds(held, 5, Rule.DEMAND, None, LIMITS) == (5, Rule.HOLD)
    free = held_after((0, 5), (10, 2), (15.1, 2))
    assert gates.apply_holds(free, 5, Rule.DEMAND, None, LIMITS) == (4, Rule.STEP_LIMIT)
    assert gates.apply_holds(free, 3, Rule.DEMAND, None, LIMITS) == (2, Rule.DEMAND)


@pytest.mark.parametrize(
    ("have", "percent", "left"),
    [
        (100, None, 99),
        (100, 10.0, 90),
        (109, 10.0, 99),
        (15, 10.0, 14),
        (5, 10.0, 4),
        (3, 100.0, 1),
    ],
)
def test_down_takes_the_larger_of_pods_and_percent_rounded_down(
    have: int, percent: float | None, left: int
) -> None:
    limits = StepLimits(down_percent=percent)
    assert gates.apply_holds(held_after((0, 1)), have, Rule.DEMAND, None, limits) == (
        left,
        Rule.STEP_LIMIT if left > 1 else Rule.DEMAND,
    )


def test_the_users_bounds_hold_over_every_hold() -> None:
    goal = RoleGoal("decode", 2, 4)
    assert bounded(9, Rule.HOLD, goal) == (4, Rule.MAX_REPLICAS)
    assert bounded(1, Rule.HOLD, goal) == (2, Rule.MIN_REPLICAS)
    assert bounded(3, Rule.HOLD, goal) == (3, Rule.HOLD)


def test_a_ramp_is_planned_for_when_a_new_replica_serves_and_at_most_1_6_times_as_much() -> None:
    """The rate grows by 4.56 % a bin, and a replica that is added now serves nine bins later."""
    ramp = [150.0] * 40 + [150.0 * exp(0.0456 * i) for i in range(14)]
    assert seen(ramp).forecast == pytest.approx(ramp[-1] * exp(0.0456 * 9.5), rel=0.1)
    steep = [150.0] * 40 + [150.0 * exp(0.09 * i) for i in range(14)]
    assert seen(steep).forecast == pytest.approx(1.6 * steep[-1], rel=0.12)
