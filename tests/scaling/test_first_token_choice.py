"""`slo.firstToken: Auto`: when the law has first tokens held, and that it stays with its choice."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.goals import SLO, FirstToken, Goals, RoleGoal, Serving, Windows
from argosy_law.observe import Buckets, FleetMetrics, Observations, Unknown, Value
from argosy_law.pace.first_tokens import follow
from argosy_law.record import VERSION, Kept, from_json, kept_of, resumed, text_of, to_json
from argosy_law.state import FirstTokens, ScalingState
from tests.scaling import known

HAVE: known.Have = {"prefill": 6, "decode": 20}
HOLD_S = 60.0
"""That of `known.goals`: two cold starts are less."""
SHORT: Buckets = ((3.0, 0.5), (200.0, 0.5))
LONG: Buckets = ((200.0, 0.5), (400.0, 0.5))


def law(first_token: FirstToken = "Auto", **serving: bool) -> Goals:
    return replace(known.goals(SLO(1.0, 0.06)), serving=Serving(first_token=first_token, **serving))


def seen(now: float, answers: Buckets, rate: float = 40.0) -> FleetMetrics:
    mean = sum(tokens * share for tokens, share in answers)
    return replace(
        known.metrics(now, rate, HAVE, output_tokens=mean),
        kv_transfer_s=Value(0.03, now),
        answers=tuple((tokens, 100 * share) for tokens, share in answers),
    )


def play(
    goals: Goals, rounds: Iterable[FleetMetrics], state: ScalingState | None = None
) -> tuple[ScalingState, list[Decision]]:
    state, found = state or ScalingState(), list[Decision]()
    for metrics in rounds:
        observed = Observations(metrics, known.supply(HAVE))
        state, decision = decide(state, observed, goals, metrics.at)
        found.append(decision)
    return state, found


def steady(answers: Buckets, rounds: int = 40, first: int = 0) -> list[FleetMetrics]:
    return [seen(now, answers) for now in known.times(rounds, first)]


def gpus(decision: Decision) -> int:
    return sum(target.demanded for target in decision.targets)


def changes(found: list[Decision], before: bool = False) -> int:
    held = [before, *(bool(decision.holds_first_tokens) for decision in found)]
    return sum(one != other for one, other in pairwise(held))


def test_short_answers_are_held_after_a_hold_and_need_fewer_gpus() -> None:
    _, found = play(law(), steady(SHORT))
    _, at_once = play(law("AtOnce"), steady(SHORT))
    first = next(n for n, decision in enumerate(found) if decision.holds_first_tokens)
    assert first * known.EVERY_S >= HOLD_S
    assert changes(found) == 1
    assert gpus(found[first - 1]) == gpus(at_once[first - 1])
    assert gpus(found[-1]) <= 0.9 * gpus(at_once[-1])
    numbers = found[-1].numbers
    assert numbers["held_gpus"] == gpus(found[-1])
    assert numbers["at_once_gpus"] == gpus(at_once[-1])
    assert numbers["holds_first_tokens"] == 1.0


def test_long_answers_get_their_first_tokens_at_once() -> None:
    _, found = play(law(), steady(LONG))
    _, at_once = play(law("AtOnce"), steady(LONG))
    assert not any(decision.holds_first_tokens for decision in found)
    assert [d.targets for d in found] == [d.targets for d in at_once]


def test_answers_that_become_long_are_sent_at_once_again_after_twelve_holds() -> None:
    """The law began to hold by hand here: what it knows of lengths lasts for most of an hour."""
    state, _ = play(law(), steady(LONG))
    state = replace(state, first_tokens=FirstTokens(holds=True))
    _, found = play(law(), steady(LONG, 60, first=40), state)
    first = next(n for n, decision in enumerate(found) if not decision.holds_first_tokens)
    assert first * known.EVERY_S == 12 * HOLD_S
    assert changes(found, before=True) == 1


@given(st.lists(st.integers(1, 60)), st.booleans())
def test_no_sequence_of_decisions_changes_the_choice_twice_in_an_hour(
    runs: list[int], saves: bool
) -> None:
    """With the default hold of 5 minutes. `runs`: for how many decisions holding saves enough, then
    for how many not, and so on; so no choice ends sooner than an hour after it began."""
    state, begun_at, now = FirstTokens(), -inf, 0.0
    for run in runs:
        for _ in range(run):
            after = follow(state, now, 300.0, saves=saves)
            if after.holds and not state.holds:
                begun_at = now
            elif state.holds and not after.holds:
                assert now - begun_at >= 3600.0
            state, now = after, now + 15.0
        saves = not saves


@pytest.mark.slow
def test_a_load_at_the_border_changes_the_choice_at_most_once_in_an_hour() -> None:
    """Holding saves about a tenth of the GPUs, with noise a little more or less."""
    random, rounds = Random(0), []
    for now in known.times(240):
        few = 0.4 * random.uniform(0.8, 1.2)
        rounds.append(seen(now, ((3.0, few), (200.0, 1 - few)), 12 * random.uniform(0.9, 1.1)))
    goals = replace(law(), windows=Windows(interval_s=known.EVERY_S, cold_start_s=15.0))
    _, found = play(goals, rounds)
    saves = {d.numbers["held_gpus"] <= 0.9 * d.numbers["at_once_gpus"] for d in found[60:]}
    assert saves == {True, False}
    assert changes(found) <= 1


@pytest.mark.parametrize(
    "goals",
    [
        replace(law(), roles=(RoleGoal("prefill", 60, 100), RoleGoal("decode", 60, 100))),
        law(pulls_first=True),
    ],
    ids=["the minimum needs as many", "another engine holds none"],
)
def test_nothing_is_held_where_that_saves_nothing(goals: Goals) -> None:
    _, found = play(goals, steady(SHORT))
    assert not any(decision.holds_first_tokens for decision in found)


def test_a_colocated_fleet_holds_nothing() -> None:
    goals = replace(known.goals(roles=["colocated"]), serving=Serving(first_token="Auto"))
    have = {"colocated": 10}
    rounds = [(known.metrics(now, 10.0, have, output_tokens=3.0), have) for now in known.times(40)]
    state, decision = known.play(goals, rounds)
    assert not state.first_tokens.holds
    assert not decision.holds_first_tokens
    assert "held_gpus" not in decision.numbers


def test_the_choice_stays_without_metrics_and_the_time_without_them_does_not_count() -> None:
    state, found = play(law(), steady(SHORT))
    gone = [replace(m, arrivals=Unknown("NoTargets")) for m in steady(LONG, 40, first=40)]
    state, found = play(law(), gone, state)
    assert {decision.holds_first_tokens for decision in found} == {None}
    assert state.first_tokens.holds
    state, found = play(law(), steady(LONG, 1, first=80), state)
    assert state.first_tokens.holds


def test_guessed_lengths_change_nothing() -> None:
    rounds = [replace(m, output_tokens=Unknown("NoSamples"), answers=()) for m in steady(SHORT)]
    state, _ = play(law(), rounds)
    assert not state.lengths.measured
    assert not state.first_tokens.holds
    assert state.first_tokens.other_since is None


def test_an_edit_to_auto_goes_on_from_what_the_spec_said() -> None:
    state, _ = play(law("WithinTarget"), steady(SHORT))
    assert changes(play(law(), steady(SHORT, first=40), state)[1], before=True) == 0


def test_the_choice_and_its_clock_outlive_a_restart() -> None:
    state, found = play(law(), steady(SHORT))
    changed = next(n for n, decision in enumerate(found) if decision.holds_first_tokens)
    state, _ = play(law(), steady(SHORT, changed))
    assert state.first_tokens.other_since is not None
    again = kept_of(text_of(Kept(VERSION, "aa", state))).state
    assert again == state
    last = known.times(changed)[-1]
    later = resumed(Kept(VERSION, "aa", state), "aa", law().windows, 120.0, last + 90)
    assert later.first_tokens.other_since == pytest.approx(
        state.first_tokens.other_since + 90 - known.EVERY_S
    )
    assert play(law(), steady(SHORT, 1, first=changed), again)[0].first_tokens.holds
    decision = found[-1]
    assert from_json(Decision, to_json(decision)) == decision
