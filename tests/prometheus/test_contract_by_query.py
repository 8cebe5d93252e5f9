"""Every selector of the operator against a real Prometheus that scrapes real expositions.

Two engine processes answer a request, and the gateway's own metrics count requests whose times are
written here by hand. What the operator then reads from Prometheus must be these numbers.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.metrics import Metrics
from argosy_gateway.relay.verdicts import Ending, Outcome
from argosy_gateway.wire.sse import Usage
from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Value
from argosy_law.signals.samples import VERDICTS
from argosy_operator.adapters.prometheus.collect import Question, ask_verdicts
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.prometheus.queries import (
    ENGINE_LONG_SERIES,
    ENGINE_SERIES,
    GATEWAY_SERIES,
    selector,
)
from argosy_operator.adapters.prometheus.server import Server
from tests.engine.processes import sim_engines
from tests.prometheus.processes import prometheus
from tests.prometheus.test_real_server import Exporter, config, target

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

FLEET = ("default", "chat")
WINDOWS = Windows(scrape_s=0.5, rate_s=2, interval_s=1, down_hold_s=4, cold_start_s=2)
BUCKETS = ("argosy_gateway_ttft_seconds_bucket", "argosy_gateway_tpot_seconds_bucket")
LABELS_READ = {
    "argosy_requests_received_total": {"outcome": {"accepted", "shed", "invalid"}},
    "argosy_slo_requests_total": {"ttft": {"ok", "miss"}, "tpot": {"ok", "miss"}},
    "argosy_step_seconds_total": {"kind": {"prefill", "decode", "mixed"}},
    "argosy_kv_transfer_seconds_count": {"side": {"send", "receive"}},
}
"""Label values that docs/reference/metrics.md promises and the operator's arithmetic picks."""


def answered(metrics: Metrics, count: int, *, first_s: float, per_token_s: float) -> None:
    """`count` answers of 11 tokens: the first after `first_s`, ten more `per_token_s` apart."""
    last_s = first_s + 10 * per_token_s
    for _ in range(count):
        metrics.count_accepted("m")
        outcome = Outcome(
            Ending.OK,
            received_at=100.0,
            ended_at=100.0 + last_s,
            first_content_at=100.0 + first_s,
            last_content_at=100.0 + last_s,
            output_tokens=11,
        )
        usage = Usage(prompt_tokens=300, completion_tokens=11)
        metrics.count_ended(outcome, role_mode="disaggregated", usage=usage, revision="r1")


async def test_every_selector_finds_samples_and_ttft_and_tpot_keep_their_places(
    tmp_path: Path,
) -> None:
    gateway = Metrics(Slo(ttft_s=0.2, tpot_s=0.05))
    exporter = Exporter()
    r1 = Endpoint("d", "d", "", Role.DECODE, "r1", State.SERVING)
    gateway.count_endpoints([r1], 0.0)
    exporter.text = gateway.exposition().decode()
    with sim_engines("prefill", "decode") as (prefill, decode):
        places = {"prefill": prefill.admin, "decode": decode.admin, "gateway": exporter.port}
        fleet = {"namespace": FLEET[0], "fleet": FLEET[1]}
        targets = [
            target(port, **fleet, role=role, pod=f"{role}-0") for role, port in places.items()
        ]
        with prometheus(tmp_path, config(*targets)) as url:
            for name in (*GATEWAY_SERIES, *ENGINE_LONG_SERIES, *ENGINE_SERIES, *BUCKETS):
                found = await labels_of(url, name)
                for label, values in LABELS_READ.get(name, {}).items():
                    assert {row[label] for row in found} >= values, name
            answered(gateway, 100, first_s=0.15, per_token_s=0.03)
            exporter.text = gateway.exposition().decode()
            seen = await percentiles(url)
            verdicts = await of_revision(url)
    assert verdicts == {("ok", "ok"): 100.0, ("ok", "miss"): 0, ("miss", "ok"): 0, ("miss",) * 2: 0}
    assert isinstance(seen.ttft_p90_s, Value)
    assert isinstance(seen.tpot_p90_s, Value)
    # All observations lie in one bucket. Prometheus answers a number inside of it.
    assert 0.1 <= seen.ttft_p90_s.value <= 0.2
    assert 0.025 <= seen.tpot_p90_s.value <= 0.05


async def labels_of(url: str, name: str) -> list[dict[str, str]]:
    """The label sets that the operator's selector of one name finds; waits for the first."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for _ in range(60):
            query = {"query": selector((name,), [FLEET])}
            answer = (await client.get("/api/v1/query", params=query)).json()
            if found := answer["data"]["result"]:
                return [row["metric"] for row in found]
            await asyncio.sleep(0.25)
    raise AssertionError(f"no samples of {name}")


async def of_revision(url: str) -> dict[tuple[str, str], float]:
    """The last verdicts on revision r1 as a canary reads them, once there are some."""
    server = Server(url, timeout_s=5.0, access=None, allowed=None)
    try:
        for _ in range(60):
            now = time.time()
            read = server.submit(
                partial(ask_verdicts, fleet=FLEET, since=now - 20, step_s=1.0, now=now)
            )
            found = {
                (one.labels["ttft"], one.labels["tpot"]): one.samples[-1][1]
                for one in await asyncio.wrap_future(read)
                if (one.name, one.labels.get("revision")) == (VERDICTS, "r1")
                and one.labels["role_mode"] == "disaggregated"
            }
            if any(found.values()):
                return found
            await asyncio.sleep(0.25)
    finally:
        server.end()
    raise AssertionError("no verdicts on r1")


async def percentiles(url: str) -> FleetMetrics:
    """What the operator reads once both percentiles have a value."""
    port = PrometheusMetrics(url)
    try:
        for _ in range(60):
            seen = (await port.ask(url, Question(FLEET, WINDOWS))).metrics
            if isinstance(seen.ttft_p90_s, Value) and isinstance(seen.tpot_p90_s, Value):
                return seen
            await asyncio.sleep(0.25)
    finally:
        port.close()
    raise AssertionError(f"no percentiles: {seen.ttft_p90_s}, {seen.tpot_p90_s}")
