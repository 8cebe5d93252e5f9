"""Arithmetic of samples: exact, and cheap however long the windows are."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from argosy_law.estimate.demand import REMEMBERED_BINS
from argosy_law.goals import Windows
from argosy_law.observe import Answered, Idle, Signal, Value
from argosy_law.signals.samples import (
    ENOUGH_TRANSFERS,
    OUTPUTS,
    OUTSTANDING,
    PROMPTS,
    RECEIVED,
    TRANSFERS,
    WAITING,
    Round,
    Series,
    arrival_bins,
    assemble,
    at_time,
)

POINTS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=30).map(
    lambda found: tuple((float(t), float(v)) for t, v in sorted(dict(found).items()))
)


def slowly(points: tuple[tuple[float, float], ...], time: float) -> float:
    if time <= points[0][0]:
        return 0.0
    for (t0, v0), (t1, v1) in pairwise(points):
        if time <= t1:
            return v0 + (v1 - v0) * (time - t0) / (t1 - t0)
    return points[-1][1]


@given(points=POINTS, time=st.floats(-10, 1010))
def test_a_value_between_samples_is_on_the_line_between_them(
    points: tuple[tuple[float, float], ...], time: float
) -> None:
    assert at_time(points, time) == slowly(points, time)


def test_no_more_bins_are_made_than_are_remembered() -> None:
    """A day's hold at a scrape of a second would be 86,400 of them in every record."""
    windows = Windows(scrape_s=1, rate_s=4, down_hold_s=3600)
    series = Series(RECEIVED, {}, tuple((1000.0 + i, 2.0 * i) for i in range(3600)))
    bins = arrival_bins([series], windows, 4600.0)
    assert [b.count for b in bins] == [2.0] * REMEMBERED_BINS
    assert bins[-1].end == 4599.0


def test_what_was_answered_in_an_interval_is_of_those_that_all_three_counters_have() -> None:
    def series(name: str, grows: float, since: float = 0.0) -> Series:
        times = (t for t in (900.0, 915.0, 930.0, 945.0) if t >= since)
        return Series(name, {"pod": "gateway-0"}, tuple((t, t * grows) for t in times))

    counters = (series(f"{PROMPTS}_count", 2), series(f"{PROMPTS}_sum", 1000))
    whole = Round(950.0, (*counters, series(f"{OUTPUTS}_sum", 50)), 1, 1)
    rows = [Answered(end, 30.0, 15_000.0, 750.0) for end in (915.0, 930.0, 945.0)]
    assert list(assemble(whole, Windows()).answered) == rows
    late = Round(950.0, (*counters, series(f"{OUTPUTS}_sum", 50, since=915.0)), 1, 1)
    assert list(assemble(late, Windows()).answered) == rows[1:]
    assert assemble(Round(950.0, counters, 1, 1), Windows()).answered == ()


def transferred(count: float, total_s: float, window_s: float = 180.0) -> Signal:
    """The mean transfer of a decode pod that pulled `count` KV in the window."""
    labels = {"role": "decode", "pod": "decode-0", "side": "receive"}
    series = tuple(
        Series(f"{TRANSFERS}_{part}", labels, ((1000.0 - window_s / 2, 0.0), (1000.0, grown)))
        for part, grown in (("sum", total_s), ("count", count))
    )
    return assemble(Round(1000.0, series, 1, 1), Windows()).kv_transfer_s


def test_the_first_transfers_are_too_few_for_a_mean() -> None:
    """They open connections: charged to TPOT, three slow ones made decode grow from 1 to 3."""
    assert transferred(3, 2.7) == Idle(1000.0)
    assert transferred(ENOUGH_TRANSFERS - 1, 10.0) == Idle(1000.0)
    assert transferred(ENOUGH_TRANSFERS, 0.8) == Value(0.8 / ENOUGH_TRANSFERS, 1000.0)


def outstanding(role: str, *gateways: float, at: float = 1000.0, engine: bool = True) -> Signal:
    """Outstanding prompt tokens of a role whose engine has 100, with so many in each gateway."""
    series = [
        Series(WAITING, {"role": "gateway", "pod": f"gateway-{i}"}, ((at, waiting),))
        for i, waiting in enumerate(gateways)
    ]
    if engine:
        labels = {"role": role, "pod": f"{role}-0"}
        series.append(Series(OUTSTANDING, labels, ((1000.0, 100.0),)))
    taken = assemble(Round(1000.0, tuple(series), 1, 1), Windows())
    return next(r for r in taken.roles if r.role == role).outstanding_prompt_tokens


def test_prompts_that_wait_in_gateways_count_as_those_in_the_engines() -> None:
    assert outstanding("prefill", 30.0, 5.0) == Value(135.0, 1000.0)
    assert outstanding("colocated", 30.0) == Value(130.0, 1000.0)
    assert outstanding("decode", 30.0) == Value(100.0, 1000.0)
