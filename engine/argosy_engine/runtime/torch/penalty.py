"""Makes tokens less likely that a sequence already contains, before the next one is drawn."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from argosy_engine.core.sampling import SamplingParams

__all__ = ["Penalties", "penalise_"]


class _Seen:
    """The different tokens of one sequence that a penalty concerns; grows with the sequence."""

    def __init__(self, params: SamplingParams, tokens: Sequence[int], n_prompt: int) -> None:
        self.params, self.tokens, self.n_prompt = params, tokens, n_prompt
        counted = params.presence_penalty or params.frequency_penalty
        self._output = max(n_prompt - params.sent, 0) if counted else None
        """Where the counted tokens begin; None: none are."""
        self._every = params.repetition_penalty != 1.0
        self._read = 0 if self._every or self._output is None else self._output
        self._index: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.zeros(64, np.int64)

    def still(self, params: SamplingParams, tokens: Sequence[int], n_prompt: int) -> bool:
        """Whether it is about this sequence, as it was or longer."""
        same = tokens is self.tokens and n_prompt == self.n_prompt
        same = same and (params is self.params or params == self.params)
        return same and len(tokens) >= self._read

    def read(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Ids, each once, and how often the output has each, after the tokens that are new."""
        if self._every or self._output is not None:
            for at in range(self._read, len(self.tokens)):
                index = self._index.setdefault(self.tokens[at], len(self._index))
                if index == len(self._ids):
                    self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                    self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
                self._ids[index] = self.tokens[at]
                self._counts[index] += self._output is not None and at >= self._output
            self._read = len(self.tokens)
        size = len(self._index)
        return self._ids[:size], self._counts[:size]


class Penalties:
    """Remembers what the sequences of the last step contain, so that a step reads new tokens only.

    A sequence that was not in that step is read again from its begin.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def apply_(
        self,
        logits: torch.Tensor,
        sampling: Sequence[SamplingParams],
        histories: Sequence[Sequence[int]],
        n_prompts: Sequence[int],
        names: Sequence[str],
    ) -> None:
        """As `penalise_`; `names` [S] are the requests, and a request's history is one list that
        only grows."""
        before, self._seen = self._seen, {}
        rows: list[int] = []
        read: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for row, asked in enumerate(zip(sampling, histories, n_prompts, strict=True)):
            params = asked[0]
            if (
                params.repetition_penalty == 1.0
                and not params.presence_penalty
                and not params.frequency_penalty
            ):
                continue
            seen = before.get(names[row])
            if seen is None or not seen.still(*asked):
                seen = _Seen(*asked)
            self._seen[names[row]] = seen
            rows.append(row)
            read.append(seen.read())
        if rows:
            _take(logits, [sampling[row] for row in rows], rows, read)


def penalise_(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    histories: Sequence[Sequence[int]],
    n_prompts: Sequence[int] | None = None,
) -> None:
    """Change contiguous `logits` [S, vocab] in place, all rows in one pass; `histories` [S] are
    prompt and output so far, `n_prompts` [S] how many of those are the prompt.

    `repetition_penalty` divides positive logits of seen tokens and multiplies negative ones, as in
    Hugging Face's and vLLM's samplers. Then `frequency_penalty` and `presence_penalty` are taken
    away for tokens of the output, as OpenAI defines them.
    """
    names = [str(row) for row in range(len(sampling))]
    Penalties().apply_(logits, sampling, histories, n_prompts or [0] * len(sampling), names)


def _take(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    rows: Sequence[int],
    read: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
) -> None:
    sizes = [len(ids) for ids, _ in read]
    counts = np.concatenate([counts for _, counts in read])

    def each(values: Sequence[float]) -> npt.NDArray[np.float64]:
        return np.repeat(np.array(values, np.float64), sizes)

    frequency = each([params.frequency_penalty for params in sampling])
    presence = each([params.presence_penalty for params in sampling])
    taken = (counts * frequency + (counts > 0) * presence).astype(np.float32)
    factors = each([params.repetition_penalty for params in sampling]).astype(np.float32)
    device = logits.device
    ids = np.concatenate([ids for ids, _ in read])
    flat = np.repeat(np.array(rows, np.int64) * logits.shape[1], sizes) + ids
    at, less, away = (torch.from_numpy(values).to(device) for values in (flat, factors, taken))
    every = logits.view(-1)  # one index is a third of the time that two take
    found = every[at].float()
    changed = torch.where(found > 0, found / less, found * less) - away
    every[at] = changed.to(logits.dtype)
