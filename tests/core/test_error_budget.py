"""The error budget: counted once, honest where nothing was seen, and what it asks for."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.slo import (
    ALERTS,
    SPANS,
    Alert,
    Errors,
    Spent,
    Verdicts,
    _alert,
    lasting,
    spent,
    taken,
)
from tests.scaling import known as rounds
from tests.support.model import Model, fleet

START = 1_700_006_400.0
"""A whole multiple of every slot's length."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
Misses = Callable[[float], float]


def played(
    seconds: float,
    misses: Misses,
    *,
    rate: float = 10.0,
    bin_s: float = MINUTE,
    seen: Misses = lambda _: 1.0,
) -> Errors:
    """Bins of `rate` requests per second; at t seconds the share `misses(t)` of them misses. Those
    where `seen(t)` is 0 are lost."""
    errors, t = Errors(), bin_s
    while t <= seconds:
        if seen(t):
            ended = rate * bin_s
            one = Verdicts(START + t, ended * (1 - misses(t)), ended)
            errors = taken(errors, (one,), bin_s)
        t += bin_s
    return errors


def known(errors: Errors, goal: float = 0.99) -> Spent:
    found = spent(errors, goal)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("burn", "before", "after"),
    [
        ({"1h": 14.5, "5m": 14.5}, "None", "Page"),
        ({"1h": 14.5, "5m": 14.3}, "None", "None"),
        ({"1h": 14.5, "5m": 14.3}, "Page", "Page"),
        ({"1h": 7.3, "5m": 7.3}, "Page", "Page"),
        ({"1h": 14.5, "5m": 7.2}, "Page", "None"),
        ({"1h": 7.2, "5m": 14.5}, "Page", "None"),
        ({"6h": 3.1, "30m": 3.1}, "Page", "Page"),
        ({"6h": 3.1, "30m": 3.0}, "Page", "None"),
        ({"3d": 1.1, "6h": 1.1}, "None", "Ticket"),
        ({"3d": 1.1, "6h": 1.1}, "Page", "Ticket"),
        ({"3d": 0.6, "6h": 0.6}, "Page", "Ticket"),
        ({"3d": 0.6, "6h": 0.6}, "Ticket", "Ticket"),
        ({"3d": 0.6, "6h": 0.6}, "None", "None"),
        ({"3d": 0.6, "6h": 0.5}, "Ticket", "None"),
        ({"1h": 7.3, "5m": 7.3}, "Ticket", "Ticket"),
        ({}, "Page", "None"),
    ],
)  # fmt: skip
def test_an_alert_that_was_there_ends_below_half_of_its_rate(
    burn: dict[str, float], before: Alert, after: Alert
) -> None:
    """At a goal of 99.9 %, where no threshold is capped."""
    found = replace(known(played(HOUR, lambda _: 0.0), 0.999), burn=burn)
    now = replace(found, alert=_asked(burn))
    assert lasting(now, 0.999, before) == after


def _asked(burn: dict[str, float]) -> Alert:
    """What the rates ask for by themselves."""
    for what, rate, long, short in ALERTS:
        if burn.get(long, 0.0) > rate and burn.get(short, 0.0) > rate:
            return what
    return "None"


def test_a_rate_around_the_threshold_is_one_alert() -> None:
    """Half an hour above and half an hour below 6 times what is allowed, for a day."""
    errors, goal = Errors(), 0.999
    plain, held = list[Alert](), list[Alert](["None"])
    for n in range(24 * 60):
        share = 0.006 * (0.8 if n // 30 % 2 else 1.4)
        one = Verdicts(START + 60 * (n + 1), 1000 * (1 - share), 1000.0)
        errors = taken(errors, (one,), MINUTE)
        now = known(errors, goal)
        plain.append(now.alert)
        held.append(lasting(now, goal, held[-1]))
    assert sum(a != b for a, b in pairwise(plain)) > 20
    assert sum(a != b for a, b in pairwise(held)) == 1
    assert held[-1] == "Page"


def test_before_a_request_was_judged_there_is_no_budget() -> None:
    assert spent(Errors(), 0.99) is None


def test_a_constant_share_of_misses_spends_the_budget_at_its_rate() -> None:
    """Goal 99 %, 3 % miss: three times the allowed, in every window and of the whole."""
    found = known(played(4 * DAY, lambda _: 0.03))
    assert found.used == pytest.approx(3.0)
    assert found.burn == {name: pytest.approx(3.0) for name in ("5m", "30m", "1h", "6h", "3d")}
    assert found.seen == pytest.approx(1.0)
    assert found.since == START


@pytest.mark.parametrize(
    ("misses", "alert"),
    [
        (lambda t: 0.16 * (t > 4 * DAY - HOUR - MINUTE), "Page"),
        (lambda t: 0.16 * (t > 4 * DAY - 20 * MINUTE), "None"),  # too short for an hour
        (lambda t: 0.16 * (4 * DAY - HOUR < t < 4 * DAY - 10 * MINUTE), "None"),  # it is over
        (lambda t: 0.07 * (t > 4 * DAY - 6 * HOUR - 5 * MINUTE), "Page"),
        (lambda t: 0.05 * (t > 4 * DAY - 6 * HOUR), "None"),
        (lambda t: 0.012, "Ticket"),
        (lambda t: 0.009, "None"),
    ],
)  # fmt: skip
def test_a_fast_burn_pages_and_a_slow_one_makes_a_ticket(misses: Misses, alert: str) -> None:
    assert known(played(4 * DAY, misses)).alert == alert


def test_a_threshold_above_what_can_burn_is_nine_tenths_of_the_requests() -> None:
    """Two hours of a fleet: six hours are not known yet."""
    assert known(played(2 * HOUR, lambda _: 0.91), 0.9).alert == "Page"
    assert known(played(2 * HOUR, lambda _: 0.89), 0.9).alert == "None"


def test_a_goal_of_everything_has_no_budget_to_spend() -> None:
    found = known(played(HOUR, lambda _: 0.5), 1.0)
    assert (found.used, found.burn, found.alert) == (None, {}, "None")


def test_windows_of_which_half_was_not_seen_have_no_burn_rate() -> None:
    found = known(played(40 * MINUTE, lambda _: 0.0))
    assert set(found.burn) == {"5m", "30m", "1h"}
    assert set(known(played(29 * MINUTE, lambda _: 0.0)).burn) == {"5m", "30m"}
    assert set(known(played(2 * MINUTE, lambda _: 0.0)).burn) == set()


@pytest.mark.parametrize(
    ("window", "seconds", "slot_s"),
    [
        ("5m", 5 * MINUTE, MINUTE),
        ("30m", 30 * MINUTE, MINUTE),
        ("1h", HOUR, MINUTE),
        ("6h", 6 * HOUR, 5 * MINUTE),
        ("3d", 3 * DAY, 3 * HOUR),
    ],
)
def test_a_window_reaches_back_for_its_length_and_at_most_a_slot_more(
    window: str, seconds: float, slot_s: float
) -> None:
    begin = 5 * DAY - seconds
    before = known(played(5 * DAY, lambda t: float(t <= begin - slot_s), bin_s=MINUTE))
    assert before.burn[window] == 0.0
    within = known(played(5 * DAY, lambda t: float(begin < t <= begin + slot_s), bin_s=MINUTE))
    assert within.burn[window] > 0.0


def test_time_that_was_not_seen_is_said_and_counts_neither_as_met_nor_as_missed() -> None:
    found = known(played(10 * HOUR, lambda _: 0.02, seen=lambda t: t <= HOUR or t > 4 * HOUR))
    assert found.seen == pytest.approx(0.7, abs=0.01)
    assert found.used == pytest.approx(2.0)


def test_a_fleet_without_requests_burns_nothing() -> None:
    found = known(played(2 * HOUR, lambda _: 0.0, rate=0.0))
    assert found.used is None
    assert set(found.burn.values()) == {0.0}
    assert found.alert == "None"


def test_a_bin_that_is_seen_again_counts_once() -> None:
    errors = played(HOUR, lambda _: 0.1)
    again = taken(errors, (Verdicts(START + HOUR, 0, 600), Verdicts(START + 30, 0, 600)), 60)
    assert again == errors
    assert taken(errors, (Verdicts(START + HOUR + 60, 600, 600),), 60) != errors


@pytest.mark.parametrize("bad", [nan, inf, -1.0])
def test_counts_that_cannot_be_are_left_out(bad: float) -> None:
    errors = played(HOUR, lambda _: 0.1)
    for one in (Verdicts(START + 2 * HOUR, bad, 10), Verdicts(START + 2 * HOUR, 1, bad)):
        assert taken(errors, (one,), 60) == errors
    assert taken(errors, (Verdicts(nan, 1, 10), Verdicts(START + 2 * HOUR, 11, 10)), 60) == errors


def test_misses_leave_the_budget_after_thirty_days() -> None:
    errors = played(35 * DAY, lambda t: float(t <= DAY), bin_s=900.0, rate=0.01)
    found = known(errors)
    assert found.used == 0.0
    assert found.since >= START + 5 * DAY - 3 * HOUR
    assert [len(slots) for slots in errors.slots] == [
        pytest.approx(back_s / max(slot_s, 900.0), abs=1) for slot_s, back_s in SPANS
    ]


@given(
    st.lists(
        st.tuples(st.floats(1, 1e6), st.floats(0, 1), st.floats(0, 1e4)), min_size=1, max_size=60
    ),
    st.floats(1, 600),
    st.floats(0.5, 0.999),
)
def test_whatever_comes_the_slots_stay_sound_and_the_share_is_that_of_the_newest(
    steps: list[tuple[float, float, float]], scrape_s: float, goal: float
) -> None:
    errors, end = Errors(), START
    for later_s, met, ended in steps:
        end += max(later_s, scrape_s)
        errors = taken(errors, (Verdicts(end, met * ended, ended),), scrape_s)
        assert errors.sound
    found = known(errors, goal)
    assert 0 < found.seen <= 1
    assert found.used is None or -1e-9 <= found.used <= 1 / (1 - goal) + 1e-9
    assert all(-1e-9 <= rate <= 1 / (1 - goal) + 1e-9 for rate in found.burn.values())


def test_errors_that_were_read_back_corrupt_are_not_sound() -> None:
    errors = played(HOUR, lambda _: 0.1)
    assert errors.sound
    assert not replace(errors, end=nan).sound
    assert not replace(errors, slots=errors.slots[:2]).sound
    assert not replace(errors, slots=(((START, 2.0, 1.0, 60.0),), (), ())).sound
    assert not replace(errors, slots=(((START, nan, 1.0, 60.0),), (), ())).sound
    assert not replace(errors, slots=(errors.slots[0] * 2, (), ())).sound


def test_the_record_of_a_decision_leaves_out_what_the_law_does_not_read() -> None:
    """It stands in status, and there may be 160 bins."""
    slo = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}
    model = Model(fleet(slo=slo, roles={"colocated": {"replicas": {"min": 1, "max": 9}}}))
    model.converge()
    model.now += 15
    bins = tuple(Verdicts(model.now - 15 * n, 9.0, 10.0) for n in range(160))
    seen = rounds.metrics(model.now, 60.0, {"colocated": 1})
    model.metrics = replace(seen, verdicts=bins[::-1], misses=(("queue", 9.0),))
    model.memory = replace(model.memory, decide_at=0.0)
    planned = model.round()
    assert planned.draft.scaled
    assert planned.draft.record is not None
    metrics = cast(Any, planned.draft.record["observations"])["metrics"]
    assert (metrics["verdicts"], metrics["misses"]) == ([], [])
    assert model.memory.errors.end == model.now


# --- exact values at the limits -------------------------------------------------------------------


@pytest.mark.parametrize(("later_s", "counts"), [(30.0, False), (30.1, True)])
def test_a_bin_is_new_after_half_a_scrape(later_s: float, counts: bool) -> None:
    first = taken(Errors(), (Verdicts(START + 60, 8.0, 10.0),), 60)
    after = taken(first, (Verdicts(START + 60 + later_s, 1.0, 1.0),), 60)
    assert (after != first) is counts
    assert after.began == START


@pytest.mark.parametrize(
    ("burn", "alert"),
    [
        ({"1h": 14.4, "5m": 99.0}, "None"),
        ({"1h": 99.0, "5m": 14.4}, "None"),
        ({"1h": 14.5, "5m": 14.5}, "Page"),
        ({"6h": 6.1, "30m": 6.1}, "Page"),
        ({"6h": 6.1, "30m": 6.0}, "None"),
        ({"3d": 1.1, "6h": 1.1}, "Ticket"),
        ({"3d": 1.0, "6h": 1.1}, "None"),
        ({"3d": 1.1}, "None"),
        ({"6h": 1.1}, "None"),
        ({}, "None"),
    ],
)
def test_both_windows_must_burn_faster_than_the_threshold(
    burn: dict[str, float], alert: str
) -> None:
    assert _alert(burn, 0.99) == alert
