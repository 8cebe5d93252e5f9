"""Names of metrics in the programs' real output, in the seams' page and in the operator agree."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from argosy_engine.runtime import series as engine_table
from argosy_gateway.config import Slo
from argosy_gateway.relay import metrics as gateway_table
from argosy_gateway.relay.metrics import Metrics
from argosy_law.goals import Windows
from argosy_law.observe import Idle, Unknown, Value
from argosy_law.signals import others, samples
from argosy_operator.adapters.prometheus.queries import (
    ENGINE_LONG_SERIES,
    ENGINE_SERIES,
    GATEWAY_SERIES,
)
from argosy_operator.render.engines import ARGOSY
from tests.engine.processes import sim_engines

ASKED = (*GATEWAY_SERIES, *ENGINE_LONG_SERIES, *ENGINE_SERIES)
VLLM = {
    "vllm:cache_config_info": "gauge",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:engine_sleep_state": "gauge",
    "vllm:external_prefix_cache_hits_total": "counter",
    "vllm:external_prefix_cache_queries_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_preemptions_total": "counter",
    "vllm:num_requests_kv_fetch_by_stage": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prompt_tokens_by_source_total": "counter",
    "vllm:prompt_tokens_cached_by_source_total": "counter",
    "vllm:prompt_tokens_cached_total": "counter",
    "vllm:prompt_tokens_total": "counter",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_num_preemptions": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_success_total": "counter",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
}
"""vLLM's names that we promise, as dashboards and alerts of its users have them. Removing a line
breaks them: it is a change for the changelog."""
SEAMS = (Path(__file__).parents[2] / "designs/0001-seams.md").read_text()
CHAPTER = SEAMS.partition("## 5.")[2].partition("## 6.")[0]
SIDES = {"gateway": "Gateway:", "engine": "Engine (", "operator": "Operator:"}


def promised(side: str) -> set[str]:
    """Names that the seams' page has for one program."""
    begin = CHAPTER.index(SIDES[side])
    ends = [CHAPTER.index(mark) for mark in SIDES.values() if CHAPTER.index(mark) > begin]
    text = CHAPTER[begin : min(ends, default=len(CHAPTER))]
    return set(re.findall(r"`(argosy_[a-z0-9_]+)(?:\{[^}]*\})?`", text))


def samples_of(exposition: str) -> dict[str, list[dict[str, str]]]:
    """Sample name → label sets."""
    out: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            out.setdefault(sample.name, []).append(sample.labels)
    return out


@pytest.fixture(scope="module")
def engine():
    with sim_engines("prefill") as (started,):
        yield samples_of(started.page("/metrics").text)


def gateways_page() -> str:
    """What a gateway that serves one model exposes before the first request."""
    metrics = Metrics(Slo(ttft_s=0.25, tpot_s=0.06))
    metrics.expect_models(["m"])
    return metrics.exposition().decode()


@pytest.fixture(scope="module")
def gateway():
    return samples_of(gateways_page())


def has(names, name: str) -> bool:
    return name in names or f"{name}_bucket" in names


@pytest.mark.parametrize("side", ["engine", "gateway"])
def test_every_promised_metric_exists_before_the_first_request(side, request):
    exposed = request.getfixturevalue(side)
    assert [name for name in promised(side) if not has(exposed, name)] == []


@pytest.mark.parametrize(
    ("side", "rows"), [("engine", engine_table.SERIES), ("gateway", gateway_table.SERIES)]
)
def test_every_series_of_our_own_is_promised(side, rows):
    assert {row.name for row in rows if row.name.startswith("argosy_")} <= promised(side)


def assert_exactly(rows, exposition: str, *, ignored: tuple[str, ...] = ()) -> None:
    """Every row is exposed as it says, and nothing else but names that begin as `ignored` says."""
    exposed = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(exposition)
        if not family.name.startswith(ignored)
    }
    assert exposed.keys() == {row.name for row in rows}
    for row in rows:
        family = exposed[row.name]
        assert (family.type, family.documentation) == (row.type, row.help)
        for label, values in row.labels.items():
            found = {sample.labels[label] for sample in family.samples}
            assert found == set(values) if values else len(found) == 1, (row.name, label)


def test_an_engine_exposes_exactly_the_rows_of_its_table():
    with sim_engines("prefill") as (started,):
        assert_exactly(engine_table.SERIES, started.page("/metrics").text)


def test_a_gateway_exposes_exactly_the_rows_of_its_table():
    assert_exactly(gateway_table.SERIES, gateways_page(), ignored=("process_",))


def test_t49_an_engine_exposes_every_vllm_name_of_the_golden_list_and_no_other():
    with sim_engines("prefill") as (started,):
        page = started.page("/metrics").text
    exposed = {
        line.split()[2]: line.split()[3]
        for line in page.splitlines()
        if line.startswith("# TYPE vllm:")
    }
    assert exposed == VLLM


def test_what_is_asked_of_vllm_is_what_it_promises():
    """Its names of whole metrics are those that our engine has taken over from it."""
    asked = {re.sub("_(sum|count|bucket)$", "", name) for name in others.VLLM_SERIES.values()}
    assert asked <= VLLM.keys()


def test_our_engine_kind_names_every_series_that_the_law_reads_of_engines(engine):
    assert set(ARGOSY.series) == set(ENGINE_SERIES)
    assert set(ARGOSY.series.values()) <= engine.keys()


def series_of(exposed: dict[str, list[tuple[dict[str, str], float]]], role: str):
    """Two scrapes of one page, a second apart, as Prometheus stores them."""
    return [
        samples.Series(name, labels | {"role": role, "pod": role}, ((99.0, v), (100.0, v)))
        for name, rows in exposed.items()
        for labels, v in rows
    ]


def numbers_of(exposition: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Sample name → (labels, value)."""
    out: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            out.setdefault(sample.name, []).append((sample.labels, sample.value))
    return out


def test_every_selector_of_the_operator_finds_samples_in_a_real_exposition():
    """A label value that no exporter writes reads as "no samples", without an error."""
    with sim_engines("prefill", "decode") as (prefill, decode):
        pages = {
            "prefill": numbers_of(prefill.page("/metrics").text),
            "decode": numbers_of(decode.page("/metrics").text),
        }
    pages["gateway"] = numbers_of(gateways_page())
    taken = [s for role, page in pages.items() for s in series_of(page, role)]
    series = tuple(s for s in taken if s.name in ASKED)
    seen = samples.assemble(samples.Round(100.0, series, 1, 1), Windows())
    signals = {
        f"{part}.{field.name}": getattr(of, field.name)
        for part, of in (
            ("fleet", seen),
            *((role, seen.role(role)) for role in ("prefill", "decode")),
        )
        for field in fields(of)
        if field.name not in ("ttft_p90_s", "tpot_p90_s")  # Prometheus' own quantiles
    }
    assert len([s for s in signals.values() if isinstance(s, Idle | Value)]) >= 14
    assert {name: s for name, s in signals.items() if isinstance(s, Unknown)} == {}


def test_the_operators_own_metrics_are_the_promised_ones():
    from prometheus_client import REGISTRY

    from argosy_operator.shell import metrics

    assert metrics.LEADER is not None
    names = {family.name for family in REGISTRY.collect()}
    assert [x for x in promised("operator") if x.removesuffix("_total") not in names] == []


def test_limits_of_an_slo_are_edges_of_the_histograms(gateway):
    for name, edge in (("ttft", "0.25"), ("tpot", "0.06")):
        assert edge in {x["le"] for x in gateway[f"argosy_gateway_{name}_seconds_bucket"]}
