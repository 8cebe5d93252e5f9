"""The adapter against a real Prometheus that scrapes a tiny exporter on loopback."""

import asyncio
import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import FleetMetrics, Idle, Signal, Unknown, Value
from argosy_operator.ports.prometheus.metrics import PrometheusMetrics, Question

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
WINDOWS = Windows(scrape_s=0.5, rate_s=2, interval_s=1, down_hold_s=4, cold_start_s=2)
ASKED = Question(("default", 'a"b'), WINDOWS)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Exporter:
    """Serves `text` as /metrics."""

    def __init__(self) -> None:
        exporter = self
        self.text = ""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def received(self, count: object) -> None:
        self.text = f'argosy_requests_received_total{{outcome="accepted"}} {count}\n'

    def answered(self, fast: int, slow: int) -> None:
        """First tokens within a quarter of a second, and within one to two seconds."""
        self.received(fast + slow)
        edges = {"0.25": fast, "1": fast, "2": fast + slow, "+Inf": fast + slow}
        for edge, count in edges.items():
            self.text += f'argosy_gateway_ttft_seconds_bucket{{le="{edge}"}} {count}\n'


@contextmanager
def prometheus(home: Path, exporter: int) -> Iterator[str]:
    found = sorted(Path.home().glob(".cache/argosy/cluster/*/bin/prometheus"))
    if not found:
        pytest.skip("no Prometheus yet: python -m local.cluster.build --stage prometheus")
    port = free_port()
    (home / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
        "scrape_configs:\n- job_name: gateway\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{exporter}']\n"
        "    labels: {namespace: default, fleet: 'a\"b', role: gateway, pod: gateway-0}\n"
    )
    command = [
        str(found[-1]),
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                if httpx.get(f"{url}/-/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


async def until(url: str, kind: type[Signal]) -> FleetMetrics:  # type: ignore[valid-type]
    """Ask until the arrivals are of that kind."""
    port = PrometheusMetrics(url)
    try:
        for _ in range(60):
            seen = (await port.ask(url, ASKED)).metrics
            if isinstance(seen.arrivals, kind):
                return seen
            await asyncio.sleep(0.25)
    finally:
        port.close()
    raise AssertionError(f"arrivals stayed {seen.arrivals}")


async def test_idle_value_not_a_number_and_away_are_told_apart(tmp_path: Path) -> None:
    exporter = Exporter()
    exporter.received(5)
    with prometheus(tmp_path, exporter.port) as url:
        await until(url, Idle)
        exporter.received(9)
        seen = await until(url, Value)
        assert sum(b.count for b in seen.bins) <= 4
        began = time.perf_counter()
        await until(url, Value)
        assert time.perf_counter() - began < 0.5
        exporter.received("NaN")
        blind = (await until(url, Unknown)).arrivals
        assert isinstance(blind, Unknown)
        assert blind.reason.startswith("NotANumber")
    away = (await PrometheusMetrics(url).ask(url, ASKED)).metrics
    assert isinstance(away.arrivals, Unknown)
    assert away.arrivals.reason.startswith("PrometheusAway")


async def test_an_exporter_that_is_gone_is_blindness_not_idleness(tmp_path: Path) -> None:
    exporter = Exporter()
    exporter.received(5)
    with prometheus(tmp_path, exporter.port) as url:
        await until(url, Idle)
        exporter.server.shutdown()
        exporter.server.server_close()
        blind = (await until(url, Unknown)).arrivals
        assert isinstance(blind, Unknown)
        assert blind.reason.startswith("GatewayDown")


async def test_an_operator_whose_clock_is_an_hour_ahead_still_sees_and_says_so(
    tmp_path: Path,
) -> None:
    exporter = Exporter()
    exporter.received(5)
    with prometheus(tmp_path, exporter.port) as url:
        await until(url, Idle)
        exporter.received(9)
        await until(url, Value)
        port = PrometheusMetrics(url, clock=lambda: time.time() + 3600)
        ahead = (await port.ask(url, ASKED)).metrics
        port.close()
    assert isinstance(ahead.arrivals, Value | Idle)
    assert ahead.clock_skew_s == pytest.approx(3600, abs=30)


async def test_percentiles_are_those_of_the_gateways_histograms(tmp_path: Path) -> None:
    exporter = Exporter()
    exporter.answered(0, 0)
    with prometheus(tmp_path, exporter.port) as url:
        seen = await until(url, Idle)
        assert isinstance(seen.ttft_p90_s, Idle)
        assert isinstance(seen.tpot_p90_s, Unknown)
        exporter.answered(80, 20)
        seen = await until(url, Value)
        assert isinstance(seen.ttft_p90_s, Value)
        assert seen.ttft_p90_s.value == pytest.approx(1.5, abs=0.05)
