"""The adapter against a real Prometheus that scrapes a tiny exporter on loopback."""

import asyncio
import http.server
import json
import threading
import time
from pathlib import Path

import pytest

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Idle, Signal, Unknown, Value
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from tests.prometheus.processes import prometheus

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
WINDOWS = Windows(scrape_s=0.5, rate_s=2, interval_s=1, down_hold_s=4, cold_start_s=2)
ASKED = Question(("default", 'a"b'), WINDOWS)


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


def config(*targets: str, **more: str) -> str:
    """Scrapes each target, a line of YAML with its address and labels, every half second. `more`:
    one target of each further job."""
    head = "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\nscrape_configs:\n"
    jobs = {"fleets": "\n".join(targets)} | more
    return head + "\n".join(
        f"- job_name: {name}\n  static_configs:\n{found}" for name, found in jobs.items()
    )


def target(exporter: int, **labels: str) -> str:
    return f"  - {{targets: ['127.0.0.1:{exporter}'], labels: {json.dumps(labels)}}}"


OURS = {"namespace": "default", "fleet": 'a"b', "role": "gateway", "pod": "gateway-0"}


def gateway_of(exporter: int) -> str:
    return config(target(exporter, **OURS))


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
    with prometheus(tmp_path, gateway_of(exporter.port)) as url:
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
    with prometheus(tmp_path, gateway_of(exporter.port)) as url:
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
    with prometheus(tmp_path, gateway_of(exporter.port)) as url:
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
    with prometheus(tmp_path, gateway_of(exporter.port)) as url:
        seen = await until(url, Idle)
        assert isinstance(seen.ttft_p90_s, Idle)
        assert isinstance(seen.tpot_p90_s, Unknown)
        exporter.answered(80, 20)
        seen = await until(url, Value)
        assert isinstance(seen.ttft_p90_s, Value)
        assert seen.ttft_p90_s.value == pytest.approx(1.5, abs=0.05)


async def test_two_fleets_in_two_namespaces_share_a_round_and_stay_apart(tmp_path: Path) -> None:
    """Same names crosswise, so that a matcher of namespaces or of names alone would mix them."""
    quiet, busy, stranger = Exporter(), Exporter(), Exporter()
    places = {("one", "chat"): quiet, ("two", "code"): busy, ("one", "code"): stranger}
    gateways = [
        target(exporter.port, namespace=namespace, fleet=fleet, role="gateway", pod="gateway-0")
        for (namespace, fleet), exporter in places.items()
    ]
    for exporter in places.values():
        exporter.received(0)
    with prometheus(tmp_path, config(*gateways)) as url:
        port = PrometheusMetrics(url)
        asked = [Question(key, WINDOWS) for key in (("one", "chat"), ("two", "code"))]
        for count in range(1, 40):
            busy.received(10 * count)
            stranger.received(1000 * count)
            one, two = await asyncio.gather(*(port.ask(url, question) for question in asked))
            if isinstance(one.metrics.arrivals, Idle) and isinstance(two.metrics.arrivals, Value):
                break
            await asyncio.sleep(0.25)
        port.close()
    assert isinstance(one.metrics.arrivals, Idle), one.metrics.arrivals
    assert isinstance(two.metrics.arrivals, Value), two.metrics.arrivals
    assert two.metrics.arrivals.value < 200, "the third fleet grows a hundred times as fast"
    assert one.metrics.at == two.metrics.at, "measured in one round"


USUAL = {
    "namespace": "default",
    "serving_argosy_dev_fleet": 'a"b',
    "serving_argosy_dev_role": "gateway",
    "pod": "gateway-0",
}
"""Labels of prometheus-community's job kubernetes-pods: labelmap renames the pod's own."""
OLDER = {
    ("kubernetes_namespace" if name == "namespace" else name): value
    for name, value in USUAL.items()
    if name != "pod"
} | {"kubernetes_pod_name": "gateway-0"}


@pytest.mark.long
@pytest.mark.parametrize("labels", [USUAL, OLDER])
async def test_labels_that_the_usual_jobs_write_are_those_of_a_fleet(
    labels: dict[str, str], tmp_path: Path
) -> None:
    exporter = Exporter()
    exporter.answered(0, 0)
    with prometheus(tmp_path, config(target(exporter.port, **labels))) as url:
        await until(url, Idle)
        exporter.answered(80, 20)
        seen = await until(url, Value)
    assert isinstance(seen.ttft_p90_s, Value)
    assert seen.ttft_p90_s.value == pytest.approx(1.5, abs=0.05)
    assert sum(b.count for b in seen.bins) <= 100


@pytest.mark.long
@pytest.mark.parametrize(
    ("without", "names"),
    [
        ("serving_argosy_dev_fleet", "fleet or serving_argosy_dev_fleet"),
        ("namespace", "namespace or kubernetes_namespace"),
        ("serving_argosy_dev_role", "role or serving_argosy_dev_role"),
    ],
)
async def test_a_label_that_is_missing_is_named_with_the_job(
    without: str, names: str, tmp_path: Path
) -> None:
    exporter = Exporter()
    exporter.received(5)
    labels = {name: value for name, value in USUAL.items() if name != without}
    with prometheus(tmp_path, config(target(exporter.port, **labels))) as url:
        port = PrometheusMetrics(url)
        for _ in range(60):
            blind = (await port.ask(url, ASKED)).metrics.arrivals
            assert isinstance(blind, Unknown)
            if "job" in blind.reason:
                break
            await asyncio.sleep(0.25)
        port.close()
    assert blind.reason.startswith("NoGatewayTarget")
    assert "job fleets" in blind.reason
    assert names in blind.reason


@pytest.mark.long
@pytest.mark.parametrize("labels", [OURS, USUAL])
async def test_pods_that_two_jobs_scrape_are_measured_once_and_the_jobs_are_named(
    labels: dict[str, str], tmp_path: Path
) -> None:
    exporter = Exporter()
    exporter.answered(0, 0)
    twice = config(target(exporter.port, **OURS), pods=target(exporter.port, **labels))
    with prometheus(tmp_path, twice) as url:
        seen = await until(url, Idle)
        exporter.answered(80, 20)
        port = PrometheusMetrics(url)
        for _ in range(60):
            seen = (await port.ask(url, ASKED)).metrics
            if sum(b.count for b in seen.bins) >= 100:
                break
            await asyncio.sleep(0.25)
        port.close()
    assert sum(b.count for b in seen.bins) == 100
    assert seen.scraped_twice == ("fleets", "pods")
    assert isinstance(seen.ttft_p90_s, Value)
    assert seen.ttft_p90_s.value == pytest.approx(1.5, abs=0.05)
