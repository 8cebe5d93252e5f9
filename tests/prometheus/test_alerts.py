"""The alerts that the project ships, in a real Prometheus that scrapes the operator's series."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client import generate_latest

from argosy_law.slo import Spent
from argosy_operator.shell import metrics
from tests.prometheus.processes import prometheus

RULES = Path(__file__).resolve().parents[2] / "examples/alerts/error-budget.yaml"
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
    return {(a["labels"]["alertname"], a["labels"].get("fleet_name", "")) for a in found}


def until(url: str, wanted: set[tuple[str, str]]) -> None:
    deadline = time.monotonic() + 60
    while firing(url) != wanted:
        assert time.monotonic() < deadline, firing(url)
        time.sleep(0.2)


def test_a_fleet_that_burns_its_budget_is_named_by_the_alert_until_it_stops(
    exporter: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text())["spec"]))
    config = (
        "global: {scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s}\n"
        f"rule_files: [{rules}]\n"
        f"scrape_configs: [{{job_name: operator, static_configs: [{{targets: ['{exporter}']}}]}}]\n"
    )
    metrics.show_errors(("ns", "chat"), BURNS)
    metrics.show_errors(("ns", "calm"), RESTS)
    with prometheus(tmp_path, config) as url:
        until(url, {("ArgosyErrorBudgetBurnsFast", "chat")})
        metrics.show_errors(("ns", "chat"), RESTS)
        until(url, set())
        loaded = httpx.get(f"{url}/api/v1/rules", trust_env=False).json()["data"]["groups"]
        assert [rule["health"] for group in loaded for rule in group["rules"]] == ["ok"] * 3
