"""Logits to token ids: one batched pass for the greedy rows, one for the sampled ones.

Where a native library computes the steps, it also draws (`native/draw.c`), from `columns` of these
parameters; `sample` draws elsewhere, and is what tests compare the library with.

The draw for position p of a request depends only on (seed, p) and its own logits. It does not
depend on the other rows, nor on preemptions or handovers of the request. So every operation here
works on each row by itself, and equal probabilities are ordered by token id.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.model.native.library import DRAW
from argosy_engine.model.top_p import Draws, TopP

NO_NUMBER = "no token can follow: the model computed no number here"
"""What is told of a row of `lost_rows`."""

_Kind = Callable[[torch.Tensor, "_Draws", int], torch.Tensor]
_TokenAt = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_HEAD = 256
"""How many of the most likely tokens are sorted first. They hold top_p of nearly every real
distribution; rows for which they do not are sorted whole."""
_MOST_K = 2**31 - 1
"""What the library's 32 bits hold; no vocabulary is larger."""
_TEMPERATURES = (1e-30, 1e30)
"""Bounds of the divisor: beyond them, a float32 quotient would not be a number."""


@dataclass(slots=True)
class _Draws:
    """Parameters of n rows, as columns on the device."""

    points: torch.Tensor
    """[n, 1] float64 in [0, 1): where in the cumulative distribution the token is drawn."""

    temperatures: torch.Tensor
    """[n, 1]"""

    top_p: torch.Tensor
    """[n, 1]; 1: off."""

    top_k: torch.Tensor
    """[n, 1] int64, 1 to vocab; vocab: off."""

    min_p: torch.Tensor | None
    """[n, 1]; None: off for all."""

    def take(self, rows: torch.Tensor) -> "_Draws":
        return _Draws(
            self.points[rows],
            self.temperatures[rows],
            self.top_p[rows],
            self.top_k[rows],
            None,
        )

    def flat(self) -> Draws:
        """What a kernel reads of them."""
        min_p = torch.zeros_like(self.top_p) if self.min_p is None else self.min_p
        return Draws(
            points=self.points.squeeze(1),
            temperatures=self.temperatures.squeeze(1),
            top_p=self.top_p.squeeze(1),
            min_p=min_p.squeeze(1),
        )


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, from a hash of the key."""
    key = f"{seed}:{position}".encode()
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return (bits >> 11) / 2**53


def sample(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int]:
    """One id for each row of `logits` [S, vocab]; `positions` are those of the drawn tokens."""
    if not sampling:
        return []
    drawn = [row for row, params in enumerate(sampling) if not params.greedy]
    if not drawn:
        greedy: list[int] = logits.argmax(dim=-1).tolist()
        return greedy
    whole = len(drawn) == len(sampling)
    ids = logits.new_zeros(len(sampling), dtype=torch.int64) if whole else logits.argmax(dim=-1)
    rows = torch.tensor(drawn, device=logits.device)
    draws = _draws([(sampling[row], positions[row]) for row in drawn], logits)
    ids[rows] = _draw((logits if whole else logits[rows]).float(), draws)
    result: list[int] = ids.tolist()
    return result


def sample_there(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    positions: Sequence[int],
    top_p: TopP | None = None,
) -> torch.Tensor:
    """The ids of `sample`, [S] int64 on the device of `logits`, without a question to that device.

    What decides over shapes is in the parameters: the host does not check whether the most likely
    tokens hold a row's top_p. `top_p` draws the rows that ask for nothing else; without it these
    are sorted whole, as those with a large top_k are.
    """
    vocab = logits.shape[1]
    ids = logits.argmax(dim=-1)
    rows_of: dict[_Kind, list[int]] = {}
    for row, params in enumerate(sampling):
        if (kind := _kind(params, vocab)) is not None:
            rows_of.setdefault(kind, []).append(row)
    for kind, rows in rows_of.items():
        at = to_device(rows, torch.int64, logits.device)
        draws = _draws([(sampling[row], positions[row]) for row in rows], logits)
        if kind is _top_p_alone and top_p is not None:
            top_p.draw_(ids, logits, at, draws.flat())
            continue
        # A row without numbers must not fail others.
        numbers = logits[at].float().nan_to_num(nan=torch.finfo(torch.float32).min)
        head = min(_HEAD, max(sampling[row].top_k for row in rows))
        ids[at] = kind(_shares(numbers, numbers.amax(-1, keepdim=True), draws), draws, head)
    return ids.clamp_(0, vocab - 1)


def to_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[n]; the host does not wait for the copy."""
    made = torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)


def columns(
    sampling: Sequence[SamplingParams], positions: Sequence[int]
) -> npt.NDArray[np.void] | None:
    """What `Library.draw` reads, a row each; None if all rows are greedy."""
    if all(params.greedy for params in sampling):
        return None
    coldest, hottest = _TEMPERATURES
    return np.array(
        [
            (0.0, 0.0, 1.0, 0.0, 0)
            if one.greedy
            else (
                uniform(one.seed, position),
                min(max(one.temperature, coldest), hottest),
                one.top_p,
                one.min_p,
                min(one.top_k, _MOST_K),
            )
            for one, position in zip(sampling, positions, strict=True)
        ],
        DRAW,
    )


def lost_rows(logits: torch.Tensor) -> list[int]:
    """Rows without a token: the model overflowed there, or all tokens are excluded."""
    if not len(logits):
        return []
    lost: list[int] = (~logits.amax(-1).isfinite()).nonzero().flatten().tolist()
    return lost


def _draws(asked: list[tuple[SamplingParams, int]], logits: torch.Tensor) -> _Draws:
    def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return to_device(values, dtype, logits.device).unsqueeze(1)

    vocab, (coldest, hottest) = logits.shape[1], _TEMPERATURES
    temperatures = [min(max(one.temperature, coldest), hottest) for one, _ in asked]
    return _Draws(
        column([uniform(one.seed, position) for one, position in asked], torch.float64),
        column(temperatures, torch.float32),
        column([one.top_p for one, _ in asked], torch.float32),
        column([min(one.top_k or vocab, vocab) for one, _ in asked], torch.int64),
        column([one.min_p for one, _ in asked], torch.float32)
        if any(one.min_p for one, _ in asked)
        else None,
    )


def _draw(logits: torch.Tensor, draws: _Draws) -> torch.Tensor:
    """Ids [n]. The filters apply in vLLM's order: temperature, min-p, top-k, top-p."""
    largest = logits.amax(-1, keepdim=True)
    if not bool(largest.isfinite().all()):  # the model overflowed: such a row must not fail others
        logits = logits.nan_to_num(nan=torch.finfo(logits.dtype).min)
        largest = logits.amax(-1, keepdim=True)
    shares = _shares(logits, largest, draws)
    filtered = ((draws.top_p < 1.0) | (draws.top_k < shares.shape[1])).squeeze(1)
    if bool(filtered.all()):  # without a copy of the shares
        return _draw_filtered(shares, draws)
    ids = torch.empty(len(shares), dtype=torch.int64, device=logits.device)
    free, held = (~filtered).nonzero().squeeze(1), filtered.nonzero().squeeze(1)
    if len(free):
        mass = shares[free].cumsum(-1)
        ids[free] = _point_in(mass, mass[:, -1:], draws.take(free)).squeeze(1)
    if len(held):
        ids[held] = _draw_filtered(shares[held], draws.take(held))
    return ids


def _shares(logits: torch.Tensor, largest: torch.Tensor, draws: _Draws) -> torch.Tensor:
    # Relative to the largest: a quotient that overflows becomes a weight of 0, never NaN.
    scaled = (logits - largest).div_(draws.temperatures)
    if draws.min_p is not None:  # the largest logit is 0 now, so its share is exp(0)
        scaled.masked_fill_(scaled < draws.min_p.log(), float("-inf"))
    return scaled.softmax(-1)


def _kind(params: SamplingParams, vocab: int) -> "_Kind | None":
    """How `sample_there` draws such a row; None: it is greedy."""
    if params.greedy:
        return None
    limited = 0 < params.top_k < vocab
    if limited and params.top_k <= _HEAD:
        return _headed
    if limited:
        return _sorted_whole
    return _top_p_alone if np.float32(params.top_p) < 1 else _free


def _free(shares: torch.Tensor, draws: _Draws, head: int) -> torch.Tensor:  # noqa: ARG001
    mass = shares.cumsum(-1)
    return _point_in(mass, mass[:, -1:], draws).squeeze(1)


def _headed(shares: torch.Tensor, draws: _Draws, head: int) -> torch.Tensor:
    return _from_largest(shares, torch.topk(shares, head).values, draws, _token_there)[0]


def _sorted_whole(shares: torch.Tensor, draws: _Draws, head: int) -> torch.Tensor:  # noqa: ARG001
    return _from_largest(shares, _descending(shares), draws, _token_there)[0]


def _top_p_alone(shares: torch.Tensor, draws: _Draws, head: int) -> torch.Tensor:
    """Where no kernel draws such rows."""
    return _sorted_whole(shares, draws, head)


def _draw_filtered(shares: torch.Tensor, draws: _Draws) -> torch.Tensor:
    head = min(_HEAD, int(draws.top_k.max()))
    ids, known = _from_largest(shares, torch.topk(shares, head).values, draws)
    beyond = (~known).nonzero().squeeze(1)
    if len(beyond):
        rest = shares[beyond]
        ids[beyond], _ = _from_largest(rest, _descending(rest), draws.take(beyond))
    return ids


def _from_largest(
    shares: torch.Tensor, largest: torch.Tensor, draws: _Draws, token_at: "_TokenAt | None" = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [n], whether `largest` reached as far as the row's filters do [n])."""
    width, limited = largest.shape[1], draws.top_k < shares.shape[1]
    mass = largest.cumsum(-1)
    last = draws.top_k - 1
    total = mass.gather(1, last.clamp(max=width - 1))
    bound = torch.where(limited, total, 1.0) * draws.top_p
    # The shortest head of the list that holds at least top_p; never empty.
    enough = torch.where(draws.top_p < 1.0, (mass < bound).sum(-1, keepdim=True), last)
    last = torch.minimum(last, enough)
    known = torch.where(limited, draws.top_k <= width, last < width)
    at = _point_in(mass, mass.gather(1, last.clamp(max=width - 1)), draws)
    return (token_at or _token_at)(shares, largest, at), known.squeeze(1)


def _point_in(mass: torch.Tensor, total: torch.Tensor, draws: _Draws) -> torch.Tensor:
    """The first index [n, 1] whose cumulative `mass` exceeds the point; its own mass is not 0."""
    target = (draws.points * total.double()).float()
    below = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(mass, torch.minimum(target, below), right=True)


def _token_at(shares: torch.Tensor, largest: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The ids at index `at` in descending order, equal ones by id, without sorting the ids."""
    value = largest.gather(1, at)
    rank = (at - (largest > value).sum(-1, keepdim=True)).squeeze(1)
    rows, ids = (shares == value).nonzero(as_tuple=True)
    first = torch.searchsorted(rows, torch.arange(len(shares), device=shares.device))
    return ids[first + rank]


def _token_there(shares: torch.Tensor, largest: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """As `_token_at`; counts equal ones up to the id in place of listing them."""
    value = largest.gather(1, at)
    rank = at - (largest > value).sum(-1, keepdim=True)
    upto = (shares == value).cumsum(-1, dtype=torch.int32)
    return torch.searchsorted(upto, (rank + 1).int()).squeeze(1)


def _descending(shares: torch.Tensor) -> torch.Tensor:
    if shares.device.type == "cpu":  # numpy sorts floats with SIMD, ten times as fast as torch
        return torch.from_numpy(np.sort(shares.numpy(), axis=-1)).flip(-1)
    return shares.sort(-1, descending=True).values
