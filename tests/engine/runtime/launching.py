"""An engine loop that is driven turn by turn, on a device that runs launched steps late.

The device's KV is the token ids themselves, and a draw depends on all of a text's KV. So a block
that two sequences write to, or that is read before it is written, gives another text.
"""

from dataclasses import dataclass
from zlib import crc32

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool, HostPool
from argosy_engine.core.capacity import GuaranteedNoEvict, MaxUtilization
from argosy_engine.core.handover.messages import PullDone, PullFailed, PullReady
from argosy_engine.core.limits import Limits, Refusal
from argosy_engine.core.preemption import Preemption
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepOutput
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.runtime.metrics import EngineMetrics
from tests.kv.nodes import Client

BLOCK, VOCAB, EOS, LONGEST = 4, 24, 2, 64


def next_token(text):
    return crc32(bytes(text)) % VOCAB


def whole_text(request):
    """(output, reason) of a request that is not aborted."""
    sampling, text = request.sampling, list(request.token_ids)
    while True:
        text.append(next_token(text))
        output = text[len(request.token_ids) :]
        if (output[-1] == EOS and not sampling.ignore_eos) or output[-1] in sampling.stop_token_ids:
            return output, "stop"
        if len(output) == sampling.max_tokens or len(text) == LONGEST:
            return output, "length"


@dataclass
class Step:
    """A launched step; keeps nothing of the scheduler's that could change."""

    device: "Device"
    plan: object
    rows: list
    after: "Step | None"
    ids: list | None = None

    def result(self):
        self.device.log.append(("read", self.plan.index))
        self.device.run_until(self)
        if self.plan.index in self.device.failing:
            raise RuntimeError("out of memory")
        return StepOutput(token_ids=self.ids, busy_s=0.01)

    def written_of_others(self, rows):
        """Blocks that it writes to for a request, and that another request has in `rows`."""
        return {
            block
            for name, table, start, ids, _ in self.rows
            for block in table[start // BLOCK : -(-(start + len(ids)) // BLOCK)]
            if any(other != name and block in held for other, held, *_ in rows)
        }


class Device:
    """`eager`: runs a step when it is launched. Otherwise it runs no sooner than it must."""

    def __init__(self, blocks, *, eager=False, failing=(), refusing=()):
        self.memory = [[-1] * BLOCK for _ in range(blocks + 1)]
        self.host = {}
        self.eager, self.failing, self.refusing = eager, set(failing), set(refusing)
        self.log = []
        self.launched = []  # those that have not run, in order
        self.during = {}  # number of a step → what happens while it is launched

    def launch(self, plan, after=None):
        if plan.index in self.refusing:
            raise RuntimeError("nothing can be launched now")
        rows = [
            (
                chunk.request_id,
                list(chunk.block_table),
                chunk.start,
                [None] if plan.drawn else chunk.tokens[chunk.start : chunk.start + chunk.count],
                chunk.samples,
            )
            for chunk in plan.chunks
        ]
        step = Step(self, plan, rows, after)
        for other in self.launched:
            assert other.written_of_others(rows) == set()
        self.log.append(("launch", plan.index))
        self.launched.append(step)
        self.during.get(plan.index, lambda: None)()
        if self.eager:
            self.run_until(step)
        return step

    def execute(self, plan):
        return self.launch(plan).result()

    def run_until(self, last):
        while last.ids is None:
            step = self.launched.pop(0)
            step.ids = [self._compute(step, at) for at in range(len(step.rows))]
            step.ids = [token for token, row in zip(step.ids, step.rows, strict=True) if row[-1]]

    def _compute(self, step, at):
        _, table, start, ids, _ = step.rows[at]
        if step.plan.drawn is not None:
            ids = [step.after.ids[step.plan.drawn[at]]]
        for position, token in enumerate(ids, start):
            self.memory[table[position // BLOCK]][position % BLOCK] = token
        text = [self.memory[table[at // BLOCK]][at % BLOCK] for at in range(start + len(ids))]
        return next_token(text) if min(text) >= 0 else 0

    def to_host(self, copies):
        assert not self.launched
        for block, slot in copies:
            self.host[slot] = list(self.memory[block])

    def from_host(self, copies):
        assert not self.launched
        for block, slot in copies:
            self.memory[block] = list(self.host[slot])


class Peer:
    """A KV service whose pulls end when a test says so. It writes at once, whatever runs."""

    def __init__(self, engine):
        self._engine = engine
        self.jobs = []
        self.cancelled = []

    def start_pull(self, job):
        assert self._engine.device.launched == []
        self.jobs.append(job)

    def cancel_pull(self, request_id, attempt):
        self.cancelled.append(request_id)
        (job,) = [job for job in self.jobs if job.request_id == request_id]
        self.jobs.remove(job)
        self._post_failure(job, "cancelled")

    def ready(self, job):
        self._engine.loop.post(
            PullReady(
                request_id=job.request_id,
                attempt=job.attempt,
                first_token=next_token(job.token_ids),
                prefill_pod="p",
                lasts_s=59.0,
            )
        )

    def bring(self):
        """The oldest pull brings its KV."""
        job = self.jobs.pop(0)
        self.ready(job)
        for at in range(job.have_tokens, len(job.token_ids)):
            self._engine.device.memory[job.block_ids[at // BLOCK]][at % BLOCK] = job.token_ids[at]
        self._engine.loop.post(
            PullDone(
                request_id=job.request_id,
                attempt=job.attempt,
                bytes_moved=0,
                seconds=0.1,
                exposed_s=0.1,
            )
        )

    def fail(self):
        """The oldest pull brings damaged KV, and is given up."""
        job = self.jobs.pop(0)
        for at in range(job.have_tokens, len(job.token_ids)):
            self._engine.device.memory[job.block_ids[at // BLOCK]][at % BLOCK] = 0
        self._post_failure(job, "broken")

    def _post_failure(self, job, cause):
        self._engine.loop.post(
            PullFailed(
                request_id=job.request_id, attempt=job.attempt, cause=cause, message="no KV came"
            )
        )


class Engine:
    """A loop without its thread: `turn` is one round of it."""

    def __init__(
        self, *, ahead=True, blocks=64, seqs=4, tokens=64, evicts=False, slots=0, **device
    ):
        self.now = 100.0
        self.device = Device(blocks, **device)
        self.scheduler = Scheduler(
            pool=BlockPool(num_blocks=blocks, block_size=BLOCK),
            limits=Limits(
                max_num_seqs=seqs, max_num_batched_tokens=tokens, max_queue=64, vocab_size=VOCAB
            ),
            policy=MaxUtilization() if evicts else GuaranteedNoEvict(),
            preemption=Preemption("swap" if slots else "recompute", HostPool(slots)),
            eos=frozenset({EOS}),
            max_model_len=LONGEST,
        )
        self.metrics = EngineMetrics(
            EngineConfig(model="m", served_name="m", block_size=BLOCK), max_model_len=LONGEST
        )
        self.loop = EngineLoop(
            scheduler=self.scheduler,
            runner=self.device,
            metrics=self.metrics,
            deliver=self._deliver,
            clock=lambda: self.now,
            launcher=self.device if ahead else None,
        )
        self.peer = self.loop._kv_service = Peer(self)
        self.clients = {}
        self.requests = {}
        self.stops = {}  # request → after how many tokens its client says that it has enough

    def _deliver(self, batch):
        for client, event in batch:
            if isinstance(event, Refusal):
                client.refuse(event)
                continue
            if client.end == "stopped":  # as the server, which has sent the end already
                continue
            client.emit(event)
            name = event.sequence.request_id
            if len(client.ids) == self.stops.get(name) and client.end is None:
                self.loop.stop_here(name)
                client.end = "stopped"

    def ask(
        self, name, prompt, *, max_tokens=8, stop_after=None, pulled=False, held_s=0.0, **sampling
    ):
        request = NewRequest(
            request_id=name,
            token_ids=list(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),
            arrival_s=self.now,
            candidates=("10.0.0.1:8002",) if pulled else (),
            first_token_by_s=self.now + held_s if held_s else 0.0,
        )
        self.requests[name], self.clients[name] = request, Client()
        self.stops[name] = stop_after
        assert self.loop.submit(request, self.clients[name]) is None
        return self.clients[name]

    def abort(self, name):
        client = self.clients[name]
        if client.end is None:
            client.end = "aborted"
            self.loop.abort(name)

    def turn(self):
        self.now += 0.01
        self.loop._take_in(wait=False)
        worked = self.loop._turn()
        self.loop._flush()
        return worked

    def finish(self, turns=2000):
        for _ in range(turns):
            if self.peer.jobs:
                self.peer.bring()
            if not self.turn() and not self.loop.unfinished:
                return
        raise AssertionError("work is stuck")

    def assert_empty(self):
        assert (self.scheduler.sequences, self.scheduler.running) == ({}, [])
        assert (self.scheduler.pool.used, self.scheduler.blocks.growth_blocks) == (0, 0)
        assert self.device.launched == []
