"""What is learnt from counters and arrivals, and what holds it back."""

from math import exp
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decision import Rule, bounded
from argosy_law.estimate import capacity, demand
from argosy_law.estimate.capacity import PRESETS
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


def test_a_prompts_time_is_learnt_from_prefill_steps() -> None:
    dice, estimate = Random(5), capacity.begin("prefill", None, GOALS)
    for i in range(60):
        length = dice.uniform(100, 3000)
        row = StepDelta(2.0 * i, 10 * (4e-3 + 1.1e-4 * length), 10.0, 10 * length, 10.0)
        estimate = capacity.learn(estimate, (row,), WINDOWS)
    assert capacity.replica(estimate, 0).prefill_s(1500) == pytest.approx(0.169, rel=0.05)


def long_prompts(count: int, seed: int) -> list[StepDelta]:
    """Prefill of prompts with up to 90,000 tokens, in chunks of 2048, about 12 s of steps a row.

    A step takes longer the further into its prompt it is, which no constant describes.
    """
    dice, rows, left, begin = Random(seed), list[StepDelta](), 0, 0
    for number in range(1, count + 1):
        seconds, steps, tokens = 0.0, 0, 0
        while seconds < 12:
            if left == 0:
                left, begin = int(min(dice.lognormvariate(8.9, 1.1), 90_000)) + 1, 0
            part = min(left, 2048)
            seconds += 0.004 + part * (1.07e-4 + 1e-9 * (2 * begin + part))
            steps, tokens, left, begin = steps + 1, tokens + part, left - part, begin + part
        rows.append(StepDelta(15.0 * number, seconds, steps, tokens, steps))
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_steps_of_long_prompts_are_never_taken_for_several_times_as_long(seed: int) -> None:
    """Most steps are full, so that base and time per token are known by their sum alone."""
    estimate = capacity.begin("prefill", None, SLO(8.0, 0.08))
    windows = Windows(scrape_s=15, rate_s=60, interval_s=15, down_hold_s=300, cold_start_s=90)
    for row in long_prompts(200, seed):
        estimate = capacity.learn(estimate, (row,), windows)
        base, per_token, _, _ = estimate.theta
        if estimate.learnt:
            assert 0.2 < base + 2048 * per_token < 0.4  # from 0.22 to 0.41 by the place in a prompt
    assert min(estimate.theta) >= 0


@pytest.mark.parametrize("prior", [None, PRESETS["llama-70b-h100-tp4"]])
def test_a_prior_alone_is_never_enough_to_remove_capacity(prior: object) -> None:
    estimate = capacity.begin("decode", prior, GOALS)  # type: ignore[arg-type]
    assert not estimate.learnt
    assert not taught(loads(capacity.ENOUGH_ROWS - 1), estimate).learnt
    assert taught(loads(capacity.ENOUGH_ROWS), estimate).learnt


def test_a_single_outlier_changes_nothing_and_a_changed_machine_is_believed() -> None:
    before = taught(loads(60))
    after = taught(loads(1, begin=60, slower=10), before)
    assert after.theta == before.theta
    changed = taught(loads(60, begin=60, slower=2), before)
    assert step_s(changed, 20, 1200) == pytest.approx(
        2 * (BASE + SEQUENCE * 20 + CONTEXT * 20 * 1200), rel=0.1
    )


def test_a_row_is_taken_once() -> None:
    rows = loads(5)
    once = taught(rows)
    assert capacity.learn(once, tuple(rows), WINDOWS) == once


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


def test_a_steady_rate_is_averaged_over_all_that_is_remembered() -> None:
    found = seen([4.0] * 120)
    assert found.bins == 120
    assert found.rate == 4.0


def test_a_gap_forgets_what_was_before_it() -> None:
    bins = tuple(Bin(float(i), 5.0) for i in range(1, 10))
    state = demand.append_bins(DemandState(), bins, 1.0)
    assert demand.append_bins(state, (Bin(20.0, 1.0),), 1.0).counts == (1.0,)


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


def test_up_waits_for_the_least_within_its_own_hold() -> None:
    early = held_after((0, 1), (4, 6), up_s=5)
    assert gates.apply_holds(early, 1, Rule.DEMAND, None, LIMITS)[0] == 1
    later = held_after((0, 1), (4, 6), (6, 6), up_s=5)
    assert gates.apply_holds(later, 1, Rule.DEMAND, None, LIMITS) == (5, Rule.STEP_LIMIT)


def test_up_takes_the_larger_of_percent_and_pods() -> None:
    most = held_after((0, 100))
    assert gates.apply_holds(most, 2, Rule.DEMAND, None, LIMITS) == (6, Rule.STEP_LIMIT)
    assert gates.apply_holds(most, 20, Rule.DEMAND, None, LIMITS) == (40, Rule.STEP_LIMIT)


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


def test_a_reason_to_keep_is_named_and_only_stops_the_way_down() -> None:
    assert gates.apply_holds(
        held_after((0, 1)), 3, Rule.DEMAND, Rule.ATTAINMENT_BELOW_GOAL, LIMITS
    ) == (
        3,
        Rule.ATTAINMENT_BELOW_GOAL,
    )
    assert gates.apply_holds(
        held_after((0, 4)), 3, Rule.DEMAND, Rule.ATTAINMENT_BELOW_GOAL, LIMITS
    ) == (
        4,
        Rule.DEMAND,
    )


def test_the_users_bounds_hold_over_every_hold() -> None:
    goal = RoleGoal("decode", 2, 4)
    assert bounded(9, Rule.HOLD, goal) == (4, Rule.MAX_REPLICAS)
    assert bounded(1, Rule.HOLD, goal) == (2, Rule.MIN_REPLICAS)
    assert bounded(3, Rule.HOLD, goal) == (3, Rule.HOLD)


def test_a_bin_that_leaps_up_counts_with_less_than_it_shows() -> None:
    found = seen([150.0] * 40 + [300.0])
    assert (found.bins, found.rate) == (1, 300.0)
    assert found.forecast == pytest.approx(300.0 - found.error)
    first = seen([9.0])
    assert first.forecast == pytest.approx(9.0 + 0.6 * 3.0)


def test_a_steady_rate_is_planned_with_a_part_of_its_error_and_no_growth() -> None:
    found = seen([4.0] * 120)
    assert found.forecast == pytest.approx(4.0 + 0.6 * found.error)


def bins_of(counts: list[float]) -> DemandState:
    state = demand.append_bins(
        DemandState(), tuple(Bin(float(i + 1), c) for i, c in enumerate(counts)), 1.0
    )
    return demand.estimate_demand(state, WINDOWS, 9.0, float(len(counts)))[0]


def test_when_the_load_last_rose_is_remembered() -> None:
    assert bins_of([150.0] * 60).rose_at is None
    assert bins_of([150.0] * 60 + [300.0] * 5).rose_at == 60.0
    assert bins_of([300.0] * 60 + [150.0] * 5).rose_at is None
    ramp = [150.0] * 40 + [150.0 * exp(0.0456 * i) for i in range(14)]
    assert bins_of(ramp).rose_at == 54.0


def test_a_ramp_is_planned_for_when_a_new_replica_serves_and_at_most_1_6_times_as_much() -> None:
    """The rate grows by 4.56 % a bin, and a replica that is added now serves nine bins later."""
    ramp = [150.0] * 40 + [150.0 * exp(0.0456 * i) for i in range(14)]
    assert seen(ramp).forecast == pytest.approx(ramp[-1] * exp(0.0456 * 9.5), rel=0.1)
    steep = [150.0] * 40 + [150.0 * exp(0.09 * i) for i in range(14)]
    assert seen(steep).forecast == pytest.approx(1.6 * steep[-1], rel=0.12)
