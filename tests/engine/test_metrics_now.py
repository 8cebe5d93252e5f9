"""What the metrics say of the moment and of a request's stages."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from argosy_engine.config import EngineConfig
from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.runner import KvLayout
from argosy_engine.runtime.machine import StartPhases
from argosy_engine.runtime.metrics import EngineMetrics, Readings, loading_page
from tests.engine.core.test_pull_places import done, pull, ready
from tests.engine.core.test_scheduler import ask, make, step
from tests.engine.processes import sim_engines
from tests.engine.server.spelling import Engine

LAYOUT = KvLayout(fingerprint="", block_size=16, num_blocks=64, block_bytes=1, wire_block_bytes=1)
STAGES = ("prefill_queue", "prefill", "transfer", "decode_queue", "decode")


class Watched:
    """A scheduler, and what its engine's metrics say."""

    def __init__(self, **more):
        self.scheduler, self.now, self.draining = make(**more), 0.0, False
        self.metrics = EngineMetrics(EngineConfig(model="", served_name="m"), max_model_len=64)
        readings = Readings(
            leases=lambda: 0,
            leases_expired=lambda: 0,
            draining=lambda: self.draining,
            clock=lambda: self.now,
        )
        self.metrics.bind(self.scheduler, LAYOUT, {"cpu_isa": "", "dtype": ""}, readings)

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"argosy_{name}", labels)

    def vllm(self, name, **labels):
        known = {"model_name": "m", "engine": "0", **labels}
        return self.metrics.registry.get_sample_value(f"vllm:{name}", known)

    def step(self, now):
        self.now = now
        self.metrics.observe_emissions(step(self.scheduler, now=now)[1])

    def stages(self):
        return {
            stage: (
                self.value("request_stage_seconds_count", stage=stage),
                self.value("request_stage_seconds_sum", stage=stage),
            )
            for stage in STAGES
        }


def test_the_oldest_request_of_the_queue_is_told_by_its_age_and_none_is_0():
    engine = Watched(seqs=1)
    assert engine.value("queue_oldest_seconds") == 0
    engine.scheduler.add(ask("runs", 5, max_tokens=3, at=1.0))
    engine.step(2.0)
    assert engine.value("queue_oldest_seconds") == 0
    for name, at, priority in (("second", 3.0, 0), ("third", 4.0, -1)):
        engine.scheduler.add(ask(name, 5, at=at, priority=priority))
    engine.now = 6.5
    assert engine.value("queue_oldest_seconds") == 3.5


def test_held_tokens_are_those_whose_kv_is_there_with_leases():
    engine = Watched()
    engine.scheduler.add(ask("here", 33, max_tokens=9))
    engine.scheduler.add(ask("peers", 20, lease_s=30.0))
    assert engine.value("kv_held_tokens") == 0
    engine.step(0.0)
    assert (engine.value("kv_held_tokens"), engine.value("kv_lease_blocks")) == (53, 2)
    engine.step(0.0)
    assert engine.value("kv_held_tokens") == 54
    engine.scheduler.free_lease("peers")
    assert (engine.value("kv_held_tokens"), engine.value("kv_lease_blocks")) == (34, 0)
    engine.scheduler.abort("here")
    assert engine.value("kv_held_tokens") == 0


def test_the_peak_estimate_is_what_the_batch_can_come_to_hold_of_the_pool():
    engine = Watched(blocks=10, policy=MaxUtilization())
    assert engine.value("kv_peak_estimate_ratio") == 0
    for name in ("a", "b"):
        engine.scheduler.add(ask(name, 16, max_tokens=80))
    engine.step(0.0)
    # Each holds its block of prompt and grows by 79 tokens, which are 5 blocks.
    assert engine.value("kv_peak_estimate_ratio") == pytest.approx(12 / 10)
    for name in ("a", "b"):
        engine.scheduler.abort(name)
    assert engine.value("kv_peak_estimate_ratio") == 0


def test_an_engine_is_in_one_state_from_its_first_page_on():
    def states(page):
        return {
            sample.labels["state"]: sample.value
            for family in text_string_to_metric_families(page)
            if family.name == "argosy_engine_state"
            for sample in family.samples
        }

    engine = Watched()
    assert states(loading_page().decode()) == {"loading": 1, "serving": 0, "draining": 0}
    assert states(engine.metrics.render().decode()) == {"loading": 0, "serving": 1, "draining": 0}
    engine.draining = True
    assert states(engine.metrics.render().decode()) == {"loading": 0, "serving": 0, "draining": 1}


def test_the_phases_of_the_start_add_up_to_it():
    ages = iter([0.5, 3.0, 3.25, 4.0])
    phases = StartPhases(lambda: next(ages))
    for phase in ("process", "model", "warm_up", "ports"):
        phases.end(phase)
    engine = Watched()
    engine.metrics.observe_start(phases)
    found = [
        engine.value("engine_start_phase_seconds", phase=phase)
        for phase in ("process", "model", "warm_up", "ports")
    ]
    assert found == [0.5, 2.5, 0.25, 0.75]
    assert engine.value("engine_start_seconds") == sum(found)


def test_the_stages_of_a_request_computed_here_add_up_to_its_answer():
    engine = Watched(seqs=1)
    for name in ("first", "second"):
        engine.scheduler.add(ask(name, 5, max_tokens=3, at=0.0))
    for now in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        engine.step(now)
    # `step` computes in no time: a prompt's stage is the queue's time alone.
    assert engine.stages() == {
        "prefill_queue": (2, 1.0 + 8.0),
        "prefill": (2, 0.0),
        "transfer": (0, 0.0),
        "decode_queue": (0, 0.0),
        "decode": (2, 3.0 + 24.0),
    }


def test_a_prefill_engine_has_the_stages_of_the_prompt_alone():
    engine = Watched()
    engine.scheduler.add(ask("peers", 20, lease_s=30.0))
    engine.step(2.0)
    counts = {stage: count for stage, (count, _) in engine.stages().items() if count}
    assert counts == {"prefill_queue": 1, "prefill": 1}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_decode_engine_has_the_waits_for_blocks_and_for_a_place(is_full):
    engine = Watched(seqs=1)
    scheduler = engine.scheduler
    assert pull(scheduler, "far") == ["far"]
    if is_full:
        scheduler.add(ask("here", 5, max_tokens=3))
        engine.step(0.0)
    engine.metrics.observe_emissions(scheduler.pull_ready(ready("far"), 1.0))
    scheduler.sequences["far"].arrived_s = 3.0
    scheduler.pull_done(done("far"))
    engine.metrics.observe_pull(done("far"))
    for now in (4.0, 5.0, 6.0, 7.0, 8.0, 9.0):
        engine.step(now)
    assert not scheduler.sequences
    stages = engine.stages()
    assert stages["transfer"] == (1, 0.1)
    # It joins at once, or when `here` has ended. Its prompt is no stage of this engine.
    assert stages["decode_queue"] == (1, 3.0 if is_full else 0.0)
    assert stages["prefill"][0] == is_full


def test_what_of_a_prompt_was_computed_cached_and_pulled_is_told_under_vllms_names():
    engine = Watched()
    scheduler = engine.scheduler
    for name in ("computed", "cached"):
        scheduler.add(ask(name, range(100, 140), max_tokens=1))
        engine.step(1.0)
    assert engine.vllm("request_prefill_kv_computed_tokens_sum") == 40 + 8
    assert engine.vllm("prompt_tokens_cached_by_source_total", source="device") == 32
    assert engine.vllm("external_prefix_cache_queries_total") == 0
    assert pull(scheduler, "far") == ["far"]
    assert fetches(engine) == [0, 1, 0]
    engine.metrics.observe_emissions(scheduler.pull_ready(ready("far"), 1.0))
    scheduler.pull_done(done("far"))
    while scheduler.sequences:
        engine.step(2.0)
    assert engine.vllm("external_prefix_cache_queries_total") == 40
    assert engine.vllm("external_prefix_cache_hits_total") == 40
    assert engine.vllm("prompt_tokens_cached_by_source_total", source="p2p") == 40
    assert engine.vllm("request_prefill_kv_computed_tokens_sum") == 48
    assert engine.vllm("request_prefill_kv_computed_tokens_count") == 3


def fetches(engine):
    stages = ("waiting_to_start", "in_progress", "completed_waiting")
    return [engine.vllm("num_requests_kv_fetch_by_stage", stage=stage) for stage in stages]


def test_handovers_are_counted_by_how_far_they_are():
    engine = Watched(seqs=2)
    for name in ("a", "b"):
        engine.scheduler.add(ask(name, 5, max_tokens=9))
    engine.step(1.0)
    assert pull(engine.scheduler, "far0", "far1", "far2") == ["far0", "far1"]
    engine.scheduler.add(ask("local", 5))
    assert fetches(engine) == [1, 2, 0]
    engine.scheduler.pull_done(done("far0"))
    assert fetches(engine) == [1, 1, 1]


async def test_a_request_of_several_choices_is_one_with_its_longest():
    engine = Engine()
    value = engine.loop.metrics.registry.get_sample_value
    known = {"model_name": "m", "engine": "0"}
    body = {"model": "m", "prompt": ["a", "b"], "n": 3, "max_tokens": 7, "seed": 1}
    answer = (await engine.post("/v1/completions", {**body, "ignore_eos": True})).json()
    assert len(answer["choices"]) == 6
    assert value("vllm:request_params_n_count", known) == 2
    assert value("vllm:request_params_n_sum", known) == 6
    assert value("vllm:request_max_num_generation_tokens_sum", known) == 14


def test_each_engine_of_a_pair_has_its_own_stages():
    with sim_engines("prefill", "decode") as (prefill, decode):
        answer = httpx.post(
            f"http://127.0.0.1:{decode.api}/v1/completions",
            json={"model": "m", "prompt": [5] * 600, "max_tokens": 4},
            headers={"x-argosy-prefill": f"127.0.0.1:{prefill.kv}"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text

        def counts(engine):
            name = "argosy_request_stage_seconds_count"
            found = {one: engine.metric(f'{name}{{stage="{one}"}}') for one in STAGES}
            return {stage: count for stage, count in found.items() if count}

        assert counts(prefill) == {"prefill_queue": 1, "prefill": 1}
        assert counts(decode) == {"transfer": 1, "decode_queue": 1, "decode": 1}
        phases = ("process", "model", "warm_up", "ports")
        parts = [
            decode.metric(f'argosy_engine_start_phase_seconds{{phase="{phase}"}}')
            for phase in phases
        ]
        assert sum(parts) == pytest.approx(decode.metric("argosy_engine_start_seconds"))
        assert all(part >= 0 for part in parts)
        assert parts[0] > 0
