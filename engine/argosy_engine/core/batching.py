"""Which tokens of which sequences a step computes: one function per policy, one signature.

A policy gets the sequences that run and a function that admits the next waiting one. So the policy
decides when new requests enter, and `capacity.py` decides whether they may.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from argosy_engine.core.limits import Limits
from argosy_engine.core.request import Sequence

__all__ = ["Batch", "BatchingPolicy", "chunked"]

Batch = list[tuple[Sequence, int]]
"""Sequences and how many tokens of each to compute, from its first token without KV on."""


class BatchingPolicy(Protocol):
    """Chooses at most `max_num_seqs` sequences and `max_num_batched_tokens` tokens."""

    def __call__(
        self,
        running: list[Sequence],
        admit: Callable[[int], Sequence | None],
        limits: Limits,
        block_size: int,
    ) -> Batch:
        """`running` is in order of admission; each decode in it has a block for its next token.

        `admit(budget)` admits the next waiting request that is computed here; None when no other
        can enter. `budget` is the number of tokens that the step has left for it. The admitted
        sequence is at the end of `running` afterwards.
        """
        ...


def chunked(
    running: list[Sequence],
    admit: Callable[[int], Sequence | None],
    limits: Limits,
    block_size: int,
) -> Batch:
    """Decodes first, then prompts under way, then new ones, in chunks that fill the budget.

    A long prompt never delays a decode by more than one step of `max_num_batched_tokens`.
    """
    slots, budget = limits.max_num_seqs, limits.max_num_batched_tokens
    decodes: list[Sequence] = []
    prefills: list[Sequence] = []
    for sequence in running:
        (decodes if sequence.decoding else prefills).append(sequence)
    room = min(slots, budget)
    if len(decodes) > room:  # those that waited longest go first, so that none starves
        decodes.sort(key=attrgetter("last_step"))
        del decodes[room:]
    batch = [(sequence, 1) for sequence in decodes]
    budget -= len(batch)
    for sequence in prefills:
        if budget < 1 or len(batch) >= slots:
            break
        count = _chunk(sequence, budget, limits, block_size)
        batch.append((sequence, count))
        budget -= count
    while (admitted := admit(budget)) is not None:
        count = _chunk(admitted, budget, limits, block_size)
        batch.append((admitted, count))
        budget -= count
    return batch


def _chunk(sequence: Sequence, budget: int, limits: Limits, block_size: int) -> int:
    """How many tokens fit, down to a block's edge unless that leaves none or the prompt ends."""
    threshold = limits.long_prefill_threshold or budget
    remaining, held = sequence.remaining, len(sequence.blocks) * block_size
    # A peer's first token may lie beyond the prompt's blocks; its own block comes when it decodes.
    count = min(remaining, budget, threshold, held - sequence.num_computed)
    if count < remaining:
        end = sequence.num_computed + count
        aligned = end - end % block_size - sequence.num_computed
        count = aligned if aligned > 0 else count
    return count
