"""What the law has learnt outlives the operator: it decides the same, from bounded bytes."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.estimate.demand import PENDING, REMEMBERED_BINS, RESIDUALS, Forecast
from argosy_law.record import (
    MOST_BYTES,
    VERSION,
    Kept,
    UnusableError,
    kept_of,
    resumed,
    text_of,
)
from argosy_law.slo import SPANS, Errors
from argosy_law.state import (
    DemandState,
    HoldState,
    Lengths,
    ScalingState,
    Want,
)
from tests.scaling import known, ramp
from tests.scaling.closed import Run
from tests.scaling.known import EVERY_S, START, goals, target, times

HAVE: known.Have = {"prefill": 10, "decode": 10}
LAW = goals()
HOLD_S = 120.0
"""A longer pause begins the holds again. The hold of `LAW` itself lasts 60 s."""
PAUSE_S = 90.0
"""Longer than what misses no decision, and shorter than `HOLD_S`."""


@cache
def run(seed: int) -> Run:
    return ramp.play(seed)


@cache
def taught(ticks: int = 60) -> ScalingState:
    """A state of a steady load that ten replicas of each role are too many for."""
    state = None
    for now in times(ticks):
        state, _ = known.play(LAW, [(known.metrics(now, 24.0, HAVE), HAVE)], state)
    assert state is not None
    return state


LAST = times(60)[-1]


def kept(state: ScalingState, revision: str = "aa") -> Kept:
    return Kept(VERSION, revision, state, (("prefill", 31.5),))


def again(state: ScalingState, now: float, revision: str = "aa") -> ScalingState:
    """The state after a restart at `now`."""
    return resumed(kept_of(text_of(kept(state))), revision, LAW.windows, HOLD_S, now)


def decided(state: ScalingState, now: float):
    seen = known.metrics(now, 24.0, HAVE)
    return known.play(LAW, [(seen, HAVE)], state)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_after_a_restart_at_any_tick_of_a_ramp_the_law_decides_as_it_would_have(seed: int) -> None:
    for tick in run(seed).ticks:
        read = kept_of(text_of(kept(tick.before)))
        state = resumed(read, "aa", ramp.GOALS.windows, 60.0, tick.at)
        assert state == tick.before or tick.before == ScalingState()
        assert decide(state, tick.observations, ramp.GOALS, tick.at)[1] == tick.decision
        assert read.starts == (("prefill", 31.5),)


def test_a_longer_pause_lasts_as_long_again_before_anything_is_removed() -> None:
    """Valid for 20 s of the 60 s of a hold, then away: of the pause, one interval counts."""
    state = replace(taught(), valid_since=LAST - 20)
    resumed_at = LAST + PAUSE_S
    state = again(state, resumed_at)
    assert state.valid_since == pytest.approx(resumed_at - EVERY_S - 20)
    rules = {}
    for now in (resumed_at, resumed_at + 15, resumed_at + 30):
        state, decision = decided(state, now)
        rules[now - resumed_at] = {t.rule for t in decision.targets}
    assert rules[0] == rules[15] == {Rule.JUST_STARTED}
    assert Rule.JUST_STARTED not in rules[30]
    assert [r.estimate.learnt for r in state.roles] == [True, True]


def test_a_fleet_that_nobody_watched_is_not_idle_for_that_time() -> None:
    state = replace(taught(), busy_at=LAST - 10)
    assert again(state, LAST + PAUSE_S).busy_at == LAST - 10 + PAUSE_S - EVERY_S


def test_after_a_pause_longer_than_a_hold_the_holds_begin_again_and_the_constants_stay() -> None:
    state = again(taught(), LAST + HOLD_S + 1)
    assert state.valid_since is None
    assert state.demand.counts == ()
    assert state.demand.residuals == taught().demand.residuals
    assert [r.estimate.theta for r in state.roles] == [r.estimate.theta for r in taught().roles]
    assert {r.holds for r in state.roles} == {HoldState()}
    _, decision = decided(state, LAST + HOLD_S + 1)
    assert {t.rule for t in decision.targets} == {Rule.JUST_STARTED}


def test_what_another_revision_could_do_counts_as_a_guess() -> None:
    state = again(taught(), LAST + 15, revision="bb")
    assert not any(role.estimate.learnt for role in state.roles)
    assert state.valid_since == taught().valid_since


@pytest.mark.parametrize("field", ["valid_since", "last_valid_at", "busy_at"])
def test_times_ahead_of_the_clock_begin_the_holds_again(field: str) -> None:
    fresh_s = LAW.windows.fresh_s
    near = replace(taught(), **{field: LAST + 15 + fresh_s})
    far = replace(taught(), **{field: LAST + 15 + fresh_s + 1})
    assert again(near, LAST + 15).valid_since is not None
    assert again(far, LAST + 15).valid_since is None


def full(highs: int) -> ScalingState:
    """A state in which every window is full of numbers that are long to write."""
    third = 1 / 3
    demand = DemandState(
        end=START + third,
        counts=tuple(100 + n * third for n in range(REMEMBERED_BINS)),
        pending=tuple(Forecast(START + n * third, 10 + n * third) for n in range(2 * PENDING)),
        residuals=tuple((third * n, 700 + third * n) for n in range(RESIDUALS)),
        rose_at=START + third,
    )
    buckets = tuple((2.0**n * third, 100 * third) for n in range(40))
    lengths = Lengths(*(1000 * third,) * 5, prompts=buckets, answers=buckets)
    wants = tuple(Want(START + n * third, highs - n) for n in range(highs))
    roles = tuple(
        replace(role, holds=HoldState(wants, wants[:1], START + third)) for role in taught().roles
    )
    return ScalingState(START + third, START + third, START + third, lengths, demand, roles)


def test_a_state_of_full_windows_is_kept_whole_within_its_bytes() -> None:
    slots = tuple(
        tuple(
            (START + n * slot_s, 1e4 / 3, 1e4 / 3, slot_s / 3) for n in range(int(back_s // slot_s))
        )
        for slot_s, back_s in SPANS
    )
    whole = replace(kept(full(highs=40)), errors=Errors(START, START, slots))
    text = text_of(whole)
    assert kept_of(text) == whole
    assert len(text) <= 56 * 1024


def test_a_state_that_is_too_long_is_kept_without_what_prometheus_can_give_again() -> None:
    state = kept_of(text_of(kept(full(highs=700)))).state
    assert state == replace(full(highs=700), demand=DemandState())


def spoilt(change: Callable[[dict[str, Any]], object]) -> str:
    data = json.loads(text_of(kept(taught())))
    change(data)
    return json.dumps(data)


UNUSABLE = {
    "empty": ("", "cannot be read"),
    "no JSON": ("{", "cannot be read"),
    "a list": ("[]", "version is None"),
    "another version": (spoilt(lambda d: d.update(version=2)), "version is 2, and this operator"),
    "no version": (spoilt(lambda d: d.pop("version")), "version is None"),
    "no state": (spoilt(lambda d: d.pop("state")), "cannot be read"),
    "not finite": (spoilt(lambda d: d["state"].update(valid_since=inf)), "no finite number"),
    "a text for a number": (spoilt(lambda d: d["state"].update(busy_at="x")), "busy_at"),
    "a negative start": (spoilt(lambda d: d.update(starts=[["decode", -1]])), "cannot be right"),
    "an integer beyond floats": (
        spoilt(lambda d: d["state"].update(busy_at=10**400)),
        "cannot be read",
    ),
    "a role that there is not": (
        spoilt(lambda d: d["state"]["roles"][0].update(role="cook")),
        "cannot be read",
    ),
    "deep": ("[" * 60_000, "cannot be read"),
    "too long": (" " * (MOST_BYTES + 1), "longer than 65536 bytes"),
}


@pytest.mark.parametrize(("text", "why"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_cannot_be_used_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UnusableError, match=why):
        kept_of(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def fuzzed(draw: st.DrawFn) -> str:
    """A text that was written by us, with some values replaced by any others."""
    data = json.loads(text_of(kept(taught(8))))
    for _ in range(draw(st.integers(1, 3))):
        at = data
        while True:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            inside = at[key]
            if not isinstance(inside, dict | list) or not inside or draw(st.integers(0, 3)) == 0:
                at[key] = draw(json_values)
                break
            at = inside
        if not isinstance(data, dict) or not data:
            break
    return json.dumps(data)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=50) | json_values.map(json.dumps) | fuzzed(), st.floats(-1e3, 1e5))
def test_no_text_makes_the_law_raise_or_remove_more_than_a_step(text: str, later_s: float) -> None:
    now = times(8)[-1] + later_s
    try:
        state = resumed(kept_of(text), "aa", LAW.windows, HOLD_S, now)
    except UnusableError:
        return
    _, decision = decided(state, now)
    for role in ("prefill", "decode"):
        assert 9 <= target(decision, role).replicas <= 1000
