"""Real gateway processes and no Prometheus: a burst adds replicas, by what the gateways say."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from argosy_bench.ports import free_ports
from argosy_law.observe import unknown_metrics
from argosy_operator.adapters import gateways as port
from argosy_operator.adapters.gateways import HttpGateways
from argosy_operator.core.snapshot.actions import EventReason
from tests.support.model import Model, fleet

pytestmark = pytest.mark.slow

SPEC = {
    "slo": {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
    "metrics": {"scrapeInterval": "1s"},
    "autoscaling": {"interval": "1s"},
    "roles": {"colocated": {"replicas": {"min": 1, "max": 8}}},
}
ASK = {"model": "m", "prompt": "one two three " * 400, "max_tokens": 5}


@contextlib.asynccontextmanager
async def gateways(names: list[str], home: Path) -> AsyncIterator[tuple[dict[str, str], int, int]]:
    """Gateways whose fleet has no engine pods: (address by name, API port, admin port)."""
    (api, admin), nobody = free_ports(2), home / "pods.json"
    nobody.write_text(json.dumps([]))
    addresses = {name: f"127.0.0.{i}" for i, name in enumerate(names, 1)}
    words = (
        f"gateway run --fleet chat --namespace ns --served-name m --port {api} --admin-port {admin}"
        f" --endpoints {nobody} --slo-ttft-ms 1000 --slo-tpot-ms 50 --queue deadline --host"
    )
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "argosy", *words.split(), ip),
            env={**os.environ, "POD_NAME": name},
            stderr=asyncio.subprocess.DEVNULL,
        )
        for name, ip in addresses.items()
    ]
    try:
        yield addresses, api, admin
    finally:
        for process in started:
            process.kill()
            await process.wait()


async def test_a_burst_adds_replicas_while_prometheus_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(fleet(**SPEC))
    model.converge()
    model.memory = replace(model.memory, decide_at=0.0)
    names = [pod.name for pod in model.pods.values() if pod.role == "gateway"]
    assert len(names) == 2
    async with gateways(names, tmp_path) as (addresses, api, admin), httpx.AsyncClient() as web:
        monkeypatch.setattr(port, "GATEWAY_ADMIN_PORT", admin)
        asked, burst = HttpGateways(), list[asyncio.Task[httpx.Response]]()
        said: list[str] = []

        async def round_of_now() -> None:
            answers = [asked.load(ip, name) for name, ip in addresses.items()]
            loads = dict(zip(addresses, await asyncio.gather(*answers), strict=True))
            model.gateway_loads, model.now = loads, time.time()
            model.metrics = unknown_metrics(model.now, "PrometheusTimeout: it took over 5 s")
            planned = model.round()
            said.extend(e.message for e in planned.events if e.reason == EventReason.SCALED)
            await asyncio.sleep(1)  # the interval of decisions

        def condition(kind: str) -> tuple[str, str]:
            found = next(c for c in model.fleet.status.conditions if c.type == kind)
            return found.status, found.reason

        async with asyncio.timeout(120):
            await round_of_now()
            assert condition("MetricsAvailable") == ("False", "PrometheusUnreachable")
            while condition("MetricsAvailable") != ("False", "GatewaysAlone"):
                await round_of_now()
            assert model.replicas("colocated") == 1
            for i in range(120):
                ip = list(addresses.values())[i % 2]
                ask = web.post(f"http://{ip}:{api}/v1/completions", json=ASK, timeout=60)
                burst.append(asyncio.create_task(ask))
            while model.replicas("colocated") == 1:
                await round_of_now()
        assert "colocated 1 → " in said[0]
        assert "PrometheusTimeout" in said[0]
        assert condition("ScalingActive") == ("True", "GatewaysAlone")
        assert condition("SLOMet") == ("Unknown", "GatewaysAlone")
        for request in burst:
            request.cancel()
        await asyncio.gather(*burst, return_exceptions=True)
        await asked.close()
