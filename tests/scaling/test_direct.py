"""What gateways say when they are asked directly: seen earlier, believed no more, counted once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.goals import Windows
from argosy_law.signals.gateways import AHEAD_S, FASTEST, Reading, with_readings
from argosy_law.signals.samples import (
    RECEIVED,
    WAITING,
    Round,
    Series,
    assemble,
)

SCRAPED = 1_000_005.0
"""The last scrape, at a whole multiple of 15 s."""
AT = SCRAPED + 5
"""When Prometheus evaluated the round."""
WINDOWS = Windows()


def counted(pod, name, *values, **labels):
    """One value a scrape, the last one at SCRAPED."""
    times = [SCRAPED - 15 * k for k in range(len(values) - 1, -1, -1)]
    labels = {"pod": pod, "role": "gateway", **labels}
    return Series(name, labels, tuple(zip(times, map(float, values), strict=True)))


def gateway(pod="g-1", accepted=(0, 10, 20, 30), shed=(0, 0, 0, 0), waiting=(0, 0, 0, 100)):
    return (
        counted(pod, RECEIVED, *accepted, outcome="accepted"),
        counted(pod, RECEIVED, *shed, outcome="shed"),
        counted(pod, WAITING, *waiting),
    )


def said(pod="g-1", at=AT, accepted=30.0, shed=0.0, waiting=100.0):
    return Reading(pod, at, accepted, shed, waiting)


def a_round(*series, ready=("g-1",)):
    return Round(AT, series, len(ready), len(ready), frozenset(ready))


def newest(taken, pod="g-1"):
    """Time and value of the newest samples, in the order of `gateway`."""
    return [one.samples[-1] for one in taken.series if one.labels["pod"] == pod]


def test_a_reading_is_one_more_sample_of_each_counter():
    taken = with_readings(a_round(*gateway()), [said(accepted=75, shed=5, waiting=900)], 0.0)
    assert newest(taken) == [(AT, 75.0), (AT, 5.0), (AT, 900.0)]
    assert [len(one.samples) for one in taken.series] == [5, 5, 5]
    assert taken.at == AT


def test_what_arrived_since_the_last_scrape_is_seen_and_counts_once():
    before = assemble(a_round(*gateway()), WINDOWS)
    taken = with_readings(a_round(*gateway()), [said(accepted=90, at=SCRAPED + 15)], 0.0)
    after = assemble(taken, WINDOWS)
    assert [b.count for b in before.bins] == [10, 10, 10]
    assert [b.count for b in after.bins] == [10, 10, 10, 60]
    assert after.bins[:-1] == before.bins
    # The scrape that follows shows the same counter: nothing is added for what was read before.
    scraped = gateway(accepted=(0, 10, 20, 30, 90), shed=(0,) * 5, waiting=(0,) * 5)
    moved = tuple(
        replace(one, samples=tuple((at + 15, value) for at, value in one.samples))
        for one in scraped
    )
    later = Round(AT + 15, moved, 1, 1, frozenset({"g-1"}))
    assert assemble(later, WINDOWS).bins == after.bins


@pytest.mark.parametrize(
    "reading",
    [
        said(at=SCRAPED),
        said(at=SCRAPED - 1, accepted=40),
        said(accepted=29),
        said(accepted=31, shed=-1),
        said(accepted=float("nan")),
        said(accepted=float("inf")),
        said(waiting=float("nan")),
        said(waiting=-1),
        said(at=float("nan")),
        said(at=float("inf")),
        said(at=AT + AHEAD_S + 1, accepted=40),
        said(at=1.5e55),
        said(accepted=30 + FASTEST * 5 + 1),
        said(pod="g-9", accepted=40),
    ],
    ids=str,
)
def test_what_cannot_be_or_is_older_changes_nothing(reading):
    taken = a_round(*gateway())
    assert with_readings(taken, [reading], 0.0) == taken


def test_a_lower_counter_waits_for_prometheus_to_say_that_the_gateway_began_anew():
    """Else the whole counter would count again: the reading may also be from before the scrape."""
    for reading in (said(accepted=29.9), said(shed=0, accepted=2)):
        taken = with_readings(a_round(*gateway()), [reading], 0.0)
        assert assemble(taken, WINDOWS) == assemble(a_round(*gateway()), WINDOWS)


def test_a_gateway_that_does_not_answer_counts_as_prometheus_has_it():
    taken = a_round(*gateway("g-1"), *gateway("g-2"), ready=("g-1", "g-2"))
    read = with_readings(taken, [said("g-1", accepted=900, at=SCRAPED + 15)], 0.0)
    assert newest(read, "g-2") == newest(taken, "g-2")
    before, after = (assemble(one, WINDOWS) for one in (taken, read))
    assert after.bins == before.bins, "no bin of which a part is missing"


@given(
    st.lists(
        st.builds(
            Reading,
            st.sampled_from(["g-1", "g-2", ""]),
            st.floats(allow_nan=True) | st.floats(SCRAPED - 60, AT + 60),
            st.floats(allow_nan=True) | st.floats(0, 1e4),
            st.floats(allow_nan=True) | st.floats(0, 1e3),
            st.floats(allow_nan=True) | st.floats(0, 1e5),
        ),
        max_size=4,
    ),
    st.floats(-100, 100),
)
def test_whatever_a_gateway_says_no_request_that_prometheus_counted_is_lost(readings, skew_s):
    taken = a_round(*gateway("g-1"), *gateway("g-2"), ready=("g-1", "g-2"))
    read = with_readings(taken, readings, skew_s)
    before, after = assemble(taken, WINDOWS), assemble(read, WINDOWS)
    assert read.at >= taken.at
    counts = {b.end: b.count for b in after.bins}
    assert all(counts[b.end] == pytest.approx(b.count) for b in before.bins if b.end in counts)
    assert all(b.count >= 0 for b in after.bins)
    assert after.silent_gateways == () or read.at - SCRAPED > WINDOWS.fresh_s
