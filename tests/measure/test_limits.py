"""The limits that serve most are found by measuring, and noise is not taken for a difference."""

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from argosy_measure.limits import Limits, Sample, compare, differ, meets, search
from tests.support.virtual import run

SEQS, TOKENS = (8, 16, 32, 64, 128), (512, 1024, 2048)
AXES = {"max_num_seqs": SEQS, "max_num_batched_tokens": TOKENS}
START = Limits(32, 512)


def sample(rate: float, attainment: float = 1.0) -> Sample:
    return Sample(rate, rate / 100, 0.1, 0.02, attainment)


def find(rate_of, *, noise=0.0, start=START, goal=0.0, attainment_of=lambda _: 1.0, seed=0):
    """What a search finds on an engine that needs a minute for each limits, and those it tried."""
    random, tried = Random(seed), []

    async def measure(limits):
        tried.append(limits)
        await asyncio.sleep(60)
        if rate_of(limits) is None:
            return ()
        spread = [1 + noise * random.uniform(-1, 1) for _ in range(3)]
        return tuple(sample(rate_of(limits) * one, attainment_of(limits)) for one in spread)

    return run(search(measure, start, AXES, goal)), tried


def peak(limits: Limits) -> float:
    """Most tokens at 64 sequences and 1024 tokens."""
    return 1000 - 5 * abs(limits.max_num_seqs - 64) - abs(limits.max_num_batched_tokens - 1024) / 8


@given(st.sampled_from(SEQS), st.sampled_from(TOKENS))
def test_the_peak_is_found_from_anywhere_and_nothing_is_measured_twice(seqs, tokens):
    found, tried = find(peak, start=Limits(seqs, tokens))
    assert found.after == Limits(64, 1024)
    assert len(tried) == len(set(tried)) < len(SEQS) * len(TOKENS) + 1


@given(st.integers(0, 10**6), st.floats(0.03, 0.3))
def test_limits_are_only_left_for_better_or_for_smaller_ones(seed, noise):
    found, _ = find(lambda _: 1000.0, noise=noise, seed=seed)
    difference = compare(found.outcomes[found.after], found.outcomes[found.before], 0.0)
    assert (
        found.after == found.before
        or found.after.size < found.before.size
        or (difference.mean > 0 and difference.sure)
    )


def test_the_smaller_limits_win_ties():
    found, _ = find(lambda _: 1000.0, noise=0.0005)
    assert found.after == Limits(8, 512)


def test_smaller_limits_do_not_win_because_noise_hides_what_they_cost():
    """A tenth less is within the noise, but too much to be taken for a tie."""
    found, _ = find(lambda limits: 1000.0 if limits.max_num_seqs >= 32 else 900.0, noise=0.3)
    assert found.after.max_num_seqs >= 32


def test_the_highest_throughput_that_keeps_the_goal_is_chosen():
    found, _ = find(
        lambda limits: 10.0 * limits.max_num_seqs,
        goal=0.9,
        attainment_of=lambda limits: 1.0 if limits.max_num_seqs <= 16 else 0.5,
    )
    assert found.after == Limits(16, 512)


def test_a_share_within_the_limits_that_is_above_the_goal_by_chance_is_no_reason():
    chance = iter([0.7, 0.8, 0.95, 0.75, 0.99, 0.99] + [0.8] * 60)

    async def measure(limits):
        return tuple(sample(1000.0, next(chance)) for _ in range(3))

    found = run(search(measure, START, {"max_num_seqs": (32, 64)}, 0.9))
    assert meets(found.outcomes[Limits(64, 512)], 0.9)
    assert found.after == START


def test_where_nothing_keeps_the_goal_the_limits_that_miss_it_least_are_chosen():
    found, _ = find(
        lambda limits: 10.0 * limits.max_num_seqs,
        goal=0.9,
        attainment_of=lambda limits: 8 / limits.max_num_seqs / 2,
    )
    assert found.after.max_num_seqs == 8
    assert not meets(found.outcomes[found.after], 0.9)


def test_limits_with_which_the_engine_does_not_run_are_never_chosen():
    found, _ = find(lambda limits: None if limits.max_num_seqs > 64 else 10.0 * limits.max_num_seqs)
    assert found.after.max_num_seqs == 64
    assert found.outcomes[Limits(128, 512)] == ()


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=8), st.floats(0.5, 2))
def test_equal_ratios_in_all_repeats_are_a_sure_difference(old, times):
    difference = differ([times * one for one in old], old)
    assert abs(difference.mean - (times - 1)) < 1e-9
    assert difference.high - difference.low < 1e-6


def test_a_single_repeat_tells_nothing():
    assert not differ([2.0], [1.0]).sure
