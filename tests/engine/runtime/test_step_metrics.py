"""What the metrics say of a step is what single observations of its tokens would say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from argosy_engine.config import EngineConfig
from argosy_engine.metrics.histogram import StepHistogram
from argosy_engine.metrics.observe import EngineMetrics
from argosy_engine.metrics.table import Series
from tests.engine.core.test_scheduler import ask, make, step

EDGES = [0.25, 0.5, 1.0, 30.0]
ROW = Series(name="gap_seconds", type="histogram", help="Gap", labels={"engine": ()})
STEPS = st.lists(st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 8.0, 64.0]), max_size=9))


@given(STEPS)
def test_a_histogram_of_steps_is_exposed_as_one_of_single_values(steps):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = StepHistogram(ROW, EDGES, {"engine": "0"})
    ours.register(histogram)
    single = Histogram(ROW.name, ROW.help, ["engine"], buckets=EDGES, registry=theirs).labels("0")
    for values in steps:
        histogram.observe(values)
        for value in values:
            single.observe(value)
    lines = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == lines


def test_a_step_counts_its_tokens_gaps_and_ends():
    metrics = EngineMetrics(EngineConfig(model="", served_name="m"), max_model_len=64)
    scheduler = make()
    for name, tokens in (("short", 2), ("long", 4)):
        scheduler.add(ask(name, 5, max_tokens=tokens))
    for turn in range(4):
        metrics.observe_emissions(step(scheduler, now=0.25 * turn)[1])

    def value(name, **labels):
        known = {"model_name": "m", "engine": "0", **labels}
        return metrics.registry.get_sample_value(f"vllm:{name}", known)

    assert value("generation_tokens_total") == 6
    assert value("request_success_total", finished_reason="length") == 2
    assert value("inter_token_latency_seconds_count") == 4
    assert value("inter_token_latency_seconds_sum") == pytest.approx(1.0)
    assert value("inter_token_latency_seconds_bucket", le="0.2") == 0
    assert value("inter_token_latency_seconds_bucket", le="0.3") == 4
