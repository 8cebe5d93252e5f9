"""The child process that tries the Triton kernels: small steps beside the plain torch path.

    python -m argosy_engine.model.attention.trial '{"heads": 32, "kv_heads": 8, …}'

The fields are those of `Wish`. A random step of prompts, chunks of prompts and decodes is written
and attended on the device, and on the CPU by `PagedPool`, whose scores are float32 there; `Fused`
is compared with `Plain` likewise, and draws of `TopP` with sorted rows. Exit status 0 if they
agree; else the last line of stderr says why not. An illegal access to the GPU's memory ends this
process and no other, and what it compiles stays in Triton's cache.
"""

import json
import math
import sys
from dataclasses import dataclass

import torch

from argosy_engine.core.request import Chunk, to_table
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import FlatBatch, StepPlan, flatten
from argosy_engine.model.attention.between import Between, Fused, Plain
from argosy_engine.model.attention.paged import FP8, HeadNorms, PagedPool, PoolShape
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.top_p import Draws, TopP

_CLOSE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 6e-2}
"""Of outputs of about 1."""
_STEP = 0.1
"""Of KV in FP8, whose numbers are an eighth apart, up to 0.5 in the trial: one may be rounded the
other way."""
_WORK = ((600, 1), (0, 1), (37, 20), (200, 90))
"""(start, count) of each sequence; the first has keys for several splits."""
_WINDOWS = (0, 33, 150)
"""All keys, less than a tile's, and some tiles of keys that each row of a tile sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be tried: the shapes of a model, since kernels are compiled for them."""

    heads: int
    kv_heads: int
    block_size: int
    head_dim: int
    hidden: int
    inner: int
    vocab: int
    qk_norm: bool
    """Heads of Q and K are normed."""
    dtype: str
    """float32 | float16 | bfloat16"""
    kv_dtype: str
    """The same, or float8_e4m3fn."""
    device: str = "cuda"


def main(words: list[str]) -> int:
    """Compare attention, then norms and gates."""
    wish = Wish(**json.loads(words[1]))
    for what, measure in (
        ("attention", _attention_error),
        ("a norm or a gate", _between_error),
        ("a draw with top_p", _draw_error),
    ):
        torch.manual_seed(0)
        error = measure(wish)
        if not error < _CLOSE[wish.dtype]:  # also if it is NaN
            sys.stderr.write(f"{what} is wrong by {error:.3g}\n")
            return 1
    return 0


def _attention_error(wish: Wish) -> float:
    """The largest difference between the pools, in one of two layers, for each window."""
    dtype: torch.dtype = getattr(torch, wish.dtype)
    kv_dtype: torch.dtype = getattr(torch, wish.kv_dtype)
    flat, blocks = _step(wish.block_size)
    shape = PoolShape(
        blocks=blocks,
        layers=2,
        kv_heads=wish.kv_heads,
        block_size=wish.block_size,
        head_dim=wish.head_dim,
    )
    pools = (
        PagedPool(shape, kv_dtype, torch.device("cpu")),
        TritonPool(shape, kv_dtype, torch.device(wish.device), heads=wish.heads),
    )
    past = torch.randn(pools[0].memory.shape).to(kv_dtype)
    tokens, pairs = len(flat.token_ids), wish.head_dim // 2
    made = torch.randn(tokens, wish.heads + 2 * wish.kv_heads, wish.head_dim).to(dtype)
    turn = torch.polar(torch.ones(tokens, 1, pairs), torch.rand(tokens, 1, pairs) * 6)
    q_norm, k_norm = (torch.rand(wish.head_dim).to(dtype) + 0.25 for _ in range(2))
    results = []
    for pool in pools:
        pool.memory.copy_(past)
        heads = made.to(pool.device, copy=True)
        batch = pool.prepare(flat)
        norms = None
        if wish.qk_norm:
            norms = HeadNorms(q_norm.to(pool.device), k_norm.to(pool.device), 1e-6)
        pool.turn_and_write(1, batch, heads, turn.to(pool.device), norms)
        attended = [pool.attend(1, batch, heads[:, : wish.heads], window) for window in _WINDOWS]
        stored = pool.memory.float() * (_STEP if kv_dtype is FP8 else 1)
        results.append([x.float().cpu() for x in (*attended, stored)])
    return _largest_difference(*results)


def _between_error(wish: Wish) -> float:
    """The largest difference between `Plain` and `Fused`, over the first and a later norm."""
    dtype: torch.dtype = getattr(torch, wish.dtype)
    hidden, added = (torch.rand(2, 3, wish.hidden) * 4 - 2).to(dtype)
    weight = torch.rand(wish.hidden).to(dtype) + 0.5
    gate_up = (torch.rand(3, 2 * wish.inner) * 4 - 2).to(dtype)
    ways: tuple[tuple[Between, str], ...] = ((Plain(), "cpu"), (Fused(), wish.device))
    results = []
    for between, device in ways:
        total, scale = hidden.to(device, copy=True), weight.to(device)
        first = between.add_rms_norm(total, None, scale, 1e-5)
        later = between.add_rms_norm(total, added.to(device), scale, 1e-5)
        gated = between.silu_and_mul(gate_up.to(device, copy=True))
        results.append([x.float().cpu() for x in (first, later, total, gated)])
    return _largest_difference(*results)


def _draw_error(wish: Wish) -> float:
    """How much mass is between a point and the token that is drawn there, at most."""
    dtype: torch.dtype = getattr(torch, wish.dtype)
    asked = torch.tensor([[0.1, 1.0, 0.95], [0.9, 0.7, 0.8], [0.5, 1.3, 0.2]], dtype=torch.float64)
    points, temperatures, top_p = asked.unbind(1)
    logits = (torch.randn(len(asked), wish.vocab) * 4).to(dtype)
    there = [x.float().to(wish.device) for x in (temperatures, top_p, torch.zeros(len(asked)))]
    draws = Draws(
        points=points.to(wish.device), temperatures=there[0], top_p=there[1], min_p=there[2]
    )
    rows = torch.arange(len(asked), device=wish.device)
    ids = torch.full_like(rows, -1)
    TopP().draw_(ids, logits.to(wish.device), rows, draws)
    shares = (logits.double() / temperatures.unsqueeze(1)).softmax(-1)
    errors = []
    for row, token in enumerate(ids.tolist()):
        if not 0 <= token < wish.vocab:
            return math.inf
        order = shares[row].sort(descending=True, stable=True)
        mass = order.values.cumsum(0)
        point = points[row] * mass[(mass < top_p[row]).sum().clamp(max=len(mass) - 1)]
        at = (order.indices == token).nonzero()[0, 0]
        errors.append(max(float(mass[at] - order.values[at] - point), float(point - mass[at])))
    return max(errors)


def _largest_difference(right: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """NaN if there is one."""
    each = [(a - b).abs().max() for a, b in zip(right, found, strict=True)]
    return float(torch.stack(each).max())


def _step(size: int) -> tuple[FlatBatch, int]:
    """The step, and the blocks of a pool for it. Tables run backwards through the pool."""
    counts = [-(-(start + count) // size) for start, count in _WORK]
    end = blocks = 1 + sum(counts)
    chunks: list[Chunk] = []
    for (start, count), held in zip(_WORK, counts, strict=True):
        chunks.append(
            Chunk(
                request_id="",
                tokens=[0] * (start + count),
                block_table=to_table(range(end - 1, end - 1 - held, -1)),
                start=start,
                count=count,
                samples=False,
                decode=False,
                sampling=SamplingParams(max_tokens=1),
                n_prompt=start + count,
            )
        )
        end -= held
    plan = StepPlan(
        index=1,
        chunks=tuple(chunks),
        block_size=size,
        prefill_tokens=sum(count for _, count in _WORK),
        prefill_sequences=len(chunks),
        decode_sequences=0,
        decode_context_tokens=0,
        after_idle=True,
    )
    return flatten(plan), blocks


if __name__ == "__main__":
    sys.exit(main(sys.argv))
