"""A fleet at rest costs the API server nothing, in health and in trouble."""

import time
from datetime import UTC, datetime

import pytest

from local.demo import rest
from local.demo.kube import condition
from tests.e2e.installed import SYSTEM

pytestmark = [pytest.mark.cluster, pytest.mark.long]
STARTS_S = 15
"""The windows of a start, 13 s: hold, rate and two intervals."""
WATCHED_S = 25
"""The kubelet tries an image again after 10 and 30 s."""


def gateway_is_ready(argosy):
    pods = argosy.pods("stuck", "gateway")
    return pods and all(condition(pod, "Ready").get("status") == "True" for pod in pods)


@pytest.fixture(scope="module")
def written(argosy, cluster):
    """What the operator and the gateways write while a healthy fleet and one that cannot start are
    at rest side by side."""
    argosy.kubectl("delete", "sd", "--all")  # those of other tests may have had traffic
    argosy.apply(
        "quiet",
        slo={"ttft": {"target": "500ms"}, "tpot": {"target": "40ms"}},
        autoscaling={"interval": "2s", "coldStart": "3s", "scaleDown": {"stabilization": "5s"}},
        metrics={"scrapeInterval": "1s", "rateWindow": "4s"},
    )
    argosy.apply("stuck", engine={"image": "registry.invalid/none:1"}, progressDeadline="5s")
    argosy.until_ready("quiet")
    argosy.until_condition("quiet", "MetricsAvailable", "Idle")
    argosy.until_condition("stuck", "Stalled", "ImagePullFailed")
    argosy.until_condition("quiet", "RolledOut", "RolledOut")
    argosy.until("the gateway of `stuck`", lambda: gateway_is_ready(argosy), 60)
    time.sleep(STARTS_S)
    begin = datetime.now(UTC)
    time.sleep(WATCHED_S)
    end = datetime.now(UTC)
    yield rest.writes(cluster.audit_log, begin, end, (argosy.namespace, SYSTEM))
    argosy.kubectl("delete", "sd", "quiet", "stuck", "--wait=false")


def test_a_fleet_without_traffic_writes_nothing(written):
    assert [line for line in written if "stuck" not in line] == []


def test_a_fleet_that_cannot_start_writes_nothing_either(written):
    assert [line for line in written if "stuck" in line] == []
