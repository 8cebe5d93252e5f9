import json

import pytest

from local.demo import rest
from local.demo.traffic import score
from local.demo.traffic.plan import RAMP, Phase, arrivals, steps
from local.demo.traffic.score import Limits, Seen

LIMITS = Limits(ttft_s=0.5, tpot_s=0.04)
ONE = (Phase("only", 45, 2.0, 100, 10),)


def seen(due_s=30.0, *, outcome="ok", ttft_s=0.1, tpot_s=0.03, tokens=10, phase=0):
    return Seen(due_s, phase, outcome, ttft_s, tpot_s, tokens)


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        (seen(), True),
        (seen(ttft_s=0.51), False),
        (seen(tpot_s=0.041), False),
        (seen(tokens=1, tpot_s=None), True),
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


def audit(user, verb, resource, at="2026-01-01T00:00:30.5Z", stage="ResponseComplete", name="x"):
    return json.dumps(
        {
            "stage": stage,
            "verb": verb,
            "user": {"username": user},
            "objectRef": {"resource": resource, "name": name},
            "requestReceivedTimestamp": at,
        },
        separators=(",", ":"),
    )


def test_writes_at_rest_are_the_operators_and_the_gateways_without_leases(tmp_path):
    operator = "system:serviceaccount:argosy-system:argosy-operator"
    gateway = "system:serviceaccount:demo:smol-gateway"
    log = tmp_path / "audit.log"
    log.write_text(
        "\n".join(
            [
                audit(operator, "patch", "servingdeployments"),
                audit(operator, "update", "leases"),
                audit(operator, "get", "pods"),
                audit(operator, "patch", "pods", at="2026-01-01T00:02:00Z"),
                audit(operator, "patch", "pods", stage="RequestReceived"),
                audit(gateway, "create", "events"),
                audit("system:kube-scheduler", "update", "pods"),
            ]
        )
        + "\n"
    )
    found = rest.writes(
        log, "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", ("demo", "argosy-system")
    )
    assert [line.split()[1] for line in found] == ["patch", "create"]
