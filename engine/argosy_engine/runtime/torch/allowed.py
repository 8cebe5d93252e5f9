"""Which tokens may follow, and what the client adds to their logits; before the penalties.

The order is vLLM's: `allowed_token_ids`, `bad_words`, `min_tokens`, `logit_bias`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from argosy_engine.core.sampling import SamplingParams

__all__ = ["Exclusions", "forbid_", "mask_", "may_end"]

_NEVER = float("-inf")
_Key = tuple[int, int, int, int, bool]


class _Asked:
    """What some requests ask of their logits, in the forms that a step reads."""

    def __init__(
        self, params: SamplingParams, eos: Collection[int], vocab: int, device: torch.device
    ) -> None:
        self.params = params
        self.others: torch.Tensor | None = None
        """[vocab] True for tokens beside `allowed_token_ids`."""
        if params.allowed_token_ids:
            self.others = torch.ones(vocab, dtype=torch.bool, device=device)
            self.others[torch.from_numpy(_known(params.allowed_token_ids, vocab)).to(device)] = (
                False
            )
        biases = {token: bias for token, bias in params.logit_bias if token < vocab}
        self.biased = np.array(list(biases), np.int64)
        self.biases = np.array(list(biases.values()), np.float32)
        ends = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos)
        self.ends = _known(ends, vocab)
        self.words: dict[int, list[tuple[int, ...]]] = {}
        """Bad words by their last token but one; those of one token under -1."""
        for word in params.bad_words:
            if word[-1] < vocab:
                self.words.setdefault(word[-2] if len(word) > 1 else -1, []).append(word)

    def never(
        self, params: SamplingParams, tokens: Sequence[int], n_prompt: int
    ) -> npt.NDArray[np.int64]:
        """Ids that must not follow `tokens`."""
        pending = len(tokens) - n_prompt < params.min_tokens
        if not self.words:
            return self.ends if pending else self.ends[:0]
        output = len(tokens) - n_prompt + params.sent
        last = np.array(list(self._last_of_words(tokens, output)), np.int64)
        return np.concatenate([self.ends, last]) if pending else last

    def _last_of_words(self, tokens: Sequence[int], output: int) -> Iterator[int]:
        for word in self.words.get(-1, ()):
            yield word[0]
        for word in self.words.get(tokens[-1], ()) if output > 0 else ():
            before = len(word) - 1
            if output >= before and tuple(tokens[len(tokens) - before :]) == word[:-1]:
                yield word[-1]


def _known(ids: Sequence[int], vocab: int) -> npt.NDArray[np.int64]:
    found = np.array(ids, np.int64)
    return found[found < vocab]


class Exclusions:
    """Keeps what the requests of the last step ask for: their lists are read once, not each step.

    The choices of one request share their lists, and what is kept of these.
    """

    def __init__(self, eos: Collection[int]) -> None:
        self._eos = eos
        self._kept: dict[_Key, _Asked] = {}

    def apply_(
        self,
        logits: torch.Tensor,
        sampling: Sequence[SamplingParams],
        histories: Sequence[Sequence[int]],
        n_prompts: Sequence[int],
    ) -> None:
        """Change contiguous `logits` [S, vocab] in place. Ids beyond the vocabulary have no
        effect."""
        before, self._kept = self._kept, {}
        same: dict[_Key, list[int]] = {}
        for row, params in enumerate(sampling):
            if (
                params.allowed_token_ids
                or params.bad_words
                or params.logit_bias
                or params.min_tokens
            ):
                same.setdefault(_key(params), []).append(row)
        for key, rows in same.items():
            asked = before.get(key)
            if asked is None:
                asked = _Asked(sampling[rows[0]], self._eos, logits.shape[1], logits.device)
            self._kept[key] = asked
            if asked.others is not None:
                at = torch.tensor(rows, device=logits.device)
                logits[at] = logits[at].masked_fill(asked.others, _NEVER)
        every = [(row, self._kept[key]) for key, rows in same.items() for row in rows]
        at = _flat([(row, asked.biased) for row, asked in every], logits)
        if len(at):
            added = np.concatenate([asked.biases for _, asked in every])
            logits.view(-1)[at] += torch.from_numpy(added).to(logits)
        never = [
            (row, asked.never(sampling[row], histories[row], n_prompts[row]))
            for row, asked in every
        ]
        at = _flat(never, logits)
        if len(at):
            logits.view(-1)[at] = _NEVER


def _key(params: SamplingParams) -> _Key:
    """Equal for requests with the same lists. `_Asked` holds the lists, so that no other list gets
    one of these numbers."""
    return (
        id(params.allowed_token_ids),
        id(params.logit_bias),
        id(params.bad_words),
        id(params.stop_token_ids),
        params.ignore_eos,
    )


def _flat(ids: Sequence[tuple[int, npt.NDArray[np.int64]]], logits: torch.Tensor) -> torch.Tensor:
    """Where the ids of each row stand in all of `logits`."""
    if not ids:
        return torch.empty(0, dtype=torch.int64)
    flat = np.concatenate([row * logits.shape[1] + of_row for row, of_row in ids])
    return torch.from_numpy(flat).to(logits.device)


def forbid_(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    histories: Sequence[Sequence[int]],
    n_prompts: Sequence[int],
    eos: Collection[int],
) -> None:
    """One step of `Exclusions`."""
    Exclusions(eos).apply_(logits, sampling, histories, n_prompts)


def may_end(
    sampling: Sequence[SamplingParams], masks: Mapping[int, bytes], eos: Collection[int]
) -> list[SamplingParams]:
    """Without `min_tokens` where a grammar's answer is whole: nothing but its end may follow."""

    def whole(row: int, params: SamplingParams) -> bool:
        allowed = int.from_bytes(masks[row], "little")
        for token in (*eos, *params.stop_token_ids):
            allowed &= ~(1 << token)
        return not allowed

    return [
        replace(params, min_tokens=0)
        if params.min_tokens and row in masks and whole(row, params)
        else params
        for row, params in enumerate(sampling)
    ]


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
