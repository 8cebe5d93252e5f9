"""One step, as data: what the scheduler decided and what the runner must compute.

`Scheduler.schedule` makes a `StepPlan`; the loop hands it to `Runner.execute`; both go back to
`Scheduler.update`. A timing runner needs only the counts; a tensor runner calls `flatten`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from argosy_engine.core.handover.messages import PullJob
from argosy_engine.core.request import Emission, Sequence
from argosy_engine.core.sampling import SamplingParams

__all__ = [
    "BlockedBy",
    "Chunk",
    "FlatBatch",
    "SchedulerOutput",
    "StepKind",
    "StepOutput",
    "StepPlan",
    "flatten",
    "plan_step",
]

StepKind = Literal["prefill", "decode", "mixed"]
BlockedBy = Literal["batch", "tokens", "kv", "lease", "pull"]
"""What the first waiting request waits for: a place in the batch, room in the step's token budget,
free KV blocks, KV blocks held by leases, or the end of its peer's other pulls."""


# Chunks and emissions are made once a token: freezing them would double their cost.
@dataclass(slots=True, kw_only=True)
class Chunk:
    """One sequence's share of a step: compute tokens [start, start + count) and write their KV.

    `tokens` (prompt and output so far) and `block_table` are the sequence's own lists, not copies:
    they are valid, and unchanged, until `update` of the same step.
    """

    request_id: str
    tokens: list[int]
    block_table: list[int]
    start: int
    count: int
    samples: bool  # the last computed token is the sequence's last: draw the next one
    decode: bool  # one token that was itself an output; otherwise prompt (or recomputed) tokens
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """A step. Decodes stand before prefills in `chunks`; the totals are over `chunks`."""

    index: int  # counts from 1
    chunks: tuple[Chunk, ...]
    block_size: int
    prefill_tokens: int
    prefill_sequences: int
    decode_sequences: int
    decode_context_tokens: int  # Σ over decode chunks of the KV length that is attended to
    after_idle: bool  # nothing was running before: a timing runner starts a new time line

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
    """Requests that waited too long for admission and failed."""

    blocked_by: BlockedBy | None = None
    """Why the first waiting request was not admitted; None when nothing waits."""

    preempted: tuple[Sequence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a runner hands back: one token id per chunk with `samples`, in the order of the chunks.

    `busy_s` is the execution time of this step in seconds, without the idle time before it; from
    Σ busy_s by kind of step the autoscaler learns capacity. `failed` names requests whose chunks
    could not be computed (others are good); their entry in `token_ids` is any number. `late_s`: how
    long past its due time a timing runner's step ended; a real runner has no due time.
    """

    token_ids: list[int]
    busy_s: float
    late_s: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)  # request id → reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBatch:
    """`StepPlan` as flat lists, ready for `torch.tensor`: N tokens, B sequences, S samples."""

    token_ids: list[int]  # [N]
    positions: list[int]  # [N]
    slot_mapping: list[int]  # [N] block * block_size + offset, where this token's K and V go
    cu_q: list[int]  # [B+1] offsets into the N tokens
    kv_lens: list[int]  # [B] KV length after this step, = start + count
    block_tables: list[list[int]]  # [B][ragged] block ids, cut to ceil(kv_len / block_size)
    sample_rows: list[int]  # [S] index into the N tokens of those to draw from
    sample_positions: list[int]  # [S] position that the drawn token will have (the RNG's key)
    sampling: list[SamplingParams]  # [S]
    histories: list[list[int]]  # [S] tokens so far, the sequences' own lists


def plan_step(
    index: int, batch: Iterable[tuple[Sequence, int]], block_size: int, *, after_idle: bool
) -> StepPlan:
    """A plan that computes that many tokens of each sequence."""
    chunks: list[Chunk] = []
    prefill_tokens = context_tokens = decodes = 0
    for sequence, count in batch:
        request, decode = sequence.request, sequence.decoding
        chunks.append(
            Chunk(
                request_id=request.request_id,
                tokens=sequence.tokens,
                block_table=sequence.blocks,
                start=sequence.num_computed,
                count=count,
                samples=decode or count == sequence.remaining,
                decode=decode,
                sampling=request.sampling,
            )
        )
        if decode:
            decodes += 1
            context_tokens += len(sequence.tokens)
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
    return batch
