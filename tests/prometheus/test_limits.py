"""The bounds of the embedded Prometheus' own configuration, in a real Prometheus."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from argosy_gateway.config import DEFAULT_CLASS, Slo, SloClass
from argosy_gateway.relay.metrics import Metrics
from tests.chart.test_chart import one, rendered
from tests.engine.processes import sim_engines
from tests.prometheus.processes import prometheus
from tests.prometheus.test_real_server import Exporter

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.long, pytest.mark.helm]


def bounded(**targets: int) -> str:
    """The chart's job of fleets, with targets by role in place of a cluster's pods."""
    config = yaml.safe_load(
        one(rendered("embedded-values.yaml"), "ConfigMap")["data"]["prometheus.yml"]
    )
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "argosy-fleets")
    del job["kubernetes_sd_configs"], job["relabel_configs"]
    labels = {"namespace": "n" * 63, "fleet": "f" * 63, "revision": "r" * 16}
    job["static_configs"] = [
        {"targets": [f"127.0.0.1:{port}"], "labels": labels | {"role": role, "pod": "p" * 253}}
        for role, port in targets.items()
    ]
    return yaml.safe_dump(config | {"scrape_configs": [job]})


def until_scraped(url: str, roles: set[str]) -> dict[str, str]:
    """`up` of each role, once all were scraped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rows = asked(url, "up")
        if {row["metric"]["role"] for row in rows} == roles:
            return {row["metric"]["role"]: row["value"][1] for row in rows}
        time.sleep(0.2)
    raise AssertionError(f"not scraped: {roles}")


def asked(url: str, query: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, trust_env=False)
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


async def test_pods_of_ours_are_scraped_and_those_beyond_a_bound_are_not(tmp_path: Path) -> None:
    slo = Slo(ttft_s=0.2, tpot_s=0.05)
    names = (DEFAULT_CLASS, *(f"class-{number}" for number in range(8)))
    gateway, many, wide, long = Exporter(), Exporter(), Exporter(), Exporter()
    classes = {name: SloClass(name, slo) for name in names}
    gateway.text = Metrics(slo, classes, holds_first_tokens=True).exposition().decode()
    many.text = "".join(f'x{{n="{number}"}} 1\n' for number in range(100_000))
    wide.text = "x{" + ",".join(f'l{number}="1"' for number in range(100)) + "} 1\n"
    long.text = f'x{{n="{"a" * 100_000}"}} 1\n'
    with sim_engines("decode") as (engine,):
        places = {
            "gateway": gateway.port,
            "decode": engine.admin,
            "many": many.port,
            "wide": wide.port,
            "long": long.port,
        }
        with prometheus(tmp_path, bounded(**places)) as url:
            up = until_scraped(url, set(places))
            assert up == {"gateway": "1", "decode": "1", "many": "0", "wide": "0", "long": "0"}
            assert asked(url, "count(x)") == []
            honest = asked(
                url, "max(scrape_samples_post_metric_relabeling{role=~'gateway|decode'})"
            )
            assert float(honest[0]["value"][1]) < 5000 / 3
