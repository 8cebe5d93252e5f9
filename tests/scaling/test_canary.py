"""A canary's verdict: what is lost, what is won, and what the samples of gateways must show."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.canary import (
    BIN_S,
    FAULTS,
    LONGEST_S,
    Bin,
    Tally,
    Verdict,
    compare,
    counts_by_revision,
    read_bins,
)
from argosy_law.signals.samples import VERDICTS, Series

LEVEL = 0.05
FOR_BINS = 60
"""A quarter of an hour."""
Rate = Callable[[int], float]
"""Share of requests that miss, by bin."""


def draw(rng: random.Random, count: int, share: float) -> int:
    """How many of so many are of that share; of many, by the normal distribution."""
    if count < 40:
        return sum(rng.random() < share for _ in range(count))
    drawn = rng.gauss(count * share, (count * share * (1 - share)) ** 0.5)
    return min(count, max(0, round(drawn)))


def tally(rng: random.Random, mean: float, misses: float, clump: int) -> Tally:
    """Requests of a bin; `clump` that follow each other have the same fate."""
    count = draw(rng, round(mean * 10), 0.1)
    missed = min(count, clump * draw(rng, -(-count // clump), misses))
    return Tally(count - missed, missed)


def canary(
    seed: int, new: Rate, old: Rate, *, per_bin: float = 30, share: float = 0.1, clump: int = 1
) -> Iterator[Bin]:
    rng = random.Random(seed)
    for at in range(FOR_BINS * 4):
        yield Bin(
            tally(rng, per_bin * share, new(at), clump),
            tally(rng, per_bin * (1 - share), old(at), clump),
        )


def lost_after(bins: Iterator[Bin]) -> int | None:
    """Bins after which it is lost; None if it never is in an hour."""
    seen = list(bins)
    if compare(seen, level=LEVEL, ended=False).verdict is not Verdict.LOST:
        return None
    low, high = 0, len(seen)
    while high - low > 1:
        middle = (low + high) // 2
        lost = compare(seen[:middle], level=LEVEL, ended=False).verdict is Verdict.LOST
        low, high = (low, middle) if lost else (middle, high)
    return high


def steady(misses: float) -> Rate:
    return lambda _: misses


def burst(at: int) -> float:
    """Everything misses in one bin of six."""
    return 0.95 if at % 6 == 0 else 0.03


@pytest.mark.parametrize("per_bin", [5, 30, 300])
@pytest.mark.parametrize(("rate", "clump"), [(steady(0.05), 1), (burst, 1), (steady(0.1), 20)])
def test_an_equal_engine_loses_in_no_more_canaries_than_the_level(rate, clump, per_bin):
    """Tested at each of 240 bins, with bursts that both get, and with fates that are shared."""
    seeds = range(200 if per_bin < 300 else 40)
    lost = [s for s in seeds if lost_after(canary(s, rate, rate, per_bin=per_bin, clump=clump))]
    assert len(lost) <= LEVEL * len(seeds)


@pytest.mark.parametrize(("misses", "bins"), [(1.0, 12), (0.5, 30), (0.25, 120)])
@pytest.mark.parametrize("per_bin", [15, 150])
def test_each_of_20_canaries_that_miss_the_slo_is_caught(misses, bins, per_bin):
    """1.5 or 15 of its requests in a bin, beside an engine that meets it for 95 of 100."""
    caught = [
        lost_after(canary(s, steady(misses), steady(0.05), per_bin=per_bin)) for s in range(20)
    ]
    assert None not in caught
    assert sorted(caught)[10] <= bins


def test_few_requests_of_a_broken_engine_are_enough():
    seen = [Bin(Tally(0, 1), Tally(9, 0))] * 6
    assert compare(seen[:5], level=LEVEL, ended=False).verdict is Verdict.UNDECIDED
    assert compare(seen, level=LEVEL, ended=False).verdict is Verdict.LOST


def test_one_bin_loses_nothing_however_many_requests_it_has():
    """A pod that compiles a kernel, or starts with an empty cache, stalls all of them at once."""
    good, bad = Bin(Tally(30, 0), Tally(300, 0)), Bin(Tally(0, 3000), Tally(300, 0))
    found = compare([good, bad, *[good] * 40], level=LEVEL, ended=True)
    assert found.verdict is not Verdict.LOST


def test_what_is_lost_stays_lost():
    bad, good = Bin(Tally(0, 3), Tally(27, 0)), Bin(Tally(3, 0), Tally(27, 0))
    assert compare([bad] * 6 + [good] * 500, level=LEVEL, ended=True).verdict is Verdict.LOST


@pytest.mark.parametrize("misses", [0.0, 0.05])
def test_an_equal_engine_wins_at_the_end_or_when_it_has_shown_enough(misses):
    at_the_end = 0
    for seed in range(20):
        seen = list(canary(seed, steady(misses), steady(misses)))
        first = seen[:FOR_BINS]
        assert compare(first, level=LEVEL, ended=False).verdict is Verdict.UNDECIDED
        at_the_end += compare(first, level=LEVEL, ended=True).verdict is Verdict.WON
        assert compare(seen, level=LEVEL, ended=True).verdict is Verdict.WON
    assert at_the_end > 10


def test_an_engine_that_is_worse_than_tolerated_does_not_win():
    for seed in range(20):
        bins = list(canary(seed, steady(0.2), steady(0.05)))[:FOR_BINS]
        assert compare(bins, level=LEVEL, ended=True).verdict is not Verdict.WON


def test_few_requests_leave_it_undecided():
    assert compare([], level=LEVEL, ended=True).verdict is Verdict.UNDECIDED
    few = [Bin(Tally(1, 0), Tally(9, 0))] * 20
    assert compare(few, level=LEVEL, ended=True).verdict is Verdict.UNDECIDED
    assert compare(few * 4, level=LEVEL, ended=True).verdict is Verdict.WON


def test_bins_in_which_one_revision_has_no_verdicts_count_for_neither():
    both = [Bin(Tally(5, 1), Tally(50, 2))] * 4
    alone = [Bin(Tally(0, 9), Tally()), Bin(Tally(), Tally(0, 90))]
    assert compare(both + alone * 50, level=LEVEL, ended=True) == compare(
        both, level=LEVEL, ended=True
    )


counts = st.builds(Tally, st.integers(0, 10**6), st.integers(0, 10**6))


@given(st.lists(st.builds(Bin, counts, counts), max_size=40), st.booleans())
def test_any_counts_give_a_verdict_and_a_smaller_level_loses_no_more(bins, ended):
    strict = compare(bins, level=0.01, ended=ended)
    mild = compare(bins, level=0.2, ended=ended)
    assert strict.wealth == mild.wealth >= 1
    assert strict.verdict is not Verdict.LOST or mild.verdict is Verdict.LOST
    assert strict.worst >= mild.worst or not strict.new.count or not strict.old.count


# What gateways count.

START = 1_000_000 * BIN_S


def series(
    values: dict[int, float] | list[float],
    revision: str = "",
    *,
    pod: str = "g",
    name: str = VERDICTS,
    miss: bool = False,
) -> Series:
    """A counter by the number of the interval."""
    labels = {"pod": pod, "role": "gateway"}
    if name == VERDICTS:
        labels |= {"ttft": "miss" if miss else "ok", "tpot": "ok"}
    if revision:
        labels["revision"] = revision
    found = values if isinstance(values, dict) else dict(enumerate(values))
    return Series(name, labels, tuple((START + BIN_S * n + 3, v) for n, v in found.items()))


def bins(*found: Series, since: float = START) -> list[Bin]:
    return read_bins(found, "new", since=since, bin_s=BIN_S)


OLD = series([0, 9, 18, 27, 36], "old")


def test_verdicts_and_faults_are_of_their_revision_and_several_gateways_add_up():
    found = bins(
        OLD,
        series([0, 2, 2, 2, 2], "old", miss=True),
        series([5, 6, 7, 8, 9], "new"),
        series([0, 0, 1, 1, 1], "new", name=FAULTS),
        series([3, 3, 3, 3, 13], "new", pod="h"),
        series([0, 100, 200, 300, 400]),
    )
    assert found == [
        Bin(Tally(1, 0), Tally(9, 2)),
        Bin(Tally(1, 1), Tally(9, 0)),
        Bin(Tally(1, 0), Tally(9, 0)),
        Bin(Tally(11, 0), Tally(9, 0)),
    ]


def test_several_old_revisions_are_one():
    assert bins(OLD, series([0, 1, 2, 3, 4], "older"))[0].old == Tally(10, 0)


def test_an_interval_in_which_a_gateway_began_anew_counts_for_neither_revision():
    began = bins(OLD, series([5, 6, 0, 1, 2], "new"))
    assert began == [Bin(Tally(1, 0), Tally(9, 0))] * 3
    other = series([0, 1, 2, 3, 4], "new", pod="h")
    assert [one.new.met for one in bins(OLD, series([5, 6, 0, 1, 2], "new"), other)] == [2, 1, 2, 2]


def test_intervals_without_a_sample_count_for_neither():
    gap = {0: 0.0, 1: 9.0, 4: 36.0, 5: 45.0}
    new = {0: 0.0, 1: 1.0, 4: 4.0, 5: 5.0}
    assert bins(series(gap, "old"), series(new, "new")) == [Bin(Tally(1, 0), Tally(9, 0))] * 2


def test_what_was_counted_before_the_canary_or_long_after_is_left_out():
    new = series([0, 1, 2, 3, 4], "new")
    assert len(bins(OLD, new, since=START + 2 * BIN_S)) == 3
    assert bins(OLD, new, since=START - LONGEST_S - BIN_S) == []


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_numbers_that_no_counter_has_are_left_out(wrong):
    assert bins(series([0, 9, wrong, 27, 36], "old")) == []


def test_a_gateway_of_an_older_release_has_no_revisions():
    old = series([0, 9, 18])
    assert not counts_by_revision([old])
    assert bins(old) == []
    assert counts_by_revision([old, OLD])


@given(
    st.lists(
        st.builds(
            series,
            st.lists(st.one_of(st.integers(0, 50), st.floats()), max_size=8),
            st.sampled_from(["new", "old", ""]),
            pod=st.sampled_from("gh"),
            name=st.sampled_from([VERDICTS, FAULTS]),
            miss=st.booleans(),
        ),
        max_size=8,
    )
)
def test_nothing_negative_comes_of_any_samples(found):
    for one in bins(*found):
        assert min(one.new.met, one.new.missed, one.old.met, one.old.missed) >= 0
