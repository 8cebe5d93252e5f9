"""Every selector of the operator against a real Prometheus that scrapes real expositions.

Two engine processes answer a request, and the gateway's own metrics count requests whose times are
written here by hand. What the operator then reads from Prometheus must be these numbers.
"""

import asyncio
from pathlib import Path

import httpx
import pytest

from argosy_gateway.config import Slo
from argosy_gateway.relay.metrics import Metrics
from argosy_gateway.relay.verdicts import Ending, Outcome
from argosy_gateway.wire.sse import Usage
from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Value
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.prometheus.queries import (
    ENGINE_LONG_SERIES,
    ENGINE_SERIES,
    GATEWAY_SERIES,
    selector,
)
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
        metrics.count_ended(outcome, role_mode="disaggregated", usage=usage)


async def test_every_selector_finds_samples_and_ttft_and_tpot_keep_their_places(
    tmp_path: Path,
) -> None:
    gateway = Metrics(Slo(ttft_s=0.2, tpot_s=0.05))
    exporter = Exporter()
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
