"""Scores of the ramp: hand-made records, verdicts as docs/figures/demo.md words them."""

from pathlib import Path

import pytest
import yaml

from local.demo.traffic import score
from local.demo.traffic.plan import RAMP, Phase, arrivals, steps
from local.demo.traffic.score import Limits, Seen

LIMITS = Limits(ttft_s=0.5, tpot_s=0.04)
ONE = (Phase("only", 45, 2.0, 100, 10),)


def seen(due_s=30.0, *, outcome="ok", ttft_s=0.1, tpot_s=0.03, tokens=10, ended_s=None, **other):
    ended_s = due_s + 1 if ended_s is None else ended_s
    return Seen(due_s, 0, outcome, ttft_s, tpot_s, tokens, ended_s, **other)


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        (seen(), True),
        (seen(ttft_s=0.51), False),
        (seen(tpot_s=0.041), False),
        (seen(tokens=1, tpot_s=None), True),
        (seen(tokens=2, tpot_s=None), False),  # its text came in one piece
        (seen(ttft_s=None), False),
        (seen(outcome="shed", ttft_s=None, tpot_s=None, tokens=0), False),
        (seen(outcome="lost"), False),
    ],
)
def test_a_request_is_met_only_when_both_limits_hold_and_it_ended_well(record, verdict):
    assert score.met(record, LIMITS) is verdict


def test_settling_ends_with_the_last_window_that_misses():
    bad = [seen(t, ttft_s=9) for t in range(12)]
    good = [seen(t) for t in range(12, 45)]
    assert score.settling_s(bad + good, LIMITS, ONE) == 17.0  # window 11..17 still holds a miss
    assert score.settling_s(good, LIMITS, ONE) == 0.0


def test_every_run_plans_the_same_requests_and_scores_at_least_fifty_a_phase():
    assert arrivals() == arrivals()
    begun = steps()
    for number, begin in enumerate(begun):
        due = [d for d in arrivals() if d.phase == number]
        assert all(begin <= d.at_s < begin + RAMP[number].seconds for d in due)
        assert sum(d.at_s >= begin + score.SETTLING_CUT_S for d in due) >= 50


@pytest.mark.parametrize(
    ("readings_at", "gap_s"),
    [
        ([], 180.0),
        ([1.0], 179.0),
        ([float(t) for t in range(1, 181)], 1.0),
        ([float(t) for t in range(1, 181) if not 50 < t < 60], 10.0),
        ([float(t) for t in range(12, 181)], 12.0),
        ([float(t) for t in range(1, 170)], 11.0),
        ([float(t) for t in range(-9, 300) if not 3 < t <= 180], 177.0),
    ],
    ids=["none", "one", "each_second", "hole", "late_start", "early_end", "only_outside"],
)
def test_a_gap_is_the_longest_time_without_a_reading_ends_included(readings_at, gap_s):
    assert score.longest_gap_s(readings_at, 180.0) == gap_s


def test_a_planned_request_without_a_record_is_unseen_even_if_another_came_twice():
    assert score.unseen([seen(1.5), seen(1.5), seen(2.5)], [1.5, 2.5, 3.5]) == 1


@pytest.mark.parametrize(
    ("named", "share"),
    [
        ({"prefill_pod": "p-1", "decode_pod": "d-1"}, 1.0),
        ({"prefill_pod": "", "decode_pod": "d-1"}, 0.0),
        ({"prefill_pod": "p-1", "decode_pod": ""}, 0.0),
        ({"prefill_pod": "p-2", "decode_pod": "d-1"}, 0.0),
        ({"prefill_pod": "d-1", "decode_pod": "p-1"}, 0.0),
    ],
    ids=["both", "no_prefill", "no_decode", "a_pod_the_fleet_never_had", "roles_exchanged"],
)
def test_an_answer_comes_from_both_pods_only_if_the_fleet_had_the_pods_that_it_names(named, share):
    pods = (frozenset({"p-1"}), frozenset({"d-1"}))
    assert score.from_pods([seen(**named)], *pods) == share


def test_the_demos_fleet_has_the_goals_that_its_figures_are_judged_by():
    """docs/figures/demo.md: TTFT 1 s, TPOT 40 ms; a looser goal would make every figure better."""
    manifest = Path(__file__).parents[2] / "examples" / "sim-70b.yaml"
    spec = yaml.safe_load(manifest.read_text())["spec"]
    assert score.limits_of(spec["slo"]) == Limits(ttft_s=1.0, tpot_s=0.04)
    assert spec["roles"]["prefill"]["replicas"]["min"] == 1
    assert spec["roles"]["decode"]["replicas"]["min"] == 1
