"""What is told of tokens: log probabilities and ranks, in the model's own distribution.

`Drawn` is for the drawn tokens of a step. The tokens of a prompt are computed apart in small parts
(`split`, `rank_prompt`): the logits of a whole prompt would take too much memory.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from argosy_engine.core.request import Chunk
from argosy_engine.core.sampling import Likely, SamplingParams
from argosy_engine.core.step import StepPlan

PROMPT_ROWS = 64
"""Tokens of a prompt whose logits are in memory at a time."""


class Drawn:
    """Made from the logits of a step before they are changed, and asked after the draw."""

    def __init__(self, logits: torch.Tensor, sampling: Sequence[SamplingParams]) -> None:
        self._rows = [row for row, one in enumerate(sampling) if one.logprobs is not None]
        self._most = [sampling[row].logprobs or 0 for row in self._rows]
        # A copy, which the changes of the logits do not reach.
        self._shares = logits[self._rows].float().log_softmax(-1) if self._rows else None

    def rank(self, ids: Sequence[int], request_ids: Sequence[str]) -> dict[str, Likely]:
        """By request id, of those that asked."""
        if self._shares is None:
            return {}
        found = rank_likely(self._shares, [ids[row] for row in self._rows], self._most)
        return {request_ids[row]: likely for row, likely in zip(self._rows, found, strict=True)}


def rank_likely(shares: torch.Tensor, ids: Sequence[int], most: Sequence[int]) -> list[Likely]:
    """For each row of log probabilities: the token `ids` has there, and its `most` likeliest."""
    at = torch.tensor(ids, device=shares.device).unsqueeze(1)
    own = shares.gather(1, at)
    ranks = ((shares > own).sum(-1) + 1).tolist()
    width = min(max(most), shares.shape[1])
    values, best = shares.topk(width, dim=-1)
    rows = zip(own.squeeze(1).tolist(), values.tolist(), best.tolist(), strict=True)
    return [
        (
            (ids[row], value, ranks[row]),
            *((best[i], values[i], i + 1) for i in range(min(most[row], width))),
        )
        for row, (value, values, best) in enumerate(rows)
    ]


def split(plan: StepPlan) -> tuple[StepPlan, list[Chunk]]:
    """The plan without the prompts that are told of, and those in parts of at most PROMPT_ROWS
    tokens; of a prompt that ends, its last token stays in the plan and is drawn after."""
    if not plan.prefill_sequences:
        return plan, []
    main: list[Chunk] = []
    parts: list[Chunk] = []
    for chunk in plan.chunks:
        if chunk.sampling.prompt_logprobs is None or chunk.start + 1 >= chunk.n_prompt:
            main.append(chunk)
            continue
        end = chunk.start + chunk.count
        if chunk.samples:
            end -= 1
            main.append(replace(chunk, start=end, count=1))
        for start in range(chunk.start, end, PROMPT_ROWS):
            count = min(PROMPT_ROWS, end - start)
            parts.append(replace(chunk, start=start, count=count, samples=False))
    return replace(plan, chunks=tuple(main)), parts


def rank_prompt(logits: torch.Tensor, chunk: Chunk) -> dict[int, Likely]:
    """By position; `logits` are those of the chunk's tokens."""
    positions = range(chunk.start + 1, min(chunk.start + chunk.count + 1, chunk.n_prompt))
    ids = chunk.tokens[positions.start : positions.stop]
    shares = logits[: len(ids)].float().log_softmax(-1)
    most = chunk.sampling.prompt_logprobs or 0
    return dict(zip(positions, rank_likely(shares, ids, [most] * len(ids)), strict=True))
