"""Rollouts that fail go back with real pods, and a canary is judged by real verdicts."""

from typing import Any

import pytest

from tests.e2e.installed import Installed, traffic

pytestmark = [pytest.mark.cluster, pytest.mark.long]

QUICK, SLOW = ({"uri": f"sim://{name}"} for name in ("smollm2-135m-cpu", "llama-70b-h100-tp4"))
"""Their decode steps take 11 and 29 ms."""
BETWEEN = {"ttft": {"target": "2s"}, "tpot": {"target": "22ms"}}
TWO = {"colocated": {"replicas": {"min": 2, "max": 2}, "resources": {"gpu": 0}}}


def start(argosy: Installed, name: str, **spec: Any) -> dict[str, Any]:
    """A fleet of two pods whose first rollout is in its history."""
    whole = {
        "mode": "colocated",
        "roles": TWO,
        "metrics": {"scrapeInterval": "1s", "rateWindow": "5s"},
        **spec,
    }
    argosy.apply(name, **whole)
    argosy.until_ready(name)
    argosy.until_condition(name, "RolledOut", "RolledOut")
    argosy.until("the history", lambda: history(argosy, name))
    return whole


def history(argosy: Installed, name: str) -> list[str]:
    found = argosy.kubectl("get", "controllerrevisions", "-o", "name")
    return [line for line in found.split() if f"/{name}-" in line]


def revisions(argosy: Installed, name: str) -> set[str]:
    pods = argosy.pods(name, "colocated")
    return {pod["metadata"]["labels"]["serving.argosy.dev/revision"] for pod in pods}


def is_alone(argosy: Installed, name: str, revision: str) -> bool:
    return revisions(argosy, name) == {revision}


def test_pods_that_crash_go_back_and_undo_does_what_it_says(argosy: Installed) -> None:
    whole = start(argosy, "undone", model=QUICK)
    first = argosy.fleet("undone")["status"]["revision"]
    with traffic(argosy.url("undone"), "undone", tokens=20) as outcomes:
        argosy.apply("undone", **{**whole, "engine": {"args": ["--no-such-flag"]}})
        argosy.until_condition("undone", "RolledOut", "RolledBack", 150)
        refused = argosy.fleet("undone")["status"]["refused"]
        assert (refused["reason"], refused["runs"]) == ("Crashing", first)
        argosy.until("the first revision", lambda: is_alone(argosy, "undone", first))

        argosy.apply("undone", **{**whole, "engine": {"env": [{"name": "A", "value": "1"}]}})
        argosy.until_condition("undone", "RolledOut", "RolledOut", 90)
        assert first not in revisions(argosy, "undone")

        argosy.kube.kubectl("argosy", "rollout", "undo", "undone", "-n", argosy.namespace)
        argosy.until_condition("undone", "RolledOut", "RolledBack", 90)
        assert is_alone(argosy, "undone", first)
        argosy.kube.kubectl("argosy", "rollout", "promote", "undone", "-n", argosy.namespace)
        argosy.until_condition("undone", "RolledOut", "RolledOut", 90)
        assert first not in revisions(argosy, "undone")
    argosy.kubectl("delete", "sd", "undone", "--wait=false")
    assert set(outcomes) == {"ok"}, outcomes


@pytest.mark.timeout(600)
def test_a_canary_wins_if_it_is_as_quick_and_goes_back_if_it_is_slow(argosy: Installed) -> None:
    rollout = {"canary": {"share": "25%", "for": "60s"}}
    whole = start(argosy, "judged", model=QUICK, slo=BETWEEN, rollout=rollout)
    with traffic(argosy.url("judged"), "judged", per_s=8, tokens=20) as outcomes:
        argosy.apply("judged", **{**whole, "engine": {"env": [{"name": "A", "value": "1"}]}})
        argosy.until_condition("judged", "RolledOut", "RollingOut")
        argosy.until_condition("judged", "RolledOut", "RolledOut", 200)
        equal = argosy.fleet("judged")["status"]["revision"]
        assert argosy.fleet("judged")["status"]["promoted"] == equal

        argosy.apply("judged", **{**whole, "model": SLOW})
        argosy.until_condition("judged", "RolledOut", "RolledBack", 260)
        refused = argosy.fleet("judged")["status"]["refused"]
        assert (refused["reason"], refused["runs"]) == ("CanaryLost", equal)
        argosy.until("the equal revision", lambda: is_alone(argosy, "judged", equal))
    argosy.kubectl("delete", "sd", "judged", "--wait=false")
    assert set(outcomes) == {"ok"}, outcomes
