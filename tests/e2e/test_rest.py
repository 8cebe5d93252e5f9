"""A fleet at rest costs the API server nothing."""

import time
from datetime import UTC, datetime

import pytest

from tests.demo import rest
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
    begin = datetime.now(UTC).isoformat()
    time.sleep(20)
    written = rest.writes(
        cluster.audit_log, begin, datetime.now(UTC).isoformat(), (argosy.namespace, SYSTEM)
    )
    argosy.kubectl("delete", "sd", "quiet", "--wait=false")
    assert written == []
