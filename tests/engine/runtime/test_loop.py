"""The engine thread: its end, and when what it has for clients leaves it."""

import threading

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import GuaranteedNoEvict
from argosy_engine.core.handover.messages import PrefillRefused, PullReady, RemotePrefill
from argosy_engine.core.limits import Limits, Refusal
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.runtime.loop import EngineLoop, Worker
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.sim import SimRunner
from tests.kv.nodes import BLOCK, QUICK, Client, Node, node, until


async def test_whoever_waits_when_the_thread_ends_is_told_to_ask_another_engine():
    node = Node("decode", "text")
    computing, go_on = node.hold_steps()
    running = node.ask([5] * BLOCK)
    await until(computing.is_set)
    in_the_inbox = node.ask([6] * BLOCK)
    ending = threading.Thread(target=node.close)
    ending.start()
    await until(lambda: node.loop.unfinished == 3)  # both, and the word to stop
    go_on.set()
    await until(lambda: not ending.is_alive())
    too_late = node.ask([7] * BLOCK)
    assert {client.end for client in (running, in_the_inbox, too_late)} == {"draining"}


class SilentPeer:
    """A KV service that takes every pull and reports nothing by itself."""

    def start_pull(self, job):
        pass

    def cancel_pull(self, request_id, attempt):
        pass


class VirtualEngine:
    """A decode engine's loop whose steps take no real time.

    `log` holds the number of every step when it begins, and the client of every delivery.
    """

    def __init__(self):
        self.now = 100.0
        self.log = []
        self.during_step = {}  # number of a step → what happens meanwhile
        self._steps = 0
        config = EngineConfig(model="sim:x", served_name="m", role="decode", block_size=BLOCK)
        self.runner = SimRunner("x", QUICK, config, clock=lambda: self.now, sleep=self._sleep)
        scheduler = Scheduler(
            pool=BlockPool(num_blocks=64, block_size=BLOCK),
            limits=Limits(
                max_num_seqs=8,
                max_num_batched_tokens=512,
                max_queue=8,
                vocab_size=self.runner.vocab_size,
                pull_timeout_s=60.0,
            ),
            policy=GuaranteedNoEvict(),
            eos=frozenset(),
            max_model_len=512,
        )
        self.loop = EngineLoop(
            scheduler=scheduler,
            runner=self.runner,
            metrics=EngineMetrics(config, max_model_len=512),
            deliver=self._deliver,
            clock=lambda: self.now,
        )

    def _sleep(self, seconds):
        self._steps += 1
        self.log.append(self._steps)
        self.during_step.get(self._steps, lambda: None)()
        self.now += seconds

    def _deliver(self, batch):
        for client, event in batch:
            self.log.append(client)
            client.refuse(event) if isinstance(event, Refusal) else client.emit(event)

    def ask(self, name, *, candidates=()):
        client = Client()
        request = NewRequest(
            request_id=name,
            token_ids=[5] * BLOCK,
            arrival_s=self.now,
            candidates=candidates,
            sampling=SamplingParams(max_tokens=100, temperature=0.0),
        )
        assert self.loop.submit(request, client) is None
        return client


async def test_a_handed_over_prompts_first_token_is_delivered_before_the_next_step_begins():
    engine = VirtualEngine()
    busy = engine.ask("busy")
    pulled = engine.ask("pulled", candidates=("127.0.0.1:9",))
    came = PullReady(request_id="pulled", attempt=1, first_token=7, prefill_pod="p", lasts_s=59.0)
    engine.during_step[5] = lambda: engine.loop.post(came)
    engine.loop.start(SilentPeer())
    try:
        await until(lambda: pulled.ids and busy.end)
    finally:
        engine.loop.stop()
    assert engine.log.index(5) < engine.log.index(pulled) < engine.log.index(6)


async def test_steps_run_on_the_thread_that_loaded_the_model():
    engine, worker, threads = VirtualEngine(), Worker("engine"), []
    loaded_on = worker.call(threading.get_ident).result()
    engine.during_step[1] = lambda: threads.append(threading.get_ident())
    client = engine.ask("r")
    engine.loop.start(worker=worker)
    try:
        await until(lambda: client.end)
    finally:
        engine.loop.stop()
    assert threads == [loaded_on]
    await until(lambda: loaded_on not in {thread.ident for thread in threading.enumerate()})


async def test_a_request_that_cannot_be_taken_in_is_answered_and_harms_no_other():
    with node("decode") as engine:
        refusal = engine.scheduler.refusal

        def unforeseen(request):
            if request.request_id == "odd":
                raise TypeError("'<' not supported between instances of 'str' and 'int'")
            return refusal(request)

        engine.scheduler.refusal = unforeseen
        odd, plain = engine.ask([5] * BLOCK, name="odd"), engine.ask([6] * BLOCK, name="plain")
        await until(lambda: odd.end is not None and plain.end is not None)
        assert (odd.end, plain.end) == ("invalid", "length")
        remote = RemotePrefill(
            request_id="far",
            attempt=1,
            token_ids=(5,),
            lease_s=1.0,
            sampling=SamplingParams(max_tokens="5"),
        )
        engine.scheduler.refusal = lambda _: 1 / 0
        answers = []
        engine.loop.submit_remote_prefill(remote, answers.append)
        await until(lambda: answers)
        assert isinstance(answers[0], PrefillRefused)
        assert engine.metric("argosy_loop_errors_total") == 2
