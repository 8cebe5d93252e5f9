"""What the engine's histograms hold, beside vLLM's edges and beside each other."""

import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import GuaranteedNoEvict
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.series import SERIES
from argosy_engine.runtime.sim import PROFILES, SimRunner

TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
"""Edges of ours between vLLM's: small models and fast accelerators are below its first one."""
PACE = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
LATENCY = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
LENGTHS = "1 2 5 10 20 50 100 200 500 1000 2000 5000"
VLLM_EDGES = {
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": PACE,
    "vllm:request_time_per_output_token_seconds": PACE,
    "vllm:e2e_request_latency_seconds": LATENCY,
    "vllm:request_queue_time_seconds": LATENCY,
    "vllm:request_inference_time_seconds": LATENCY,
    "vllm:request_prefill_time_seconds": LATENCY,
    "vllm:request_decode_time_seconds": LATENCY,
    "vllm:request_prompt_tokens": LENGTHS,
    "vllm:request_generation_tokens": LENGTHS,
    "vllm:request_params_max_tokens": LENGTHS,
    "vllm:request_max_num_generation_tokens": LENGTHS,
    "vllm:request_prefill_kv_computed_tokens": LENGTHS,
    "vllm:request_params_n": "1 2 5 10 20",
    "vllm:iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "vllm:request_num_preemptions": "1 2 3 4 5 10 20",
}


def test_t49_every_histogram_under_vllms_name_has_vllms_edges():
    rows = {row.name: row.edges for row in SERIES if row.type == "histogram"}
    assert VLLM_EDGES.keys() == {name for name in rows if name.startswith("vllm:")}
    missing = {
        name: absent
        for name, edges in VLLM_EDGES.items()
        if (absent := {float(edge) for edge in edges.split()} - {float(e) for e in rows[name]})
    }
    assert missing == {}


@pytest.fixture(scope="module")
def sums():
    """Sum and count of each histogram after twelve requests that share four places."""
    now = [10.0]

    def sleep(seconds):
        now[0] += seconds

    config = EngineConfig(model="sim:opt-13b-a100", served_name="m", load_format="sim")
    runner = SimRunner(
        "opt-13b-a100", PROFILES["opt-13b-a100"], config, clock=lambda: now[0], sleep=sleep
    )
    work = Scheduler(
        pool=BlockPool(num_blocks=2000, block_size=32),
        limits=Limits(max_num_seqs=4, max_num_batched_tokens=256, max_queue=20),
        policy=GuaranteedNoEvict(),
        eos=frozenset({2}),
        max_model_len=2048,
    )
    metrics = EngineMetrics(config, max_model_len=2048)
    for index in range(12):
        request = NewRequest(
            request_id=f"r{index}",
            token_ids=[3 + index, *range(100, 200 + 40 * index)],
            sampling=SamplingParams(max_tokens=5 + index, ignore_eos=True),
            arrival_s=10.0,
        )
        work.add(request)
    while work.sequences:
        scheduled = work.schedule(now[0])
        metrics.observe_schedule(scheduled)
        out = runner.execute(scheduled.plan)
        metrics.observe_step(scheduled.plan, out)
        metrics.observe_emissions(work.update(scheduled.plan, out, now[0]))
    labels = {"model_name": "m", "engine": "0"}

    def read(name):
        return tuple(
            metrics.registry.get_sample_value(f"vllm:{name}_{part}", labels)
            for part in ("sum", "count")
        )

    return read


def test_t49_queue_prefill_and_decode_add_up_to_the_whole_answer(sums):
    parts = [sums(f"request_{part}_time_seconds") for part in ("queue", "prefill", "decode")]
    whole, count = sums("e2e_request_latency_seconds")
    assert {part[1] for part in parts} == {count} == {12}
    assert sum(part[0] for part in parts) == pytest.approx(whole)
    assert all(part[0] > 0 for part in parts)
    inference, _ = sums("request_inference_time_seconds")
    assert inference == pytest.approx(parts[1][0] + parts[2][0])


def test_t49_the_gaps_between_tokens_add_up_to_the_time_of_decoding(sums):
    gaps, count = sums("inter_token_latency_seconds")
    decoding, _ = sums("request_decode_time_seconds")
    assert gaps == pytest.approx(decoding)
    assert count == sum(4 + index for index in range(12))
