"""Paged attention beside plain softmax attention in float64 over whole, contiguous sequences."""

import random

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.model.attention import paged  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool, PoolShape  # noqa: E402

LAYERS = 2
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def expected(q, k, v, start, window):
    """softmax(q·Kᵀ/√d)·V of `q` [n, heads, d], the last n of the tokens of `k` and `v`, where a
    token sees the newest `window`, or all if that is 0.

    `k`, `v` [tokens, kv heads, d]; query head h reads KV head h // (heads / kv heads).
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / q.shape[2] ** 0.5
    positions = torch.arange(k.shape[0])
    back = positions[start:].unsqueeze(1) - positions
    unseen = (back < 0) | (back >= (window or len(positions)))
    weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


class Sequences:
    """Prompts computed in chunks, then decodes; each in blocks from all over the pool."""

    def __init__(self, rng, *, shape, heads, dtype, count, windows):
        self.rng, self.shape, self.heads, self.windows = rng, shape, heads, windows
        self.pool = PagedPool(shape, dtype, torch.device("cpu"))
        # What a block held before must not be seen, and that of the null block neither.
        self.pool.memory.normal_()
        free = list(range(1, shape.blocks))
        rng.shuffle(free)
        each = len(free) // count
        self.tables = [free[i * each : (i + 1) * each] for i in range(count)]
        room = each * shape.block_size
        self.prompts = [rng.randint(1, room - 8) for _ in range(count)]
        self.done = [0] * count
        empty = torch.empty(0, 2 * shape.kv_heads, shape.head_dim, dtype=dtype)
        self.written = [[empty] * count for _ in range(LAYERS)]

    def step(self):
        """A random share of each sequence; the largest error over layers and rows."""
        chunks = [self.chunk(i) for i in range(len(self.done)) if self.rng.random() < 0.8]
        chunks = sorted(
            (chunk for chunk in chunks if chunk.count), key=lambda chunk: not chunk.decode
        )
        if not chunks:
            return 0.0
        decodes = sum(chunk.decode for chunk in chunks)
        flat = flatten(
            StepPlan(
                index=1,
                chunks=tuple(chunks),
                block_size=self.shape.block_size,
                prefill_tokens=0,
                prefill_sequences=len(chunks) - decodes,
                decode_sequences=decodes,
                decode_context_tokens=0,
                after_idle=False,
            )
        )
        batch = self.pool.prepare(flat)
        worst = max(
            self.layer(layer, batch, chunks, len(flat.token_ids)) for layer in range(LAYERS)
        )
        for chunk in chunks:
            self.done[int(chunk.request_id)] += chunk.count
        return worst

    def chunk(self, index):
        start, prompt = self.done[index], self.prompts[index]
        room = len(self.tables[index]) * self.shape.block_size
        decode = start >= prompt
        count = min(1, room - start) if decode else self.rng.randint(1, prompt - start)
        return Chunk(
            request_id=str(index),
            tokens=[0] * (start + count),
            block_table=to_table(self.tables[index]),
            start=start,
            count=count,
            samples=True,
            decode=decode,
            sampling=SamplingParams(max_tokens=1),
        )

    def layer(self, layer, batch, chunks, tokens):
        dim, dtype = self.shape.head_dim, self.pool.memory.dtype
        # As the trunk gives them: q and kv are slices of one fused product.
        fused = torch.randn(tokens, self.heads + 2 * self.shape.kv_heads, dim).to(dtype)
        q, kv = fused[:, : self.heads], fused[:, self.heads :]
        self.pool.write(layer, batch, kv)
        out = self.pool.attend(layer, batch, q, self.windows[layer])
        assert out.shape == q.shape
        worst, at = 0.0, 0
        for chunk in chunks:
            index, end = int(chunk.request_id), at + chunk.count
            known = torch.cat([self.written[layer][index], kv[at:end]])
            self.written[layer][index] = known
            k, v = known[:, : self.shape.kv_heads], known[:, self.shape.kv_heads :]
            right = expected(q[at:end], k, v, chunk.start, self.windows[layer])
            worst = max(worst, float((out[at:end].double() - right).abs().max()))
            at = end
        return worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(10))
def test_chunks_and_decodes_of_scattered_blocks_attend_as_whole_sequences_do(
    seed, dtype, monkeypatch
):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    # Small bounds, so that tiles of rows and groups of decodes end in the middle of the work.
    monkeypatch.setattr(paged, "_TILE_ROWS", rng.choice([3, 8, 128]))
    monkeypatch.setattr(paged, "_SCORE_ELEMENTS", rng.choice([200, 1 << 22]))
    monkeypatch.setattr(paged, "_GATHER_ELEMENTS", rng.choice([500, 1 << 21]))
    kv_heads, size = rng.choice([1, 2, 3]), rng.choice([1, 4, 16])
    sequences = Sequences(
        rng,
        shape=PoolShape(
            blocks=1 + 5 * (1 + 40 // size),
            layers=LAYERS,
            kv_heads=kv_heads,
            block_size=size,
            head_dim=rng.choice([4, 16]),
        ),
        heads=kv_heads * rng.choice([1, 2, 4]),
        dtype=dtype,
        count=5,
        windows=(0, 0) if seed < 4 else (rng.randint(1, 60), rng.choice([0, 1, 5])),
    )
    errors = [sequences.step() for _ in range(12)]
    assert max(errors) < CLOSE[dtype]
    assert min(sequences.done) > 0


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_pool_in_fp8_attends_to_the_numbers_that_it_has_rounded(dtype, window):
    torch.manual_seed(3)
    shape = PoolShape(blocks=9, layers=LAYERS, kv_heads=2, block_size=4, head_dim=16)
    narrow, wide = (PagedPool(shape, kind, torch.device("cpu")) for kind in (paged.FP8, dtype))
    for start, count in ((0, 13), (13, 1), (14, 3)):
        flat = flatten(plan_of(start, count))
        fused = torch.randn(count, 4 + 4, 16).to(dtype)
        q, kv = fused[:, :4], fused[:, 4:] * 3
        kv[:, 0, 0] = 1000.0
        rounded = kv.float().clamp(-448, 448).to(paged.FP8).to(dtype)
        found = []
        for pool, written in ((narrow, kv), (wide, rounded)):
            batch = pool.prepare(flat)
            pool.write(1, batch, written)
            found.append(pool.attend(1, batch, q, window))
        assert torch.equal(*found)
        assert found[0].dtype is dtype


def test_a_pool_in_fp8_keeps_what_is_no_number():
    shape = PoolShape(blocks=9, layers=LAYERS, kv_heads=2, block_size=4, head_dim=16)
    pool = PagedPool(shape, paged.FP8, torch.device("cpu"))
    batch = pool.prepare(flatten(plan_of(0, 5)))
    kv = torch.ones(5, 4, 16)
    kv[2, 3, 1] = float("nan")
    pool.write(0, batch, kv)
    out = pool.attend(0, batch, torch.ones(5, 4, 16))
    assert int(pool.memory.float().isnan().sum()) == 1
    assert out[-1].isnan().any()


def plan_of(start, count):
    chunk = Chunk(
        request_id="r",
        tokens=[0] * (start + count),
        block_table=to_table([7, 2, 5, 1, 8]),
        start=start,
        count=count,
        samples=False,
        decode=count == 1,
        sampling=SamplingParams(max_tokens=1),
        n_prompt=start + count,
    )
    return StepPlan(
        index=1,
        chunks=(chunk,),
        block_size=4,
        prefill_tokens=count,
        prefill_sequences=1,
        decode_sequences=0,
        decode_context_tokens=0,
        after_idle=True,
    )
