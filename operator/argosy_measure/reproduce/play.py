"""Requests through the engine's scheduler, in virtual time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import mean

from argosy_engine.core.batching import BATCHING
from argosy_engine.core.blocks import BlockPool, HostPool
from argosy_engine.core.capacity import POLICIES
from argosy_engine.core.limits import Limits
from argosy_engine.core.preemption import Preemption
from argosy_engine.core.request import NewRequest, Sequence
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import SchedulerOutput, StepOutput, StepPlan
from argosy_measure.reproduce.timing import Pod

BLOCK = 32
"""Tokens of a block of KV: the engine's default."""
PERIOD, WORD = 13, 1
"""The token that ends an answer, as in the text, and any other one."""
HOST_BLOCKS = 1 << 20
"""Room on the host for swapped KV: always enough."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. The engine knows `most`, as a client sends it, and not `output`."""

    prompt: int
    output: int
    """Tokens of the answer, at its end the period."""
    most: int
    """`max_tokens`."""
    at_s: float = 0.0
    """When it arrives."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How an engine is started."""

    batching: str
    """A name of `BATCHING`."""
    policy: str
    """A name of `POLICIES`."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    swaps: bool = False
    """Whether the KV of preempted requests goes to the host and back."""

    def scheduler(self, pod: Pod) -> Scheduler:
        """Return the scheduler of an engine on this pod."""
        tokens = pod.kv_tokens(self.max_num_seqs, self.max_num_batched_tokens)
        limits = Limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_queue=1 << 30,
        )
        return Scheduler(
            pool=BlockPool(num_blocks=tokens // BLOCK, block_size=BLOCK),
            limits=limits,
            policy=POLICIES[self.policy](),
            eos=frozenset({PERIOD}),
            max_model_len=1 << 30,
            batching=BATCHING[self.batching],
            preemption=Preemption("swap", HostPool(HOST_BLOCKS)) if self.swaps else None,
        )


@dataclass(slots=True)
class Run:
    """What was seen."""

    sequences: list[Sequence] = field(default_factory=list)
    """Those of the requests, in the order of arrival; each has the times of its tokens."""
    gaps_s: list[float] = field(default_factory=list)
    """Between two tokens of one answer, for all of them."""
    batches: list[tuple[int, int]] = field(default_factory=list)
    """(decodes, prompts) of each step."""
    seconds: float = 0.0
    """Until the last answer ended."""
    preemptions: int = 0
    read_again: int = 0
    """Tokens of KV that chunks of prompts read because they were computed before them."""

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of answers per second."""
        return sum(one.n_output for one in self.sequences) / self.seconds

    @property
    def batch_of_decodes(self) -> float:
        """Mean decodes of the steps that have any."""
        return mean(decodes for decodes, _ in self.batches if decodes)

    @property
    def batch_of_all(self) -> float:
        """Mean sequences of all steps, those of prompts alone among them."""
        return mean(decodes + prompts for decodes, prompts in self.batches)

    @property
    def ttft_s(self) -> list[float]:
        """Time to first token of each request."""
        return [(one.first_token_s or 0.0) - one.request.arrival_s for one in self.sequences]

    @property
    def tpot_s(self) -> list[float]:
        """Mean time between tokens after the first, of each request that has two."""
        return [
            ((one.last_token_s or 0.0) - (one.first_token_s or 0.0)) / (one.n_output - 1)
            for one in self.sequences
            if one.n_output > 1
        ]


def play(pod: Pod, engine: Engine, requests: Iterable[Request]) -> Run:
    """Serve the requests until all answers have ended.

    Every request has a text of its own, so that no prefix is found in the cache.
    """
    scheduler, run, now = engine.scheduler(pod), Run(), 0.0
    coming = sorted(requests, key=lambda one: one.at_s)
    ends = {str(index): one.output for index, one in enumerate(coming)}
    while len(run.sequences) < len(coming) or scheduler.unfinished:
        while len(run.sequences) < len(coming) and coming[len(run.sequences)].at_s <= now:
            index = len(run.sequences)
            run.sequences.append(scheduler.add(_new(str(index), coming[index])))
        out = scheduler.schedule(now)
        run.preemptions += len(out.preempted)
        if out.plan is None:
            if len(run.sequences) == len(coming):
                raise ValueError("a request is larger than the pool of KV: it never enters")
            now = coming[len(run.sequences)].at_s
            continue
        _note(run, out.plan)
        now += pod.step_s(out.plan) + _copy_s(pod, out)
        drawn = [_draw(chunk.request_id, ends, chunk.start + chunk.count - chunk.n_prompt + 1)
                 for chunk in out.plan.chunks if chunk.samples]  # fmt: skip
        # The engine would fit its step times to `busy_s`. No policy that is played here reads the
        # fit, and it takes longer than all the rest.
        emissions = scheduler.update(out.plan, StepOutput(token_ids=drawn, busy_s=0.0), now)
        run.gaps_s += [one.gap_s for one in emissions if one.gap_s is not None]
    run.seconds = now
    return run


def _new(name: str, request: Request) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=[WORD] * request.prompt,
        sampling=SamplingParams(max_tokens=request.most),
        arrival_s=request.at_s,
        cache_salt=name,
    )


def _draw(name: str, ends: dict[str, int], produced: int) -> int:
    return PERIOD if produced == ends[name] else WORD


def _note(run: Run, plan: StepPlan) -> None:
    run.batches.append((plan.decode_sequences, plan.prefill_sequences))
    if plan.prefill_sequences:
        run.read_again += sum(chunk.start for chunk in plan.chunks if not chunk.decode)


def _copy_s(pod: Pod, out: SchedulerOutput) -> float:
    copies = len(out.to_host) + len(out.from_host)
    return copies * BLOCK * pod.model.kv_bytes_per_token / pod.copy_bytes_per_s
