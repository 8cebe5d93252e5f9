"""One step as data: what the scheduler chose, and what the runner computed.

`Scheduler.schedule` returns a `SchedulerOutput`, whose `StepPlan` the engine loop hands to
`Runner.execute`. The runner returns a `StepOutput`, and `Scheduler.update` takes both. A timing
runner needs only the counts; a tensor runner calls `flatten`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from argosy_engine.core.handover.messages import PullJob
from argosy_engine.core.request import Emission, Sequence
from argosy_engine.core.sampling import Likely, SamplingParams

__all__ = [
    "BlockedBy",
    "Chunk",
    "Copies",
    "FlatBatch",
    "SchedulerOutput",
    "StepKind",
    "StepOutput",
    "StepPlan",
    "flatten",
    "plan_step",
]

StepKind = Literal["prefill", "decode", "mixed"]
Copies = tuple[tuple[int, int], ...]
"""(block of the pool, slot of the host pool) for each block that moves."""
BlockedBy = Literal["batch", "tokens", "kv", "lease", "pull", "prefix"]
"""What the first waiting request waits for: a place in the batch, room in the step's token budget,
free KV blocks, KV blocks held by leases, the end of other pulls, or its own prefix, which another
request computes."""


# Chunks and emissions are made once a token: freezing them would double their cost.
@dataclass(slots=True, kw_only=True)
class Chunk:
    """One sequence's share of a step: compute tokens [start, start + count) and write their KV.

    `tokens` and `block_table` are the sequence's own lists, not copies: they do not change until
    `update` of the same step.
    """

    request_id: str

    tokens: list[int]
    """Prompt and output so far."""

    block_table: list[int]
    """KV blocks in the order of the text."""

    start: int
    count: int

    samples: bool
    """The chunk reaches the sequence's last token, so the next one is drawn."""

    decode: bool
    """One token that was itself an output; False for prompt tokens and recomputed ones."""

    sampling: SamplingParams

    n_prompt: int = 0
    """How many of `tokens` are the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """A step. The totals are over `chunks`."""

    index: int
    """Counts from 1."""

    chunks: tuple[Chunk, ...]
    block_size: int
    prefill_tokens: int
    prefill_sequences: int
    decode_sequences: int

    decode_context_tokens: int
    """Sum over the decodes of the KV length that each attends to, in tokens."""

    after_idle: bool
    """No step ran before: a timing runner counts from now instead of from the last step's end."""

    @property
    def kind(self) -> StepKind:
        if not self.prefill_sequences:
            return "decode"
        return "mixed" if self.decode_sequences else "prefill"

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """What `Scheduler.schedule` asks of the engine loop."""

    plan: StepPlan | None
    """None when there is nothing to compute."""

    pull_jobs: tuple[PullJob, ...] = ()
    """Pulls to start."""

    cancels: tuple[tuple[str, int], ...] = ()
    """(request id, attempt) of pulls to stop."""

    abandoned: tuple[str, ...] = ()
    """Ids of requests whose pull was not confirmed as stopped in time; they go on without it."""

    emissions: tuple[Emission, ...] = ()
    """Requests that waited too long for admission and failed, and first tokens that were held."""

    blocked_by: BlockedBy | None = None
    """Why the first waiting request was not admitted; None when nothing waits."""

    preempted: tuple[Sequence, ...] = ()
    """Their KV is in the host pool if they have `swapped` slots, and gone otherwise."""

    to_host: Copies = ()
    """To copy before anything else writes to the pool."""

    from_host: Copies = ()
    """To copy after that, before the step."""

    resumed: tuple[Sequence, ...] = ()
    """Those whose KV `from_host` brings back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a runner returns."""

    token_ids: list[int]
    """One per chunk with `samples`, in the order of the chunks."""

    busy_s: float
    """Execution time in seconds, without idle time before. The autoscaler learns capacity from its
    sum by kind of step."""

    late_s: float = 0.0
    """Seconds by which a timing runner's step ended after its due time; real runners have none."""

    likely: dict[str, Likely] = field(default_factory=dict)
    """Request id → what is told of its drawn token, for those that ask for it."""

    prompt_likely: dict[str, dict[int, Likely]] = field(default_factory=dict)
    """Request id → position → what is told of the prompt's token there."""

    failed: dict[str, str] = field(default_factory=dict)
    """Request id → message, for chunks that could not be computed. Their entry in `token_ids` may
    be any number; the other chunks are good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBatch:
    """`StepPlan` as flat lists, ready for `torch.tensor`: N tokens, B sequences, S samples."""

    token_ids: list[int]
    """[N]"""

    positions: list[int]
    """[N]"""

    slot_mapping: list[int]
    """[N] block * block_size + offset, where this token's K and V go."""

    cu_q: list[int]
    """[B+1] Offset of each sequence's first token among the N, and N."""

    kv_lens: list[int]
    """[B] KV length after this step, start + count."""

    block_tables: list[list[int]]
    """[B][ragged] Block ids, cut to ceil(kv_len / block_size)."""

    sample_rows: list[int]
    """[S] Index among the N tokens of those whose logits are drawn from."""

    sample_positions: list[int]
    """[S] Position that the drawn token will have; the random generator is keyed by it."""

    sampling: list[SamplingParams]
    """[S]"""

    histories: list[list[int]]
    """[S] Tokens so far, the sequences' own lists."""

    n_prompts: list[int]
    """[S] How many of these tokens are the prompt."""

    request_ids: list[str]
    """[S]"""


def plan_step(
    index: int, batch: Iterable[tuple[Sequence, int]], block_size: int, *, after_idle: bool
) -> StepPlan:
    """A plan that computes that many tokens of each sequence."""
    chunks: list[Chunk] = []
    prefill_tokens = context_tokens = decodes = 0
    for sequence, count in batch:  # properties of `sequence` would double the cost
        request, tokens, start = sequence.request, sequence.tokens, sequence.num_computed
        length = len(tokens)
        decode = length - start == 1 and length > sequence.n_prompt
        chunks.append(
            Chunk(
                request_id=request.request_id,
                tokens=tokens,
                n_prompt=sequence.n_prompt,
                block_table=sequence.blocks,
                start=start,
                count=count,
                samples=start + count == length,
                decode=decode,
                sampling=request.sampling,
            )
        )
        if decode:
            decodes += 1
            context_tokens += length
        else:
            prefill_tokens += count
    return StepPlan(
        index=index,
        chunks=tuple(chunks),
        block_size=block_size,
        prefill_tokens=prefill_tokens,
        prefill_sequences=len(chunks) - decodes,
        decode_sequences=decodes,
        decode_context_tokens=context_tokens,
        after_idle=after_idle,
    )


def flatten(plan: StepPlan) -> FlatBatch:
    """Lay a plan out flat; O(tokens of the step)."""
    size = plan.block_size
    batch = FlatBatch(
        token_ids=[],
        positions=[],
        slot_mapping=[],
        cu_q=[0],
        kv_lens=[],
        block_tables=[],
        sample_rows=[],
        sample_positions=[],
        sampling=[],
        histories=[],
        n_prompts=[],
        request_ids=[],
    )
    for chunk in plan.chunks:
        end = chunk.start + chunk.count
        table = chunk.block_table
        batch.token_ids.extend(chunk.tokens[chunk.start : end])
        batch.positions.extend(range(chunk.start, end))
        batch.slot_mapping.extend(
            table[position // size] * size + position % size for position in range(chunk.start, end)
        )
        batch.cu_q.append(batch.cu_q[-1] + chunk.count)
        batch.kv_lens.append(end)
        batch.block_tables.append(table[: -(-end // size)])
        if chunk.samples:
            batch.sample_rows.append(batch.cu_q[-1] - 1)
            batch.sample_positions.append(end)
            batch.sampling.append(chunk.sampling)
            batch.histories.append(chunk.tokens)
            batch.n_prompts.append(chunk.n_prompt)
            batch.request_ids.append(chunk.request_id)
    return batch
