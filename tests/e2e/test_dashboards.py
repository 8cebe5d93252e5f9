"""Every query of every dashboard finds data of a fleet under load."""

import math
import re

import httpx
import pytest

from docs.dashboards import DASHBOARDS, fill
from tests.e2e.installed import SYSTEM, traffic

pytestmark = pytest.mark.cluster

BURN_RATE_S = 240
"""A burn rate needs half of five minutes."""


@pytest.fixture
def fleet(argosy):
    argosy.apply(
        "shown",
        mode="disaggregated",
        slo={"ttft": {"target": "500ms"}, "tpot": {"target": "40ms"}},
        autoscaling={"interval": "2s", "coldStart": "6s"},
        metrics={"scrapeInterval": "1s", "rateWindow": "5s"},
    )
    argosy.until_ready("shown")
    argosy.until_condition("shown", "MetricsAvailable", "Idle")
    yield "shown"
    argosy.kubectl("delete", "sd", "shown", "--wait=false")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_query_finds_data_of_a_fleet_under_load(argosy, fleet):
    prometheus = argosy.publish("argosy-prometheus", SYSTEM, 9090)

    def ask(path, **words):
        answer = httpx.get(f"{prometheus}/api/v1/{path}", params=words, trust_env=False)
        assert answer.status_code == 200, (words, answer.text)
        return answer.json()["data"]

    queries, chosen = {}, {}
    for dashboard in DASHBOARDS:
        system = dashboard.name == "operator"
        chosen = {
            "namespace": SYSTEM if system else argosy.namespace,
            "fleet": fleet,
            "__rate_interval": "10s",
        }
        for variable in dashboard.variables:
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.query).groups()
            found = {row[label] for row in ask("series", **{"match[]": fill(series, **chosen)})}
            assert chosen.get(variable.name, "decode") in found
        for panel in dashboard.panels:
            for number, query in enumerate(panel.queries):
                queries[dashboard.name, panel.title, number] = fill(query.expr, **chosen)

    def has_data(query):
        return any(
            not math.isnan(float(r["value"][1])) for r in ask("query", query=query)["result"]
        )

    def all_found():
        for key in [key for key, query in queries.items() if has_data(query)]:
            del queries[key]
        return not queries

    with traffic(argosy.url(fleet), fleet, per_s=4, tokens=60):
        try:
            argosy.until("data of every query", all_found, BURN_RATE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: none yet of {sorted(queries)}") from None
