"""A fleet that nobody uses gives back its pods; the next requests wait for new ones."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from tests.e2e.installed import complete

pytestmark = pytest.mark.cluster

WAITING = 5
SOON, LATER = "5s", "300s"
"""After how long without requests the fleet gives back its pods: short where the test waits for
that, long where it reads what the fleet says."""
ROLES = ("prefill", "decode")


def engines(argosy):
    return [pod for role in ROLES for pod in argosy.pods("sleepy", role)]


def sleepy(argosy, after):
    argosy.apply(
        "sleepy",
        mode="disaggregated",
        autoscaling={"scaleToZero": {"after": after, "wait": "60s"}, "coldStart": "20s"},
    )


def is_at_zero(argosy):
    ready = argosy.condition("sleepy", "Ready")
    return (ready["status"], ready["reason"]) == ("True", "ScaledToZero") and not engines(argosy)


def ready_at(pod):
    """When the pod became ready, s since the epoch; whole seconds."""
    found = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    assert found["status"] == "True"
    return datetime.fromisoformat(found["lastTransitionTime"]).timestamp()


def test_requests_at_zero_are_answered_after_a_cold_start(argosy, record_property):
    sleepy(argosy, after=LATER)
    argosy.until_ready("sleepy")
    url = argosy.url("sleepy")
    assert complete(url, "sleepy").status_code == 200
    sleepy(argosy, after=SOON)
    argosy.until("zero engine pods", lambda: is_at_zero(argosy), 60)
    assert len(argosy.pods("sleepy", "gateway")) == 1
    sleepy(argosy, after=LATER)

    began = time.time()
    with ThreadPoolExecutor(WAITING) as pool:
        asked = [pool.submit(complete, url, "sleepy") for _ in range(WAITING)]
        argosy.until("pods that start", lambda: len(engines(argosy)) == 2)
        created = time.time()
        answers = [one.result() for one in asked]
    answered = time.time()
    assert [answer.status_code for answer in answers] == [200] * WAITING
    for name, seconds in (
        ("seconds_to_first_pod", created - began),
        ("seconds_to_answer", answered - began),
        # The decode pod answers: it computes the prompts itself if the prefill pod comes later.
        ("seconds_from_ready_to_answer", answered - ready_at(*argosy.pods("sleepy", "decode"))),
    ):
        record_property(name, round(seconds, 2))
        print(name, round(seconds, 2))

    last = argosy.fleet("sleepy")["status"]["autoscaling"]["lastDecision"]
    assert (last["reason"], last["to"]) == ("Waking", {"prefill": 1, "decode": 1})
    explained = argosy.kube.kubectl("argosy", "explain", "sleepy", "-n", argosy.namespace)
    assert "requests wait in the gateways" in explained
    assert "does not replay" not in explained
    sleepy(argosy, after=SOON)
    argosy.until("zero engine pods again", lambda: is_at_zero(argosy), 60)
    argosy.kubectl("delete", "sd", "sleepy", "--wait=false")
