"""Makes tokens less likely that a sequence already contains, before the next one is drawn."""

from collections import Counter
from collections.abc import Sequence

import torch

from argosy_engine.core.sampling import SamplingParams

__all__ = ["penalise_"]


def penalise_(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    histories: Sequence[Sequence[int]],
    n_prompts: Sequence[int] | None = None,
) -> None:
    """Change `logits` [S, vocab] in place, all rows in one pass; `histories` [S] are prompt and
    output so far, `n_prompts` [S] how many of those are the prompt.

    `repetition_penalty` divides positive logits of seen tokens and multiplies negative ones, as in
    Hugging Face's and vLLM's samplers. Then `frequency_penalty` and `presence_penalty` are taken
    away for tokens of the output, as OpenAI defines them.
    """
    rows: list[int] = []
    ids: list[int] = []
    factors: list[float] = []
    taken: list[float] = []
    for row, (params, tokens) in enumerate(zip(sampling, histories, strict=True)):
        less = params.repetition_penalty
        output = _output_counts(params, tokens, n_prompts[row] if n_prompts else 0)
        seen = set(tokens) if less != 1.0 else output.keys()
        for token in seen:
            rows.append(row)
            ids.append(token)
            factors.append(less)
            count = output[token]
            taken.append(count * params.frequency_penalty + bool(count) * params.presence_penalty)
    if not rows:
        return
    device = logits.device
    at = (torch.tensor(rows, device=device), torch.tensor(ids, device=device))
    less_, taken_ = (torch.tensor(x, dtype=torch.float32, device=device) for x in (factors, taken))
    found = logits[at].float()
    logits[at] = (torch.where(found > 0, found / less_, found * less_) - taken_).to(logits.dtype)


def _output_counts(params: SamplingParams, tokens: Sequence[int], n_prompt: int) -> Counter[int]:
    if not params.presence_penalty and not params.frequency_penalty:
        return Counter()
    return Counter(tokens[n_prompt - params.sent :])
