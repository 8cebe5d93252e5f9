"""What the metrics say of a step is what single observations of its tokens would say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from argosy_engine.config import EngineConfig
from argosy_engine.core.runner import KvLayout
from argosy_engine.core.step import StepOutput
from argosy_engine.core.step_time import Terms
from argosy_engine.runtime.metrics import EngineMetrics, Readings, StepHistogram
from argosy_engine.runtime.series import Series
from tests.engine.core.test_scheduler import ask, make, step
from tests.engine.runtime.test_loop import VirtualEngine
from tests.kv.nodes import until

EDGES = [0.25, 0.5, 1.0, 30.0]
ROW = Series(name="gap_seconds", type="histogram", help="Gap", labels={"engine": ()})
SLOW = Terms(0.1, 0.01, 0.002)
"""At 90 prompt tokens a step has nine tenths of the highest rate."""
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


def test_the_fitted_times_the_saturation_length_and_both_mean_batches_can_be_read():
    metrics = EngineMetrics(EngineConfig(model="", served_name="m"), max_model_len=64)
    scheduler = make()
    layout = KvLayout(
        fingerprint="", block_size=16, num_blocks=64, block_bytes=1, wire_block_bytes=1
    )
    metrics.bind(
        scheduler,
        layout,
        {"cpu_isa": "", "dtype": ""},
        Readings(leases=lambda: 0, leases_expired=lambda: 0, draining=lambda: False),
    )

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"argosy_{name}", labels)

    terms = ("fixed", "token", "sequence")
    assert [value("step_time_seconds", term=term) for term in terms] == [0, 0, 0]
    assert value("saturation_tokens") == 0
    scheduler.step_time.terms = SLOW
    assert [value("step_time_seconds", term=term) for term in terms] == list(SLOW)
    assert value("saturation_tokens") == 90

    for count, busy_s in ((1, 3.0), (4, 1.0)):
        for _ in range(count):
            scheduler.add(ask(f"r{scheduler._arrivals}", 5, max_tokens=1))
        plan = scheduler.schedule(0.0).plan
        out = StepOutput(token_ids=[7] * count, busy_s=busy_s)
        scheduler.update(plan, out, 0.0)
        metrics.observe_step(plan, out)
    seconds = value("step_seconds_total", kind="prefill")
    assert value("step_sequence_seconds_total", kind="prefill") / seconds == 7 / 4
    batches = value("batch_size_count", kind="prefill")
    assert value("batch_size_sum", kind="prefill") / batches == 5 / 2


async def test_steps_that_stop_streams_for_long_are_one_warning(caplog):
    engine = VirtualEngine()
    scheduler = engine.loop.scheduler
    scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=2048)
    scheduler.step_time.terms = SLOW
    first = engine.ask("first")
    clients = [first]
    for turn in (3, 5):
        engine.during_step[turn] = lambda: clients.append(engine.ask(f"r{len(clients)}"))
    engine.loop.start()
    try:
        await until(lambda: len(clients) == 3 and all(client.end for client in clients))
    finally:
        engine.loop.stop()
    [line] = [r.getMessage() for r in caplog.records if "saturation" in r.getMessage()]
    assert line.startswith("a step of 2048 prompt tokens takes 20.6 s on this machine")
    assert line.endswith("write --max-num-batched-tokens auto, or 256")
