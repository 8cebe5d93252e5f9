"""What the spec says of requests reaches gateways that run, and replaces no pod."""

import httpx
import pytest

from tests.e2e.installed import complete, traffic
from tests.e2e.restarts import gateways_have, patch, restarted, said_by_gateways, starts

pytestmark = [pytest.mark.cluster, pytest.mark.long]
SLO = {"ttft": {"target": "10s"}, "tpot": {"target": "1s"}}
EDITS = (
    {"slo": {"ttft": {"target": "8123ms"}, "tpot": {"target": "900ms"}}},
    {"drain": {"timeout": "55s"}},  # within the grace that the pods were made for (DRAINS_S)
    {"routing": {"strategy": "kvAware", "maxQueue": 77, "queueTimeout": "9s"}},
)


def wait_as_a_pipeline(argosy, fleet):
    argosy.kubectl("wait", f"sd/{fleet}", "--for=condition=RolledOut", "--timeout=60s")


@pytest.fixture(scope="module")
def steady(argosy):
    argosy.apply("steady", slo=SLO, autoscaling={"policy": "None"}, routing={"replicas": 2})
    argosy.until_ready("steady")
    yield "steady"
    argosy.kubectl("delete", "sd", "steady", "--wait=false")


def test_an_edit_of_slo_drain_or_routing_restarts_no_pod_and_counts_in_all_gateways(
    argosy, steady, record_property
):
    """The figure `pods_restarted_by_slo_edit` of `make bench-cluster`."""
    before = starts(argosy, steady)
    with traffic(argosy.url(steady), steady, per_s=5, tokens=40) as outcomes:
        for edit in EDITS:
            patch(argosy, steady, **edit)
            wait_as_a_pipeline(argosy, steady)
            assert ("slo" not in edit) or gateways_have(argosy, steady, 'le="8.123"')
        argosy.until_ready(steady)
    after = starts(argosy, steady)
    record_property("pods_restarted_by_slo_edit", restarted(before, after))
    assert after == before
    assert set(outcomes) == {"ok"}, outcomes


def test_settings_that_are_deleted_are_used_on_and_a_metric_says_so(argosy, steady):
    before, stale = starts(argosy, steady), "argosy_gateway_settings_stale {}.0"
    argosy.kubectl("delete", "configmap", "steady-gateway")
    argosy.until("the metric", lambda: gateways_have(argosy, steady, stale.format(1)))
    assert httpx.get(f"{argosy.url(steady)}/v1/models", trust_env=False).status_code == 200
    patch(argosy, steady, routing={"maxQueue": 78})  # the operator looks
    argosy.until("the settings", lambda: gateways_have(argosy, steady, stale.format(0)))
    assert starts(argosy, steady) == before


def test_a_rename_under_traffic_loses_no_request_and_restarts_no_pod(
    argosy, steady, record_property
):
    """The figure `rename_errors` of `make bench-cluster`: the new name is added, clients go over
    to it, the old one is removed."""
    before, url = starts(argosy, steady), argosy.url(steady)
    knows, asked = '"id": "{}"', "8080/v1/models"
    with traffic(url, steady, per_s=5, tokens=40) as by_old_name:
        patch(argosy, steady, model={"servedNames": [steady, "org/renamed:2"]})
        wait_as_a_pipeline(argosy, steady)
        assert gateways_have(argosy, steady, knows.format("org/renamed:2"), asked)
        assert complete(url, "org/renamed:2").status_code == 200
        with traffic(url, "org/renamed:2", per_s=5, tokens=40) as by_new_name:
            argosy.until_condition(steady, "RolledOut", "RolledOut")
    with traffic(url, "org/renamed:2", per_s=5, tokens=40) as after:
        patch(argosy, steady, model={"servedNames": ["org/renamed:2"]})
        wait_as_a_pipeline(argosy, steady)
        assert knows.format(steady) not in "".join(said_by_gateways(argosy, steady, asked))
        answer = complete(url, "org/renamed:2")
    outcomes = [*by_old_name, *by_new_name, *after]
    record_property("rename_requests", len(outcomes))
    record_property("rename_errors", len(outcomes) - outcomes.count("ok"))
    assert set(outcomes) == {"ok"}
    assert (answer.status_code, answer.json()["model"]) == (200, "org/renamed:2")
    assert complete(url, steady).status_code == 404
    assert starts(argosy, steady) == before
