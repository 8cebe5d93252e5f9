"""Other autoscalers beside ours: what they ask for, and what it would have cost."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.advice import shadow as module
from argosy_operator.core.scaling.advice.shadow import LONGEST_GAP_S, Played, Shadow, played
from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.observe import Observations
from argosy_operator.core.scaling.state import ScalingState
from tests.scaling import known
from tests.scaling.known import EVERY_S, START, times

HAVE: dict[RoleName, int] = {"prefill": 4, "decode": 4}
LAW = known.goals()
QUEUED = 5 * 2048.0
"""Prompt tokens: five prefill replicas at the target that the HPA runs with."""


def play(
    before: Shadow = (), names: tuple[str, ...] = ("hpa",), now: float = START, **signals: float
) -> Shadow:
    usual = {"running": 48.0, "outstanding_prompt_tokens": QUEUED}
    metrics = known.metrics(now, 10.0, HAVE, **(usual | signals))
    supply = tuple(replace(one, gpus_per_replica=2) for one in known.supply(HAVE))
    seen = Observations(metrics, supply)
    _, ours = decide(ScalingState(), seen, LAW, now)
    return played(before, names, seen, LAW, ours)


def test_each_law_is_asked_with_what_ours_sees() -> None:
    (hpa, keda) = play(names=("hpa", "keda"))
    assert (hpa.name, keda.name) == ("hpa", "keda")
    assert hpa.targets["prefill"] == keda.targets["prefill"] == 5
    assert (hpa.since, hpa.gpu_hours, hpa.failed) == (START, 0.0, "")


def test_gpu_hours_are_those_of_what_was_asked_for_and_of_ours() -> None:
    shadow = play()
    asked = sum(shadow[0].targets.values())
    shadow = play(shadow, now=START + 60)
    assert shadow[0].gpu_hours == pytest.approx(asked * 2 / 60)
    assert shadow[0].our_gpu_hours == pytest.approx(8 * 2 / 60)
    assert shadow[0].since == START


def test_a_gap_counts_for_two_minutes_and_a_clock_that_goes_back_for_nothing() -> None:
    shadow = play()
    later = play(shadow, now=START + 7200)
    assert later[0].our_gpu_hours == pytest.approx(16 * LONGEST_GAP_S / 3600)
    assert play(shadow, now=START - 50)[0].our_gpu_hours == 0.0


def test_laws_remember_from_round_to_round() -> None:
    """The HPA's window: what it wanted within five minutes it still wants."""
    shadow: Shadow = ()
    for now in times(10):
        shadow = play(shadow, now=now)
    fewer = play(shadow, now=START + 10 * EVERY_S, outstanding_prompt_tokens=0.0)
    assert fewer[0].targets["prefill"] == 5
    for now in times(25, 11):
        fewer = play(fewer, now=now, outstanding_prompt_tokens=0.0)
    assert fewer[0].targets["prefill"] < 5


def test_a_law_that_is_asked_for_no_more_is_forgotten_and_one_that_is_new_begins() -> None:
    shadow = play(names=("hpa", "hpa", "keda"))
    assert [one.name for one in shadow] == ["hpa", "keda"]
    shadow = play(shadow, ("keda", "kpa"), START + 30)
    assert [(one.name, one.since) for one in shadow] == [("keda", START), ("kpa", START + 30)]
    assert play(shadow, ()) == ()


@pytest.mark.parametrize("name", ["apa", "hpa", "hpa-gpu", "keda", "kpa"])
def test_every_law_of_the_spec_answers_also_without_metrics(name: str) -> None:
    shadow: Shadow = ()
    for now in times(5):
        shadow = play(shadow, (name,), now)
        assert shadow[0].failed == ""
        assert set(shadow[0].targets) == {"prefill", "decode"}
    metrics = known.without(known.metrics(START + 90, 0.0, HAVE), ("running", "prompt_tokens"))
    seen = Observations(metrics, known.supply(HAVE))
    _, ours = decide(ScalingState(), seen, LAW, START + 90)
    assert played(shadow, (name,), seen, LAW, ours)[0].failed == ""


def test_a_law_that_fails_is_said_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        start: Any = None

        def decide(self, *_: object) -> None:
            raise ZeroDivisionError("no pods")

    monkeypatch.setattr(module, "RIVALS", {"hpa": Broken()})
    (one,) = play(play())
    assert one.failed == "ZeroDivisionError: no pods"
    assert one.targets == {}


def test_hours_go_on_after_a_restart_from_what_status_has() -> None:
    old = Played.resumed("hpa", START - 3600, {"prefill": 3, "cook": 9}, "12.5", "11.0", START)
    assert old.targets == {"prefill": 3}
    assert old.since == START - 3600
    (one,) = play((old,), now=START + 60)
    assert one.gpu_hours == pytest.approx(12.5 + 6 / 60)
    assert one.our_gpu_hours == pytest.approx(11.0 + 16 / 60)


def test_a_role_that_status_does_not_have_begins_with_the_replicas_of_the_fleet() -> None:
    old = Played.resumed("hpa", START - 3600, {"prefill": 3}, "12.5", "11.0", START)
    (one,) = play((old,), now=START + 60)
    assert (one.failed, one.targets) == ("", {"prefill": 5, "decode": 4})


@pytest.mark.parametrize("text", ["", "many", "nan", "inf", "-1"])
def test_hours_in_status_that_are_none_begin_again(text: str) -> None:
    assert Played.resumed("hpa", START - 9, {}, text, "1", START) == Played("hpa", START, START)
    assert Played.resumed("hpa", START - 9, {}, "1", text, START).gpu_hours == 0.0
    assert Played.resumed("hpa", None, {}, "1", "1", START).gpu_hours == 0.0
