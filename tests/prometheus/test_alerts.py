"""The alerts that the chart brings: each in promtool, and those of the error budget in a real
Prometheus that scrapes the operator's series."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client import generate_latest

from argosy_law.slo import Spent
from argosy_operator.shell import metrics
from tests.prometheus.processes import prometheus, promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts/argosy/files/alerts.yaml"
BURNS = Spent(1.5, 0.0, 1.0, {"5m": 20.0, "1h": 15.0}, "Page")
RESTS = Spent(0.1, 0.0, 1.0, {"5m": 0.0, "1h": 0.0}, "None")


@pytest.fixture
def exporter() -> Iterator[str]:
    """The operator's own registry under an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = generate_latest()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    for name in ("chat", "calm"):
        metrics.show_errors(("ns", name), None)


def firing(url: str) -> set[tuple[str, str]]:
    """Names of the alerts that fire, each with its fleet."""
    found = httpx.get(f"{url}/api/v1/alerts", trust_env=False).json()["data"]["alerts"]
    return {
        (alert["labels"]["alertname"], alert["labels"].get("fleet_name", ""))
        for alert in found
        if alert["state"] == "firing"
    }


def until(url: str, wanted: set[tuple[str, str]]) -> None:
    deadline = time.monotonic() + 60
    while firing(url) != wanted:
        assert time.monotonic() < deadline, firing(url)
        time.sleep(0.2)


def test_a_fleet_that_burns_its_budget_is_named_by_the_alert_until_it_stops(
    exporter: str, tmp_path: Path
) -> None:
    config = (
        "global: {scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s}\n"
        f"rule_files: [{RULES}]\n"
        f"scrape_configs: [{{job_name: operator, static_configs: [{{targets: ['{exporter}']}}]}}]\n"
    )
    metrics.show_errors(("ns", "chat"), BURNS)
    metrics.show_errors(("ns", "calm"), RESTS)
    with prometheus(tmp_path, config) as url:
        until(url, {("ArgosyErrorBudgetBurnsFast", "chat")})
        metrics.show_errors(("ns", "chat"), RESTS)
        until(url, set())
        loaded = httpx.get(f"{url}/api/v1/rules", trust_env=False).json()["data"]["groups"]
        rules = [rule for group in loaded for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}


ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
FLEET = 'fleet_namespace="ns",fleet_name="chat"'
IN_FLEET = {"fleet_namespace": "ns", "fleet_name": "chat", "namespace": "ns"}
PODS = 'namespace="ns",fleet="chat",role="prefill",revision="r1",pod="p"'
ROUNDS = 'argosy_operator_reconcile_total{namespace="sys",pod="a"'
LEADER = 'argosy_operator_leader{namespace="sys",pod='
FAILED, ENDED = "argosy_gateway_handovers_failed_total", "argosy_requests_completed_total"


@dataclass(frozen=True)
class Case:
    """Series by the minute, in promtool's words, and what fires in the end."""

    series: dict[str, str]
    at: str
    fires: dict[str, str] | None = None
    """Labels of the alert beside its own; None: nothing fires."""
    value: str = ""


def budget(severity: str, value: str) -> dict[str, str]:
    name = f'argosy_operator_error_budget_alert{{{FLEET},severity="{severity}"}}'
    return {name: value}


def condition(type_: str, value: str) -> dict[str, str]:
    return {f'argosy_operator_condition{{{FLEET},type="{type_}",namespace="sys"}}': value}


def handovers(failed: str, ended: str) -> dict[str, str]:
    """Of two gateways, in two reasons."""
    return {
        f'{FAILED}{{{PODS},reason="no_kv"}}': failed,
        f'{FAILED}{{{PODS},reason="late"}}': "0x40",
        f'{ENDED}{{{PODS},result="ok"}}': ended,
    }


def vllm(name: str, value: str) -> dict[str, str]:
    return {f"vllm:{name}{{{PODS}}}": value}


EXPIRED, LATE = "nixl_num_kv_expired_reqs_total", "nixl_num_notifications_after_expiry_total"
OF_POD = {"namespace": "ns", "fleet": "chat", "pod": "p"}
CASES = {
    "ArgosyErrorBudgetBurnsFast": [
        Case(budget("Page", "1x5"), "1m", IN_FLEET),
        Case(budget("Page", "0x5") | budget("Ticket", "1x5"), "5m"),
    ],
    "ArgosyErrorBudgetBurns": [
        Case(budget("Ticket", "1x5"), "1m", IN_FLEET),
        Case(budget("Ticket", "0x5") | budget("Page", "1x5"), "5m"),
    ],
    "ArgosyMetricsBlind": [
        Case(condition("MetricsAvailable", "0x15"), "11m", IN_FLEET),
        # It came back in between; another condition is False.
        Case(condition("MetricsAvailable", "0x7 1 0x7") | condition("Ready", "0x15"), "15m"),
        # Unknown, as for a fleet at zero.
        Case(condition("Ready", "1x15"), "15m"),
    ],
    "ArgosyFleetStalled": [
        Case(condition("Stalled", "1x10"), "6m", IN_FLEET),
        Case(condition("Stalled", "0x10") | condition("Ready", "1x10"), "10m"),
    ],
    "ArgosyHandoversFail": [
        Case(handovers("0+6x30", "0+60x30"), "16m", {"namespace": "ns", "fleet": "chat"}, "10%"),
        Case(handovers("0+2x30", "0+60x30"), "30m"),
        # One failure of a fleet with a request a minute.
        *(Case(handovers("0x3 1x30", "0+1x40"), at) for at in ("6m", "9m", "12m", "15m")),
        # No requests.
        Case(handovers("3x30", "7x30"), "30m"),
    ],
    "ArgosyVllmKvReadAfterItsLease": [
        Case(vllm(LATE, "0x5 1x10"), "7m", OF_POD),
        Case(vllm(LATE, "3x15"), "15m"),
    ],
    "ArgosyVllmKvExpires": [
        Case(vllm(EXPIRED, "0+1x30"), "15m", OF_POD),
        *(Case(vllm(EXPIRED, "0x5 1x30"), at) for at in ("8m", "12m", "15m", "18m")),
    ],
    "ArgosyOperatorNoLeader": [
        Case({LEADER + '"a"}': "0x10", LEADER + '"b"}': "0x10"}, "6m", {"namespace": "sys"}),
        Case({"up": "1x10"}, "6m", {}),
        Case({LEADER + '"a"}': "0x10", LEADER + '"b"}': "1x10"}, "10m"),
        # An upgrade.
        Case({LEADER + '"a"}': "1x3", LEADER + '"b"}': "0x5 1x10"}, "8m"),
    ],
    "ArgosyOperatorNoRounds": [
        Case(
            {ROUNDS + ',result="done"}': "5x40"} | condition("Ready", "1x40"),
            "25m",
            {"namespace": "sys"},
        ),
        Case(
            {ROUNDS + ',result="done"}': "0x40", ROUNDS + ',result="failed"}': "0+1x40"},
            "25m",
            {"namespace": "sys"},
        ),
        # Nothing happens but what is repeated every five minutes.
        Case(
            {ROUNDS + ',result="done"}': "1x4 2x4 3x4 4x4 5x4"} | condition("Ready", "1x40"), "24m"
        ),
        # There are no fleets.
        Case({ROUNDS + ',result="done"}': "5x40", ROUNDS + ',result="failed"}': "2x40"}, "40m"),
    ],
}


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert CASES.keys() == ALERTS.keys()
    for name, cases in CASES.items():
        assert {case.fires is not None for case in cases} == {True, False}, name


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should_and_only_then(name: str, tmp_path: Path) -> None:
    rule = ALERTS[name]

    def expected(case: Case) -> list[dict[str, object]]:
        if case.fires is None:
            return []
        values = {f"$labels.{label}": value for label, value in case.fires.items()}
        values["$value | humanizePercentage"] = case.value
        texts = {
            key: re.sub(r"{{ (.*?) }}", lambda found: values[found[1]], text)
            for key, text in rule["annotations"].items()
        }
        labels = {"severity": rule["labels"]["severity"]} | case.fires
        return [{"exp_labels": labels, "exp_annotations": texts}]

    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in case.series.items()],
            "alert_rule_test": [
                {"eval_time": case.at, "alertname": name, "exp_alerts": expected(case)}
            ],
        }
        for case in CASES[name]
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    words = [str(promtool()), "test", "rules", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_says_how_urgent_it_is_and_leads_to_its_part_of_a_page() -> None:
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^## (.*)$", (ROOT / page).read_text(), re.MULTILINE)
        assert anchor == name.lower()
        assert name in headings
