"""A fleet at rest costs the API server nothing, in health and in trouble."""

import time
from datetime import UTC, datetime

import pytest

from local.demo import rest
from tests.e2e.installed import SYSTEM

pytestmark = pytest.mark.cluster


def test_a_fleet_without_traffic_writes_nothing(argosy, cluster):
    argosy.apply(
        "quiet",
        slo={"ttft": {"target": "500ms"}, "tpot": {"target": "40ms"}},
        autoscaling={"interval": "2s", "coldStart": "3s", "scaleDown": {"stabilization": "5s"}},
        metrics={"scrapeInterval": "1s", "rateWindow": "4s"},
    )
    argosy.until_ready("quiet")
    argosy.until_condition("quiet", "MetricsAvailable", "Idle")
    time.sleep(12)  # the start's windows: hold, rate and two intervals
    written = writes_within(20, argosy, cluster)
    argosy.kubectl("delete", "sd", "quiet", "--wait=false")
    assert written == []


def test_a_fleet_that_cannot_start_writes_nothing_either(argosy, cluster):
    argosy.apply("stuck", engine={"image": "registry.invalid/none:1"}, progressDeadline="5s")
    argosy.until_condition("stuck", "Stalled", "ImagePullFailed")
    time.sleep(5)  # its gateway becomes ready
    written = writes_within(25, argosy, cluster)  # the kubelet tries at 10 s and 30 s again
    argosy.kubectl("delete", "sd", "stuck", "--wait=false")
    assert written == []


def writes_within(seconds, argosy, cluster):
    """What the operator and the gateways write from now on."""
    begin = datetime.now(UTC)
    time.sleep(seconds)
    end = datetime.now(UTC)
    return rest.writes(cluster.audit_log, begin, end, (argosy.namespace, SYSTEM))
