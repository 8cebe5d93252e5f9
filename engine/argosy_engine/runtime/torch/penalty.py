"""Makes tokens less likely that a sequence already contains, before the next one is drawn."""

from collections.abc import Sequence

import torch

from argosy_engine.core.sampling import SamplingParams

__all__ = ["penalise_"]


def penalise_(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], histories: Sequence[Sequence[int]]
) -> None:
    """Divide positive logits of seen tokens by `repetition_penalty`, multiply negative ones.

    `logits` [S, vocab] is changed in place; `histories` [S] are prompt and output so far, as in
    Hugging Face's and vLLM's samplers.
    """
    for row, (params, tokens) in enumerate(zip(sampling, histories, strict=True)):
        if params.repetition_penalty != 1.0:
            seen = torch.tensor(list(set(tokens)), device=logits.device)
            found = logits[row, seen].float()
            less = params.repetition_penalty
            logits[row, seen] = torch.where(found > 0, found / less, found * less).to(logits.dtype)
