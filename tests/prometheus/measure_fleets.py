"""What one interval costs a real Prometheus: queries, and seconds until every fleet has its share.

    python -m tests.prometheus.measure_fleets [--fleets 1 10 100] [--warm-s 90]

Starts Prometheus and one exporter that stands in for two gateways and four engines of each fleet,
scraped every five seconds. Prints one JSON object; the query count is Prometheus' own.
"""

import argparse
import asyncio
import http.server
import json
import tempfile
import threading
import time
from pathlib import Path

import httpx

from argosy_law.goals import Windows
from argosy_law.observe import Value
from argosy_law.signals import samples
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.protocols import FleetPods
from argosy_operator.core.snapshot.objects import FleetKey
from tests.prometheus.processes import prometheus

WINDOWS = Windows(scrape_s=5, rate_s=60, interval_s=15, down_hold_s=120)
PODS = {"gateway": 2, "prefill": 2, "decode": 2}
EDGES = ("0.01", "0.03", "0.1", "0.25", "0.5", "1", "2", "4", "8", "16", "+Inf")


def exposition(role: str, count: int) -> str:
    """A page with the series that the operator reads, after `count` requests."""
    names = [
        f'{name}{{kind="{kind}"}}'
        for name in samples.STEP_COUNTERS
        for kind in ("prefill", "decode", "mixed")
    ]
    names += [f'{samples.TRANSFERS}_{part}{{side="receive"}}' for part in ("sum", "count")]
    names += samples.GAUGES
    if role == "gateway":
        names = [f'{samples.RECEIVED}{{outcome="{o}"}}' for o in ("accepted", "shed", "invalid")]
        names += [
            f'{samples.VERDICTS}{{role_mode="disaggregated",ttft="{ttft}",tpot="{tpot}"}}'
            for ttft in ("ok", "miss")
            for tpot in ("ok", "miss")
        ]
        names += [f"{n}_{p}" for n in (samples.PROMPTS, samples.OUTPUTS) for p in ("sum", "count")]
        names.append(samples.PROMPTS_SQUARED)
        names += [f'{n}_bucket{{le="{le}"}}' for n in (samples.TTFT, samples.TPOT) for le in EDGES]
    return "".join(f"{name} {count}\n" for name in names)


class Handler(http.server.BaseHTTPRequestHandler):
    """Every request that a pod has served shows on its page: five a second."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = exposition(self.path.strip("/"), int(5 * time.monotonic())).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def scrape_config(port: int, fleets: list[FleetKey]) -> str:
    """Every pod of every fleet is a target, with the labels that relabelling would give it."""
    parts = ["global: {scrape_interval: 5s, scrape_timeout: 5s}", "scrape_configs:"]
    for role, number in PODS.items():
        parts += [f"- job_name: {role}", f"  metrics_path: /{role}", "  static_configs:"]
        for namespace, fleet in fleets:
            for pod in range(number):
                parts += [
                    f"  - targets: ['127.0.0.1:{port}']",
                    f"    labels: {{namespace: {namespace}, fleet: {fleet}, role: {role}, "
                    f"revision: 1a2b3c4d, pod: {fleet}-{role}-{pod}}}",
                ]
    return "\n".join(parts)


def queries(url: str) -> int:
    """How many queries Prometheus has answered."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    name = "prometheus_http_requests_total{"
    counts = [line for line in lines if line.startswith(name) and '"/api/v1/query"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)


async def interval(url: str, fleets: list[FleetKey]) -> dict[str, float]:
    """All fleets ask once, as within one interval. Times are of one port that was never used."""
    port, before = PrometheusMetrics(url, timeout_s=60.0), queries(url)
    first = [Question(key, WINDOWS, FleetPods(engines=None)) for key in fleets]
    await asyncio.gather(*(port.ask(url, question) for question in first))  # all are known now
    await asyncio.sleep(WINDOWS.interval_s)
    before = queries(url)
    began = time.perf_counter()
    taken = await asyncio.gather(*(port.ask(url, question) for question in first))
    seconds = time.perf_counter() - began
    port.close()
    measured = sum(isinstance(one.metrics.arrivals, Value) for one in taken)
    assert measured == len(fleets), f"{measured} of {len(fleets)} fleets were measured"
    return {"queries": queries(url) - before, "seconds": round(seconds, 2)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fleets", type=int, nargs="+", default=[1, 10, 100])
    options.add_argument("--warm-s", type=float, default=90.0)
    chosen = options.parse_args()
    fleets = [(f"team-{n % 10}", f"fleet-{n}") for n in range(max(chosen.fleets))]
    exporter = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        config = scrape_config(exporter.server_address[1], fleets)
        with prometheus(Path(home), config) as url:
            time.sleep(chosen.warm_s)
            figures = {n: asyncio.run(interval(url, fleets[:n])) for n in chosen.fleets}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
