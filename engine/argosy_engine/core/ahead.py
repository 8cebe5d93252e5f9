"""The step that follows another one if nothing enters and nothing stops, planned while that runs.

Every sequence of the step that runs draws a token. Those that are not known to end with it go on:
each computes the token that it draws there. The runner has that token on its device; here it is not
known yet, so nothing may depend on which one it is.

A stop token, a stop string, an abort or an error may end a sequence after all. Then its share of
the step that follows is computed for nothing, and what it draws is dropped. The block that this
share writes to is not given to anyone else before the step has ended.
"""

from dataclasses import dataclass, replace

from argosy_engine.core.handover.pulls import may_pull
from argosy_engine.core.request import Chunk, Sequence
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import BlockedBy, StepOutput, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A step without a scheduling round of its own."""

    plan: StepPlan

    sequences: list[Sequence]
    """Those of the plan's chunks."""

    written: list[int]
    """The blocks that it writes to, each with one reference more until the step has ended."""

    blocked_by: BlockedBy | None = None
    """Why the first waiting request was not admitted; None when nothing waits."""

    @property
    def unfinished(self) -> list[Sequence]:
        """Those that did not end meanwhile."""
        return [sequence for sequence in self.sequences if sequence.reason is None]

    def without_the_ended(self, out: StepOutput) -> tuple[StepPlan, StepOutput]:
        """What `Scheduler.update` takes of the step. Its totals stay: all of it was computed."""
        going = [sequence.reason is None for sequence in self.sequences]
        if all(going):
            return self.plan, out
        chunks = tuple(c for c, goes in zip(self.plan.chunks, going, strict=True) if goes)
        drawn = [token for token, goes in zip(out.token_ids, going, strict=True) if goes]
        return replace(self.plan, chunks=chunks), replace(out, token_ids=drawn)


def follow(
    scheduler: Scheduler, plan: StepPlan, sequences: list[Sequence], now: float
) -> Following | None:
    """The step after `plan`, which runs and has these sequences; None: a scheduling round comes
    first. Its sequences get the blocks that their next tokens need, without preemption."""
    alive = [row for row, sequence in enumerate(sequences) if sequence.reason is None]
    if len(alive) != len(scheduler.running):  # someone is not in the step that runs
        return None
    if not all(chunk.samples and chunk.sampling.memoryless for chunk in plan.chunks):
        return None
    going = [row for row in alive if not _ends(sequences[row], scheduler.max_model_len)]
    limits = scheduler.limits
    if not 0 < len(going) <= min(limits.max_num_seqs, limits.max_num_batched_tokens):
        return None
    if _wants_a_round(scheduler, now, all_go_on=len(going) == len(sequences)):
        return None
    following = [sequences[row] for row in going]
    size = scheduler.pool.block_size
    short = [one for one in following if len(one.blocks) * size <= len(one.tokens)]
    if len(short) > scheduler.pool.available:
        return None
    for sequence in short:
        scheduler.blocks.grow(sequence)
    scheduler.last_step += 1
    written = [one.blocks[len(one.tokens) // size] for one in following]
    scheduler.pool.take(written)
    return Following(
        plan=_plan(scheduler.last_step, following, tuple(going), size),
        sequences=following,
        written=written,
        blocked_by="batch" if scheduler.waiting else None,
    )


def _ends(sequence: Sequence, max_model_len: int) -> bool:
    """Whether its next token is the last, whichever that is."""
    return len(sequence.tokens) + 1 >= sequence.max_total(max_model_len)


def _wants_a_round(scheduler: Scheduler, now: float, *, all_go_on: bool) -> bool:
    """Whether a round would do more than choose the same sequences: admit one, or end a wait.

    Where all places of the batch are taken and stay so, those that wait for one wait on. A pull
    needs no place, so whatever may be pulled gets its round.
    """
    full = all_go_on and len(scheduler.running) >= scheduler.limits.max_num_seqs
    first_token_s = scheduler.first_tokens.next_s()
    if scheduler.pulls.due(now) or (first_token_s is not None and first_token_s <= now):
        return True
    if not full:
        return bool(scheduler.waiting or scheduler.arrived)
    return any(one.wait_deadline_s <= now or may_pull(one) for one in scheduler.waiting)


def _plan(index: int, sequences: list[Sequence], drawn: tuple[int, ...], size: int) -> StepPlan:
    context_tokens = 0
    chunks: list[Chunk] = []
    for sequence in sequences:
        sequence.last_step = index
        start = len(sequence.tokens)  # of the token that the step before draws
        context_tokens += start + 1
        # Not `decode_chunk`: that may be the share of the step that runs.
        chunk = Chunk(
            request_id=sequence.request_id,
            tokens=sequence.tokens,
            block_table=sequence.blocks,
            start=start,
            count=1,
            samples=True,
            decode=True,
            sampling=sequence.sampling,
            n_prompt=sequence.n_prompt,
        )
        chunks.append(chunk)
    return StepPlan(
        index=index,
        chunks=tuple(chunks),
        block_size=size,
        prefill_tokens=0,
        prefill_sequences=0,
        decode_sequences=len(chunks),
        decode_context_tokens=context_tokens,
        after_idle=False,
        drawn=drawn,
    )
