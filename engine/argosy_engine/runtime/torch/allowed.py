"""Which tokens may follow, and what the client adds to their logits; before the penalties.

The order is vLLM's: `allowed_token_ids`, `bad_words`, `min_tokens`, `logit_bias`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from argosy_engine.core.sampling import SamplingParams

__all__ = ["forbid_", "mask_"]

_NEVER = float("-inf")


def forbid_(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    histories: Sequence[Sequence[int]],
    n_prompts: Sequence[int],
    eos: Collection[int],
) -> None:
    """Change `logits` [S, vocab] in place. Ids beyond the vocabulary have no effect."""
    vocab, device = logits.shape[1], logits.device
    rows: list[int] = []
    ids: list[int] = []
    added: list[float] = []
    for row, params in enumerate(sampling):
        if params.allowed_token_ids:
            allowed = torch.tensor(
                [i for i in params.allowed_token_ids if i < vocab], device=device
            )
            kept = logits[row, allowed]
            logits[row] = _NEVER
            logits[row, allowed] = kept
        tokens, n_prompt = histories[row], n_prompts[row]
        never = set(_never(params, tokens, n_prompt, eos))
        biases = dict(params.logit_bias) | dict.fromkeys(never, _NEVER)
        for token, bias in biases.items():
            if token < vocab:
                rows.append(row)
                ids.append(token)
                added.append(bias)
    if rows:
        at = (torch.tensor(rows, device=device), torch.tensor(ids, device=device))
        logits[at] += torch.tensor(added, device=device).to(logits.dtype)


def mask_(logits: torch.Tensor, masks: Mapping[int, bytes]) -> None:
    """Keep what the masks of grammars allow; `masks` are of rows, one bit a token."""
    if not masks:
        return
    vocab, device = logits.shape[1], logits.device
    bits = torch.frombuffer(bytearray(b"".join(masks.values())), dtype=torch.uint8)
    bits = bits.view(len(masks), -1, 1).to(device)
    places = torch.arange(8, dtype=torch.uint8, device=device)
    allowed = ((bits >> places) & 1).view(len(masks), -1)[:, :vocab].bool()
    rows = torch.tensor(list(masks), device=device)
    logits[rows] = logits[rows].masked_fill(~allowed, _NEVER)


def _never(
    params: SamplingParams, tokens: Sequence[int], n_prompt: int, eos: Collection[int]
) -> Iterator[int]:
    """Ids that must not follow `tokens`."""
    if len(tokens) - n_prompt < params.min_tokens:
        yield from params.stop_token_ids
        if not params.ignore_eos:
            yield from eos
    begin = n_prompt - params.sent
    for word in params.bad_words:
        before = len(word) - 1
        if len(tokens) - begin >= before and tuple(tokens[len(tokens) - before :]) == word[:-1]:
            yield word[-1]
