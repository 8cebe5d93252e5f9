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


def test_nothing_to_score_is_not_a_full_score():
    assert score.attainment([], LIMITS) is None


def test_requests_of_the_settling_are_not_scored():
    records = [seen(5, ttft_s=9), seen(21), seen(30)]
    assert score.after_settling(records, LIMITS, ONE) == [(1.0, 2)]


def test_settling_ends_with_the_last_window_that_misses():
    bad = [seen(t, ttft_s=9) for t in range(12)]
    good = [seen(t) for t in range(12, 45)]
    assert score.settling_s(bad + good, LIMITS, ONE) == 17.0  # window 11..17 still holds a miss
    assert score.settling_s(good, LIMITS, ONE) == 0.0


def test_a_phase_that_never_settles_counts_with_its_whole_length():
    assert score.settling_s([seen(t, ttft_s=9) for t in range(45)], LIMITS, ONE) == 45


def test_every_run_plans_the_same_requests_and_scores_at_least_fifty_a_phase():
    assert arrivals() == arrivals()
    begun = steps()
    for number, begin in enumerate(begun):
        due = [d for d in arrivals() if d.phase == number]
        assert all(begin <= d.at_s < begin + RAMP[number].seconds for d in due)
        assert sum(d.at_s >= begin + score.SETTLING_CUT_S for d in due) >= 50


def test_a_miss_shows_in_the_curve_when_its_request_ends_and_not_when_it_was_due():
    """Due at 44 s, before the step at 45 s; served only at 50 s, behind the step's requests."""
    records = [seen(40, ended_s=41), seen(43, ended_s=44), seen(44, ttft_s=6, ended_s=50)]
    assert score.attainment_at(records, LIMITS, 44, 6) == 1.0
    assert score.attainment_at(records, LIMITS, 46, 6) == 1.0
    assert score.attainment_at(records, LIMITS, 49, 6) == 1.0
    assert score.attainment_at(records, LIMITS, 50, 6) == 0.0
    assert score.attainment_at(records, LIMITS, 55, 6) == 0.0
    assert score.attainment_at(records, LIMITS, 56, 6) is None


def test_what_ends_after_a_second_does_not_change_the_curves_at_that_second():
    before = [seen(t / 3, ttft_s=t % 2, ended_s=t / 3 + t % 5) for t in range(150)]
    after = [seen(30.5, ended_s=31), seen(29, ttft_s=9, ended_s=38), seen(44, outcome="lost")]
    for second in range(31):
        past = [r for r in before if r.ended_s <= second]
        whole = score.attainment_at(before + after, LIMITS, second, 6)
        assert whole == score.attainment_at(past, LIMITS, second, 6)
    later = [seen(30.5), seen(44)]
    assert score.sent_per_s(before[:90] + later, 30, 6) == score.sent_per_s(before[:90], 30, 6)


@pytest.mark.parametrize(
    ("second", "rate"), [(0, 0.0), (1, 0.5), (2, 1.0), (4, 2.0), (6, 1.0), (8, 0.0)]
)
def test_demand_is_the_mean_of_the_seconds_before(second, rate):
    records = [seen(t) for t in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)]
    assert score.sent_per_s(records, second, 4.0) == rate


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


def test_failures_are_no_answers_and_no_answer_has_no_share():
    pods = (frozenset({"p-1"}), frozenset({"d-1"}))
    assert score.from_pods([seen(outcome="lost")], *pods) is None


def test_the_demos_fleet_has_the_goals_that_its_figures_are_judged_by():
    """docs/figures/demo.md: TTFT 1 s, TPOT 40 ms; a looser goal would make every figure better."""
    manifest = Path(__file__).parents[2] / "examples" / "sim-70b.yaml"
    spec = yaml.safe_load(manifest.read_text())["spec"]
    assert score.limits_of(spec["slo"]) == Limits(ttft_s=1.0, tpot_s=0.04)
    assert spec["roles"]["prefill"]["replicas"]["min"] == 1
    assert spec["roles"]["decode"]["replicas"]["min"] == 1


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("20s", 20.0), ("1.5s", 1.5), ("5m", 300.0), ("1h", 3600.0)]
)
def test_a_duration_is_read_with_its_unit(text, value):
    assert score.seconds(text) == value


@pytest.mark.parametrize("text", ["20", "s", "five s", "1d"])
def test_a_duration_without_a_known_unit_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        score.seconds(text)
