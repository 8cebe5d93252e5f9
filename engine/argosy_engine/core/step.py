"""One step as data: what the scheduler chose, and what the runner computed.

`Scheduler.schedule` returns a `SchedulerOutput`, whose `StepPlan` the engine loop hands to
`Runner.execute`. The runner returns a `StepOutput`, and `Scheduler.update` takes both. A timing
runner needs only the counts; a tensor runner calls `flatten`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from argosy_engine.core.handover.messages import PullJob
from argosy_engine.core.request import BlockTable, Chunk, Emission, ErrorCode, Sequence
from argosy_engine.core.sampling import Likely, SamplingParams

StepKind = Literal["prefill", "decode", "mixed"]
Copies = tuple[tuple[int, int], ...]
"""(block of the pool, slot of the host pool) for each block that moves."""
BlockedBy = Literal["batch", "tokens", "kv", "lease", "pull", "prefix"]
"""What the first waiting request waits for: a place in the batch, room in the step's token budget,
free KV blocks, KV blocks held by leases, the end of other pulls, or its own prefix, which another
request computes."""


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

    drawn: tuple[int, ...] | None = None
    """Set for a step that is planned while the one before it runs: each chunk computes the token
    that this row of that step draws, which `tokens` lacks yet. None: all tokens are known."""

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

    excluded: frozenset[str] = frozenset()
    """Those of `failed` whose own parameters leave no token: no other engine can help."""

    def code_of(self, request_id: str) -> ErrorCode:
        """Of one of `failed`."""
        return "invalid" if request_id in self.excluded else "internal_error"


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

    block_tables: list[BlockTable]
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

    @classmethod
    def empty(cls) -> "FlatBatch":
        """Of no tokens."""
        return cls(
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

    @property
    def table_starts(self) -> list[int]:
        """[B+1] Offset of each sequence's table in `joined_tables`, and their number of blocks."""
        return [0, *accumulate(map(len, self.block_tables))]

    def joined_tables(self) -> bytes:
        """All tables one after another, int32."""
        return b"".join(self.block_tables)


def plan_step(
    index: int, batch: Iterable[tuple[Sequence, int]], block_size: int, *, after_idle: bool
) -> StepPlan:
    """A plan that computes that many tokens of each sequence; `last_step` is theirs then."""
    chunks: list[Chunk] = []
    prefill_tokens = context_tokens = decodes = 0
    for sequence, count in batch:  # properties of `sequence` would double the cost
        tokens, start = sequence.tokens, sequence.num_computed
        length = len(tokens)
        sequence.last_step = index
        if length - start == 1 and length > sequence.n_prompt:
            chunk = sequence.decode_chunk
            if chunk is None:
                chunk = sequence.decode_chunk = _chunk(sequence, count, decode=True)
            else:
                chunk.tokens, chunk.block_table = tokens, sequence.blocks
                chunk.start = start
            chunks.append(chunk)
            decodes += 1
            context_tokens += length
        else:
            chunks.append(_chunk(sequence, count, decode=False))
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


def _chunk(sequence: Sequence, count: int, *, decode: bool) -> Chunk:
    start = sequence.num_computed
    return Chunk(
        request_id=sequence.request_id,
        tokens=sequence.tokens,
        n_prompt=sequence.n_prompt,
        block_table=sequence.blocks,
        start=start,
        count=count,
        samples=start + count == len(sequence.tokens),
        decode=decode,
        sampling=sequence.sampling,
    )


def flatten(plan: StepPlan) -> FlatBatch:
    """Lay a plan out flat; O(tokens of the step)."""
    return _flatten_any(plan) if plan.prefill_sequences else _flatten_decodes(plan)


def _flatten_decodes(plan: StepPlan) -> FlatBatch:
    """As `_flatten_any`, column by column: each chunk is one token, and samples."""
    chunks, size = plan.chunks, plan.block_size
    starts = [chunk.start for chunk in chunks]
    tables = [chunk.block_table for chunk in chunks]
    histories = [chunk.tokens for chunk in chunks]
    ends = [start + 1 for start in starts]
    rows = list(range(len(chunks) + 1))
    if plan.drawn is None:
        token_ids = [tokens[at] for tokens, at in zip(histories, starts, strict=True)]
    else:  # they are on the device only
        token_ids = [0] * len(chunks)
    return FlatBatch(
        token_ids=token_ids,
        positions=starts,
        slot_mapping=[
            table[at // size] * size + at % size for table, at in zip(tables, starts, strict=True)
        ],
        cu_q=rows,
        kv_lens=ends,
        block_tables=[
            _truncate(table, -(-end // size)) for table, end in zip(tables, ends, strict=True)
        ],
        sample_rows=rows[:-1],
        sample_positions=ends,
        sampling=[chunk.sampling for chunk in chunks],
        histories=histories,
        n_prompts=[chunk.n_prompt for chunk in chunks],
        request_ids=[chunk.request_id for chunk in chunks],
    )


def _truncate(table: BlockTable, blocks: int) -> BlockTable:
    return table if len(table) == blocks else table[:blocks]


def _flatten_any(plan: StepPlan) -> FlatBatch:
    size = plan.block_size
    batch = FlatBatch.empty()
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
