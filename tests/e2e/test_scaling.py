"""Replicas follow measured goodput on the real cluster, and never follow ignorance."""

import time

import pytest

from tests.e2e.installed import SYSTEM, complete, traffic

pytestmark = pytest.mark.cluster

FAST = {
    "slo": {"ttft": {"target": "500ms"}, "tpot": {"target": "40ms"}},
    "autoscaling": {
        "interval": "2s",
        "coldStart": "6s",
        "scaleDown": {"stabilization": "12s", "maxStepPods": 4},
    },
    "metrics": {"scrapeInterval": "1s", "rateWindow": "5s"},
}


@pytest.fixture(scope="module")
def scaled(argosy):
    """A split fleet with an SLO and windows of seconds."""
    argosy.apply("scaled", mode="disaggregated", **FAST)
    argosy.until_ready("scaled")
    argosy.until_condition("scaled", "MetricsAvailable", "Idle")
    yield "scaled"
    argosy.kubectl("delete", "sd", "scaled", "--wait=false")


def desired(argosy, fleet):
    roles = argosy.fleet(fleet)["status"]["roles"]
    return roles["prefill"]["desired"], roles["decode"]["desired"]


def test_decode_grows_under_load_and_goes_back_after_it(argosy, scaled):
    with traffic(argosy.url(scaled), scaled, per_s=8, tokens=150) as outcomes:
        argosy.until("2 decode replicas", lambda: desired(argosy, scaled)[1] >= 2, 45)
        record = argosy.fleet(scaled)["status"]["autoscaling"]["lastDecision"]
        assert record["to"]["decode"] > record["from"]["decode"]
        explained = argosy.kube.kubectl("argosy", "explain", scaled, "-n", argosy.namespace)
        assert "decode" in explained
    assert set(outcomes) == {"ok"}, outcomes
    argosy.until("back at 1 and 1", lambda: desired(argosy, scaled) == (1, 1), 60)


def test_without_prometheus_nothing_is_removed(argosy, scaled):
    with traffic(argosy.url(scaled), scaled, per_s=8, tokens=150) as outcomes:
        argosy.until("2 decode replicas", lambda: desired(argosy, scaled)[1] >= 2, 45)
        before = desired(argosy, scaled)
        argosy.kube.kubectl("-n", SYSTEM, "scale", "deployment/argosy-prometheus", "--replicas=0")
    try:
        why = argosy.until_condition(scaled, "MetricsAvailable", "GatewaysAlone")
        assert "argosy-prometheus" in why
        # Longer than every window of this fleet: a law that read silence as idleness would act.
        end = time.monotonic() + 25
        while time.monotonic() < end:
            assert desired(argosy, scaled) >= before
            time.sleep(1)
        assert complete(argosy.url(scaled), scaled).status_code == 200
    finally:
        argosy.kube.kubectl("-n", SYSTEM, "scale", "deployment/argosy-prometheus", "--replicas=1")
    argosy.until("back at 1 and 1", lambda: desired(argosy, scaled) == (1, 1), 90)
    assert set(outcomes) == {"ok"}, outcomes
