"""The timing runner on a virtual clock, and the loop's leases without a network."""

import queue
import statistics
from dataclasses import replace

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import GuaranteedNoEvict
from argosy_engine.core.handover.messages import LeaseReady, PrefillRefused, RemotePrefill
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.sim import PROFILES, SimRunner
from argosy_engine.server.serve import _scheduler

CONFIG = EngineConfig(model="sim:opt-13b-a100", served_name="m", load_format="sim")
PROFILE = PROFILES["opt-13b-a100"]


class Clock:
    def __init__(self):
        self.now = 100.0
        self.overhead_s = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.overhead_s


def scheduler():
    return Scheduler(
        pool=BlockPool(num_blocks=2000, block_size=32),
        limits=Limits(max_num_seqs=8, max_num_batched_tokens=2048, max_queue=10),
        policy=GuaranteedNoEvict(),
        eos=frozenset({2}),
        max_model_len=2048,
    )


def request(prompt=512, out=50):
    return NewRequest(
        request_id="a",
        token_ids=list(range(3, 3 + prompt)),
        sampling=SamplingParams(max_tokens=out),
        arrival_s=0.0,
    )


def test_the_timing_models_steps_are_as_long_as_they_are_known_to_be():
    """Only a CPU's engine chooses for itself: what is modelled must not depend on its own fit."""
    limits = _scheduler(CONFIG, SimRunner("opt-13b-a100", PROFILE, CONFIG)).limits
    assert (limits.max_num_batched_tokens, limits.auto_tokens) == (2048, False)
    asked = replace(CONFIG, max_num_batched_tokens="auto")
    assert _scheduler(asked, SimRunner("opt-13b-a100", PROFILE, asked)).limits.auto_tokens


def test_chunks_of_a_prompt_add_up_to_the_polynomial_of_the_whole():
    whole, chunked = scheduler(), scheduler()
    chunked.limits = Limits(max_num_seqs=8, max_num_batched_tokens=128, max_queue=10)
    whole.add(request())
    chunked.add(request())
    expected = (18.10 + 0.1019 * 512 + 7.12e-6 * 512**2) / 1000
    assert abs(PROFILE.step_s(whole.schedule(0.0).plan) - expected) < 1e-9
    total, runner = 0.0, SimRunner("opt-13b-a100", PROFILE, CONFIG, sleep=lambda _: None)
    for _ in range(4):
        plan = chunked.schedule(0.0).plan
        total += PROFILE.step_s(plan)
        chunked.update(plan, runner.execute(plan), 0.0)
    assert abs(total - expected - 3 * 0.01810) < 1e-9


def test_late_wake_ups_do_not_add_up():
    clock, work = Clock(), scheduler()
    clock.overhead_s = 0.004
    runner = SimRunner("opt-13b-a100", PROFILE, CONFIG, clock=clock, sleep=clock.sleep)
    work.add(request())
    busy_s = 0.0
    while work.sequences:
        plan = work.schedule(clock.now).plan
        out = runner.execute(plan)
        busy_s += out.busy_s
        work.update(plan, out, clock.now)
    assert abs((clock.now - 100.0) - busy_s) < 0.0041


def answer(runner, prompt, **sampling):
    """The tokens of one request, played to its end."""
    work, tokens = scheduler(), []
    asked = replace(request(out=400), token_ids=prompt)
    work.add(replace(asked, sampling=replace(asked.sampling, **sampling)))
    while work.sequences:
        plan = work.schedule(0.0).plan
        out = runner.execute(plan)
        tokens += out.token_ids
        work.update(plan, out, 0.0)
    return tokens


def test_answers_end_by_themselves_after_the_mean_that_is_asked_for():
    config = replace(CONFIG, sim_output_lengths=20.0)
    runner = SimRunner("opt-13b-a100", PROFILE, config, sleep=lambda _: None)
    prompts = [[7, 7, number] for number in range(3, 403)]
    lengths = [len(answer(runner, prompt)) for prompt in prompts]
    assert 17 < statistics.mean(lengths) < 23  # three standard errors of a geometric mean of 20
    assert 16 < statistics.stdev(lengths) < 24
    assert [len(answer(runner, prompt)) for prompt in prompts[:9]] == lengths[:9]
    assert len(answer(runner, prompts[0], ignore_eos=True)) == 400
    assert len(answer(runner, prompts[0], min_tokens=300)) >= 300


def prefill_engine():
    work = scheduler()
    metrics = EngineMetrics(CONFIG, max_model_len=2048)
    runner = SimRunner("opt-13b-a100", PROFILE, CONFIG, sleep=lambda _: None)
    loop = EngineLoop(scheduler=work, runner=runner, metrics=metrics, deliver=lambda _: None)
    loop.start()
    return loop


def order(length=100, attempt=1, lease_s=30.0):
    return RemotePrefill(
        request_id="r",
        attempt=attempt,
        token_ids=tuple(range(3, 3 + length)),
        sampling=SamplingParams(max_tokens=64),
        lease_s=lease_s,
    )


def wait_for(loop, predicate):
    for _ in range(200):
        if predicate():
            return
        loop.abort("unknown")  # wakes the loop
        answers = queue.SimpleQueue()
        loop.submit_remote_prefill(order(length=1, attempt=99, lease_s=0.0), answers.put)
        answers.get(timeout=2)
    raise AssertionError("did not come about")


def test_a_remote_prompt_is_leased_pinned_while_sent_and_freed_when_released():
    loop, answers = prefill_engine(), queue.SimpleQueue()
    ticket = loop.submit_remote_prefill(order(), answers.put)
    ready = answers.get(timeout=2)
    assert isinstance(ready, LeaseReady)
    assert (ready.n_tokens, ready.n_blocks) == (100, 4)
    assert loop.find_lease(ticket) == ready.key
    assert len(loop.begin_send(ready.key)) == 4
    loop.release(ready.key)
    assert loop.leases.active == 1
    loop.end_send(ready.key)
    wait_for(loop, lambda: not loop.scheduler.leased)
    assert loop.scheduler.pool.used == 0
    loop.stop()


def test_a_draining_engine_refuses_remote_prompts():
    loop, answers = prefill_engine(), queue.SimpleQueue()
    loop.draining = True
    loop.submit_remote_prefill(order(), answers.put)
    refused = answers.get(timeout=2)
    assert isinstance(refused, PrefillRefused)
    assert refused.reason == "draining"
    loop.stop()


def test_a_step_that_raises_fails_its_requests_and_no_others():
    loop, answers = prefill_engine(), queue.SimpleQueue()
    execute, loop.runner.execute = loop.runner.execute, lambda plan: 1 / 0
    loop.submit_remote_prefill(order(), answers.put)
    assert answers.get(timeout=2).reason == "failed"
    loop.runner.execute = execute
    loop.submit_remote_prefill(order(attempt=2), answers.put)
    assert isinstance(answers.get(timeout=2), LeaseReady)
    loop.stop()
