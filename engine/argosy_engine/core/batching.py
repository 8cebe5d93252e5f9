"""Which tokens of which sequences a step computes: one function per policy, one signature.

A policy gets the sequences that run and a function that admits the next waiting one. So the policy
decides when new requests enter, and `capacity.py` decides whether they may.

    chunked        decodes, then prompts in order of arrival, cut to what the step has left
    chunked_equal  decodes, then equal parts of all prompts
    mixed          decodes, then whole prompts
    prefill_first  whole prompts alone; decodes in steps without a prompt
    static         a batch is filled once and runs to its last end: the baseline of papers

The first two are vLLM's chunked prefill and TensorRT-LLM's FIRST_COME_FIRST_SERVED and
EQUAL_PROGRESS, `prefill_first` was vLLM's default before.
"""

from typing import Protocol

from argosy_engine.core.limits import Limits
from argosy_engine.core.request import Sequence

Batch = list[tuple[Sequence, int]]
"""Sequences and how many tokens of each to compute, from its first token without KV on."""


class Admit(Protocol):
    def __call__(self, budget: int, *, whole: bool = False) -> Sequence | None:
        """Admit the next waiting request that is computed here; None when no other can enter.

        `budget` is the number of tokens that the step has left for it. With `whole`, all tokens
        that are missing of it must fit, unless they fit into no step. The admitted sequence is at
        the end of `running` afterwards.
        """
        ...


class BatchingPolicy(Protocol):
    """Chooses at most `max_num_seqs` sequences and `max_num_batched_tokens` tokens."""

    def __call__(
        self, running: list[Sequence], admit: Admit, limits: Limits, block_size: int
    ) -> Batch:
        """`running` is in order of admission; each decode in it has a block for its next token."""
        ...


def chunked(running: list[Sequence], admit: Admit, limits: Limits, block_size: int) -> Batch:
    """Decodes first, then prompts under way, then new ones, in chunks that fill the budget.

    A long prompt never delays a decode by more than one step of `max_num_batched_tokens`.
    """
    batch, prefills, budget = _decodes_first(running, limits)
    for sequence in prefills:
        if budget < 1 or len(batch) >= limits.max_num_seqs:
            break
        count = _chunk(sequence, budget, limits, block_size)
        batch.append((sequence, count))
        budget -= count
    while (admitted := admit(budget)) is not None:
        count = _chunk(admitted, budget, limits, block_size)
        batch.append((admitted, count))
        budget -= count
    return batch


def chunked_equal(running: list[Sequence], admit: Admit, limits: Limits, block_size: int) -> Batch:
    """Decodes first, then all prompts by the same number of blocks.

    A short prompt does not wait for a long one before it.
    """
    batch, prefills, budget = _decodes_first(running, limits)
    del prefills[limits.max_num_seqs - len(batch) :]
    while (admitted := admit(budget - block_size * len(prefills))) is not None:
        prefills.append(admitted)
    counts = dict.fromkeys(prefills, 0)
    behind = prefills
    while budget > 0 and behind:
        still_behind = []
        for sequence in behind:
            most = _chunk(sequence, counts[sequence] + budget, limits, block_size)
            more = min(most - counts[sequence], _to_edge(sequence, counts[sequence], block_size))
            if more > 0:
                counts[sequence] += more
                budget -= more
                still_behind.append(sequence)
        behind = still_behind
    batch += [(sequence, count) for sequence, count in counts.items() if count]
    return batch


def mixed(running: list[Sequence], admit: Admit, limits: Limits, block_size: int) -> Batch:
    """Decodes first, then whole prompts. Those that fit into no step are computed in chunks."""
    batch, prefills, budget = _decodes_first(running, limits)
    return batch + _whole_prompts(prefills, admit, limits, block_size, len(batch), budget)


def prefill_first(running: list[Sequence], admit: Admit, limits: Limits, block_size: int) -> Batch:
    """Prompts if there is one that fits, else decodes: the first token comes soonest, and every
    arrival stops the decodes."""
    batch, prefills, _ = _decodes_first(running, limits)
    prompts = _whole_prompts(prefills, admit, limits, block_size, 0, limits.max_num_batched_tokens)
    return prompts or batch


def static(running: list[Sequence], admit: Admit, limits: Limits, block_size: int) -> Batch:
    """Fill all places when nothing runs; then nothing enters before all have ended."""
    if not running:
        while admit(limits.max_num_batched_tokens) is not None:
            pass
    return chunked(running, _admit_none, limits, block_size)


def _admit_none(budget: int, *, whole: bool = False) -> Sequence | None:  # noqa: ARG001
    return None


def _decodes_first(running: list[Sequence], limits: Limits) -> tuple[Batch, list[Sequence], int]:
    """(the decodes that fit, prompts under way, tokens that are left for these)."""
    batch: Batch = []
    prefills: list[Sequence] = []
    for sequence in running:  # `sequence.decoding`, without the call
        length = len(sequence.tokens)
        if length - sequence.num_computed == 1 and length > sequence.n_prompt:
            batch.append((sequence, 1))
        else:
            prefills.append(sequence)
    room = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    if len(batch) > room:  # those that waited longest go first, so that none starves
        batch.sort(key=lambda pair: pair[0].last_step)
        del batch[room:]
    return batch, prefills, limits.max_num_batched_tokens - len(batch)


def _whole_prompts(
    prefills: list[Sequence],
    admit: Admit,
    limits: Limits,
    block_size: int,
    places_taken: int,
    budget: int,
) -> Batch:
    batch: Batch = []
    for sequence in prefills:
        if budget < 1 or places_taken + len(batch) >= limits.max_num_seqs:
            return batch
        if budget < sequence.remaining <= limits.max_num_batched_tokens:
            return batch  # nothing passes it, or it might wait forever
        count = _chunk(sequence, budget, limits, block_size)
        batch.append((sequence, count))
        budget -= count
    while (admitted := admit(budget, whole=True)) is not None:
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


def _to_edge(sequence: Sequence, count: int, block_size: int) -> int:
    """Tokens from behind the first `count` missing ones to the end of their block."""
    return block_size - (sequence.num_computed + count) % block_size


BATCHING: dict[str, BatchingPolicy] = {
    "chunked": chunked,
    "chunked_equal": chunked_equal,
    "mixed": mixed,
    "prefill_first": prefill_first,
    "static": static,
}
"""By the name that users write."""

WHOLE_PROMPTS: frozenset[BatchingPolicy] = frozenset({mixed, prefill_first})
"""Policies that compute no prompt in parts: one of more tokens than a step has is refused."""
