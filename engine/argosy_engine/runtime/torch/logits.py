"""What changes the logits of a step before the draw: exclusions, grammars, penalties.

The order is vLLM's: `allowed_token_ids`, `bad_words`, `min_tokens`, `logit_bias`; then penalties.
Masks of grammars are made in a thread while the model computes: the tokens before a draw are known
when its step begins, so no step waits for a mask.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import FlatBatch
from argosy_engine.core.tokenizer import Grammars
from argosy_engine.errors import GrammarError

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
            self.others[torch.from_numpy(_within(params.allowed_token_ids, vocab)).to(device)] = (
                False
            )
        biases = {token: bias for token, bias in params.logit_bias if token < vocab}
        self.biased = np.array(list(biases), np.int64)
        self.biases = np.array(list(biases.values()), np.float32)
        ends = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos)
        self.ends = _within(ends, vocab)
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


def _within(ids: Sequence[int], vocab: int) -> npt.NDArray[np.int64]:
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


Made = tuple[dict[int, bytes], dict[int, str]]
"""By row: masks, and why there is none."""


class Masks:
    """One runner's."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def begin(self, flat: FlatBatch) -> "Future[Made] | None":
        """None if no row has a grammar. The rows' tokens must not change until it is done."""
        rows = [row for row, params in enumerate(flat.sampling) if params.grammar]
        return self._thread.submit(self._make, flat, rows) if rows else None

    def close(self) -> None:
        self._thread.shutdown()

    def _make(self, flat: FlatBatch, rows: Sequence[int]) -> Made:
        masks: dict[int, bytes] = {}
        failed: dict[int, str] = {}
        for row in rows:
            params = flat.sampling[row]
            output = flat.histories[row][flat.n_prompts[row] - params.sent :]
            try:
                assert self._grammars is not None
                masks[row] = self._grammars.mask(flat.request_ids[row], params.grammar, output)
            except GrammarError as error:
                failed[row] = str(error)
            except BaseException as error:  # a panic in Rust is no Exception
                failed[row] = f"the answer cannot go on: {error}"
        return masks, failed


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
