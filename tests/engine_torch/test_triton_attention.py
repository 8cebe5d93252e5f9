"""The kernels of the GPU's pool, executed by Triton's interpreter, beside the plain torch path."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.model.attention import trial, triton_pool  # noqa: E402
from argosy_engine.model.attention.between import Fused, Plain  # noqa: E402
from argosy_engine.model.attention.paged import HeadNorms, PagedPool, PoolShape  # noqa: E402
from argosy_engine.model.attention.triton_pool import Tiles, TritonPool  # noqa: E402
from argosy_engine.model.loader import dummy_weights  # noqa: E402
from argosy_engine.model.share import Share  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.model.top_p import TopP  # noqa: E402
from argosy_engine.model.trunk import Linear, Trunk  # noqa: E402
from argosy_engine.runtime.torch.pool import choose_pool, scratch_shape  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

CPU = torch.device("cpu")
LAYERS = 2
CLOSE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""Of outputs of about 1. The interpreter cuts bfloat16 off, where a GPU rounds."""
TYPES = [torch.float32, torch.float16, torch.bfloat16]
FP8 = torch.float8_e4m3fn


def plan(tables, work, size):
    """The flat step of `work`, a (start, count) for each table."""
    chunks = [
        Chunk(
            request_id=str(index),
            tokens=list(range(start + count)),
            block_table=to_table(table),
            start=start,
            count=count,
            samples=True,
            decode=False,
            sampling=SamplingParams(max_tokens=1),
        )
        for index, (table, (start, count)) in enumerate(zip(tables, work, strict=True))
    ]
    return flatten(
        StepPlan(
            index=1,
            chunks=tuple(chunks),
            block_size=size,
            prefill_tokens=sum(chunk.count for chunk in chunks),
            prefill_sequences=len(chunks),
            decode_sequences=0,
            decode_context_tokens=0,
            after_idle=False,
        )
    )


def pools(shape, dtype, group, rng):
    """(plain, kernels, block tables of four sequences); the same random KV in both."""
    blocks = list(range(1, shape.blocks))
    rng.shuffle(blocks)
    each = len(blocks) // 4
    torch.manual_seed(rng.randrange(1 << 30))
    plain = PagedPool(shape, dtype, CPU)
    plain.memory.normal_()
    kernels = TritonPool(shape, dtype, CPU, heads=shape.kv_heads * group)
    # Several tiles and splits, even of short sequences; not many, since the interpreter is slow.
    kernels.tiles = Tiles(32, 16, 16, 16, kernels.tiles.width)
    kernels.memory.copy_(plain.memory)
    return plain, kernels, [blocks[each * i : each * (i + 1)] for i in range(4)]


def forget_what_is_not_seen(pool, tables, work):
    """NaN in blocks of nobody and behind the ends: what a block held before is not read."""
    shape = pool.shape
    by_token = pool.memory.view(shape.blocks, -1, shape.block_size, shape.head_dim)
    kept = torch.full_like(by_token, float("nan"))
    for table, (start, count) in zip(tables, work, strict=True):
        for position in range(start + count):
            at = table[position // shape.block_size], position % shape.block_size
            kept[at[0], :, at[1]] = by_token[at[0], :, at[1]]
    by_token.copy_(kept)


def heads_of(tokens, group, shape, dtype, *, fused=True):
    """Q [N, heads, d] and KV [N, 2 · kv_heads, d] as our trunk gives them, or transformers."""
    q_heads, dim = shape.kv_heads * group, shape.head_dim
    if fused:
        heads = torch.randn(tokens, q_heads + 2 * shape.kv_heads, dim).to(dtype)
    else:
        heads = torch.randn(q_heads + 2 * shape.kv_heads, tokens, dim).to(dtype).transpose(0, 1)
    return heads[:, :q_heads], heads[:, q_heads:], heads


def turn_of(tokens, dim):
    return torch.polar(torch.full((tokens, 1, dim // 2), 1.1), torch.rand(tokens, 1, dim // 2) * 6)


@st.composite
def works(draw):
    """(start, count) of one to three sequences: decodes, prompts, chunks of prompts."""
    decode = st.tuples(st.integers(0, 50), st.just(1))
    chunk = st.tuples(st.integers(0, 30), st.integers(2, 12))
    return draw(st.lists(decode | chunk, min_size=1, max_size=3))


@pytest.fixture(autouse=True)
def short_splits(monkeypatch):
    monkeypatch.setattr(triton_pool, "_SPLITS", 4)
    monkeypatch.setattr(triton_pool, "_LEAST_TILES", 1)


@settings(max_examples=10)
@given(
    work=works(),
    kv_heads=st.sampled_from([1, 2]),
    group=st.sampled_from([1, 2, 3, 8]),
    dim=st.sampled_from([64, 80, 128]),
    size=st.sampled_from([4, 16, 24]),
    window=st.just(0) | st.integers(1, 70),
    dtype=st.sampled_from(TYPES),
    fused=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_kernels_write_and_attend_as_the_plain_path_does(
    work, kv_heads, group, dim, size, window, dtype, fused, seed
):
    shape = PoolShape(
        blocks=1 + 4 * -(-52 // size),
        layers=LAYERS,
        kv_heads=kv_heads,
        block_size=size,
        head_dim=dim,
    )
    plain, kernels, tables = pools(shape, dtype, group, random.Random(seed))
    tables = tables[: len(work)]
    forget_what_is_not_seen(kernels, tables, work)
    flat = plan(tables, work, size)
    q, kv, _ = heads_of(len(flat.token_ids), group, shape, dtype, fused=fused)
    results = []
    for pool in (plain, kernels):
        batch = pool.prepare(flat)
        pool.write(1, batch, kv)
        results.append(pool.attend(1, batch, q, window))
    right, found = results
    assert found.shape == q.shape
    assert found.is_contiguous()
    assert float((found.double() - right.double()).abs().max()) < CLOSE[dtype]
    slots = torch.tensor(flat.slot_mapping)
    written = [stored(pool, slots) for pool in (plain, kernels)]
    assert torch.equal(*written)


def stored(pool, slots):
    """K and V of all layers at `slots`, but NaN as 0."""
    shape = pool.shape
    by_token = pool.memory.view(shape.blocks, -1, shape.block_size, shape.head_dim)
    return by_token[slots // shape.block_size, :, slots % shape.block_size][:, shape.kv_heads * 2 :]


@settings(max_examples=5)
@given(
    tokens=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2, 5]),
    group=st.sampled_from([1, 2, 3, 8]),
    dim=st.sampled_from([64, 80, 128]),
    dtype=st.sampled_from(TYPES),
    normed=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_norms_and_turn_are_fused_into_the_write(tokens, kv_heads, group, dim, dtype, normed, seed):
    shape = PoolShape(blocks=13, layers=LAYERS, kv_heads=kv_heads, block_size=4, head_dim=dim)
    plain, kernels, tables = pools(shape, dtype, group, random.Random(seed))
    flat = plan(tables[:1], [(2, tokens)], 4)
    turn, results = turn_of(tokens, dim), []
    _, _, heads = heads_of(tokens, group, shape, dtype)
    weights = (torch.rand(2, dim) + 0.5).to(dtype)
    norms = HeadNorms(*weights, 1e-6) if normed else None
    for pool in (plain, kernels):
        mine = heads.clone()
        pool.turn_and_write(1, pool.prepare(flat), mine, turn, norms)
        results.append((mine[:, : kv_heads * group].float(), pool.memory.float()))
    # Torch rounds between norm and turn, and a turn may take what is left from two large numbers.
    close = CLOSE[dtype] * (3 if normed else 0.25)
    for right, found in zip(*results, strict=True):
        torch.testing.assert_close(found, right, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("dtype", "window"), [(torch.float32, 0), (torch.bfloat16, 21)], ids=["float32", "bfloat16"]
)
def test_a_row_has_the_same_bits_alone_and_beside_others(dtype, window):
    shape = PoolShape(blocks=21, layers=LAYERS, kv_heads=1, block_size=16, head_dim=64)
    _, kernels, tables = pools(shape, dtype, 3, random.Random(5))
    work = [(70, 1), (3, 1), (20, 9), (40, 1)]
    flat = plan(tables, work, 16)
    q, kv, _ = heads_of(len(flat.token_ids), 3, shape, dtype)

    def attended(rows, flat):
        batch = kernels.prepare(flat)
        kernels.write(0, batch, kv[rows])
        return kernels.attend(0, batch, q[rows], window)

    together = attended(slice(None), flat)
    first = 0
    for table, (start, count) in zip(tables, work, strict=True):
        rows = slice(first, first + count)
        alone = attended(rows, plan([table], [(start, count)], 16))
        assert torch.equal(alone, together[rows])
        first += count


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_has_the_same_bits_whichever_keys_its_tile_masks(dtype):
    """With fewer rows behind it in its tile, more keys are in the window of all of them."""
    shape = PoolShape(blocks=21, layers=LAYERS, kv_heads=1, block_size=16, head_dim=64)
    _, kernels, (table, *_) = pools(shape, dtype, 2, random.Random(7))
    q, kv, _ = heads_of(76, 2, shape, dtype)

    def attended(count):
        batch = kernels.prepare(plan([table], [(0, count)], 16))
        kernels.write(0, batch, kv[:count])
        return kernels.attend(0, batch, q[:count], 43)

    assert torch.equal(attended(66), attended(76)[:66])


def test_the_tiles_with_the_most_keys_are_computed_first():
    shape = PoolShape(blocks=21, layers=LAYERS, kv_heads=1, block_size=16, head_dim=64)
    _, kernels, tables = pools(shape, torch.float32, 2, random.Random(1))
    work = [(0, 40), (40, 30), (9, 1), (20, 2)]
    batch = kernels.prepare(plan(tables, work, 16))
    pairs = zip(batch.tile_sequences.tolist(), batch.tile_tokens.tolist(), strict=True)
    firsts = [work[sequence][0] + token for sequence, token in pairs]
    assert firsts == [56, 40, 32, 20, 16, 0]


@settings(max_examples=6)
@given(
    work=works(),
    group=st.sampled_from([1, 3]),
    dim=st.sampled_from([64, 80]),
    window=st.just(0) | st.integers(1, 70),
    dtype=st.sampled_from(TYPES),
    seed=st.integers(0, 1 << 30),
)
def test_kv_in_fp8_is_saturated_as_it_is_written_and_widened_as_it_is_read(
    work, group, dim, window, dtype, seed
):
    """What is written has a code of its own: the interpreter rounds others in its own way."""
    shape = PoolShape(blocks=17, layers=LAYERS, kv_heads=2, block_size=16, head_dim=dim)
    wide, _, tables = pools(shape, torch.float32, group, random.Random(seed))
    plain, kernels = PagedPool(shape, FP8, CPU), TritonPool(shape, FP8, CPU, heads=2 * group)
    kernels.tiles = Tiles(32, 16, 16, 16, kernels.tiles.width)
    for pool in (plain, kernels):
        pool.memory.copy_(wide.memory)
    tables = tables[: len(work)]
    flat = plan(tables, work, 16)
    q, kv, _ = heads_of(len(flat.token_ids), group, shape, dtype)
    kv = torch.where(kv.abs() < 2**-6, 0, kv.float()).to(FP8).float()
    kv[-1, :, 0], kv[-1, :, 1] = 1000.0, -1000.0
    results = []
    for pool in (plain, kernels):
        batch = pool.prepare(flat)
        pool.write(1, batch, kv.to(dtype))
        results.append((pool.attend(1, batch, q, window).double(), pool.memory.float()))
    (right, written), (found, also) = results
    assert torch.equal(written, also)
    assert written.max() == 448
    assert written.min() == -448
    assert float((found - right).abs().max()) < CLOSE[dtype] * float(right.abs().max())


def test_a_number_that_is_none_stays_in_its_sequence():
    shape = PoolShape(blocks=17, layers=LAYERS, kv_heads=1, block_size=16, head_dim=64)
    _, kernels, tables = pools(shape, torch.float32, 2, random.Random(1))
    work = [(40, 1), (30, 1), (5, 9), (0, 9)]
    flat = plan(tables, work, 16)
    q, kv, _ = heads_of(len(flat.token_ids), 2, shape, torch.float32)
    kv[0] = float("nan")
    q[7] = float("nan")
    batch = kernels.prepare(flat)
    kernels.write(0, batch, kv)
    out = kernels.attend(0, batch, q)
    lost = [row for row in range(len(q)) if out[row].isnan().any()]
    assert lost == [0, 7]
    assert out[0].isnan().all()


def wish(**changed):
    fields = {"heads": 2, "kv_heads": 1, "block_size": 32, "head_dim": 64, "dtype": "float32"}
    fields |= {"kv_dtype": "float32"}
    fields |= {"hidden": 96, "inner": 200, "vocab": 300, "qk_norm": True, "device": "cpu"}
    return json.dumps(fields | changed)


def test_the_trial_fails_where_the_kernels_compute_something_else(monkeypatch, capsys):
    right = TritonPool.attend
    monkeypatch.setattr(TritonPool, "attend", lambda *given: right(*given) + 0.01)
    assert trial.main(["trial", wish()]) == 1
    assert capsys.readouterr().err == "attention is wrong by 0.01\n"


def test_the_trial_fails_where_a_gate_computes_something_else(monkeypatch, capsys):
    right = Fused.silu_and_mul
    monkeypatch.setattr(Fused, "silu_and_mul", lambda *given: right(*given) + 0.01)
    assert trial.main(["trial", wish()]) == 1
    assert capsys.readouterr().err == "a norm or a gate is wrong by 0.01\n"


@pytest.mark.parametrize("moved", [0, 1])
def test_the_trial_fails_where_another_token_is_drawn(monkeypatch, capsys, moved):
    right = TopP.draw_

    def draw_(self, ids, logits, rows, draws):
        right(self, ids, logits, rows, draws)
        ids[1] = (ids[1] + moved) % logits.shape[1]

    monkeypatch.setattr(TopP, "draw_", draw_)
    for other in ("_attention_error", "_between_error"):
        monkeypatch.setattr(trial, other, lambda _wish: 0.0)
    assert trial.main(["trial", wish()]) == moved
    assert ("a draw with top_p is wrong by" in capsys.readouterr().err) is bool(moved)


GPU = torch.device("cuda")
CONFIG = EngineConfig(model="", served_name="m", block_size=16, max_num_seqs=4)


@pytest.fixture
def spec(tmp_path):
    return read_spec(write_tiny(tmp_path / "tiny"))


def test_kernels_whose_trial_succeeds_make_the_pool(spec):
    said = "import json, sys; assert json.loads(sys.argv[1])['head_dim'] == 16"
    make = choose_pool(CONFIG, spec, torch.bfloat16, GPU, (sys.executable, "-c", said))
    pool = make(scratch_shape(CONFIG, spec), torch.bfloat16, CPU)
    assert isinstance(pool, TritonPool)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit('attention is wrong by 0.5')", "attention is wrong by 0.5"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
    ids=["wrong", "dies"],
)
def test_kernels_whose_trial_fails_leave_attention_to_torch(spec, caplog, program, why):
    make = choose_pool(CONFIG, spec, torch.bfloat16, GPU, (sys.executable, "-c", program))
    assert make is PagedPool
    assert f"the Triton kernels fail on this GPU ({why})" in caplog.text


class Alone:
    """The `Group` of a rank whose peers add nothing."""

    def sum_(self, x):
        pass

    def gather(self, x):
        return [x, x]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_the_trunk_computes_the_same_logits_with_the_kernels(spec, qk_norm, ranks):
    """With several ranks, the part of one of them."""
    spec, share = replace(spec, qk_norm=qk_norm), Share(0, ranks)
    weights = dummy_weights(spec, torch.float32, CPU, Linear, share, Alone())
    spec = share.of_model(spec)
    shape = PoolShape(blocks=9, layers=2, kv_heads=spec.kv_heads, block_size=16, head_dim=16)
    tables = [[3, 7], [5, 1]]
    ways = [
        (Trunk(spec, weights, max_positions=64, between=between), pool)
        for between, pool in (
            (Plain(), PagedPool(shape, torch.float32, CPU)),
            (Fused(), TritonPool(shape, torch.float32, CPU, heads=spec.heads)),
        )
    ]
    for work in ([(0, 18), (0, 3)], [(18, 2), (3, 1)]):
        flat = plan(tables, work, 16)
        right, found = [trunk.logits(flat, pool) for trunk, pool in ways]
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


COMPILE = """
import subprocess
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from argosy_engine.model import top_p_kernels
from argosy_engine.model.attention import between_kernels, triton_kernels

element, arch, pool = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SIZES = dict(KV_HEADS=2, GROUP=3, BLOCK=16, DIM=80, WIDTH=128, ROWS=16, KEYS=16, WIDEN=False)
WRITE = dict(Q_HEADS=6, KV_HEADS=2, BLOCK=16, DIM=80, WIDTH=128, HEADS=16, TURN=True, NORM=True)
CONSTANTS = {
    "turn_and_write": WRITE,
    "attend_rows": SIZES,
    "attend_splits": SIZES | dict(SPLITS=16, LEAST=4),
    "join_splits": dict(HEADS=6, DIM=80, WIDTH=128, SPLITS=16),
    "fused_add_rms_norm": dict(SIZE=480, WIDTH=512, ADD=True),
    "silu_and_mul": dict(INNER=1100, WIDTH=1024),
    "draw_top_p": dict(WIDTH=4096),
}
ELEMENTS = ("q", "out", "heads", "q_norm", "k_norm", "hidden", "added", "weight", "gate_up",
            "logits")
FLOATS = ("sums_of", "totals_of", "largest_of", "turns", "temperatures", "top_ps", "min_ps")
OTHERS = {"pool": "*" + pool, "points": "*fp64", "rows": "*i64", "ids": "*i64", "scale": "fp32",
          "eps": "fp32"}
NUMBERS = ("layer", "block_stride", "reach", "token_stride", "head_stride", "q_token_stride",
           "q_head_stride", "row_stride", "vocab")
MODULES = (triton_kernels, between_kernels, top_p_kernels)

def kind(name):
    if name in NUMBERS:
        return "i32"
    return OTHERS[name] if name in OTHERS else "*" + (
        element if name in ELEMENTS else "fp32" if name in FLOATS else "i32"
    )

for name, constants in CONSTANTS.items():
    kernel = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    types = {x: "constexpr" if x in constants else kind(x) for x in kernel.arg_names}
    values = {(kernel.arg_names.index(x),): value for x, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values)
    made = compile(source, target=GPUTarget("cuda", arch, 32), options={"num_stages": 2})
    print(name, len(made.asm["cubin"]) > 0)
"""


@pytest.mark.parametrize(
    ("element", "arch", "pool"),
    [
        ("bf16", 90, "bf16"),
        ("fp16", 80, "fp16"),
        ("fp32", 80, "fp32"),
        ("bf16", 90, "fp8e4nv"),
        ("fp16", 89, "fp8e4nv"),
    ],
)
def test_the_compiler_makes_gpu_code_of_each_kernel(tmp_path, element, arch, pool):
    """The interpreter takes more of Python than the compiler does. It needs no GPU."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, element, str(arch), pool],
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.stdout.splitlines() == [
        "turn_and_write True",
        "attend_rows True",
        "attend_splits True",
        "join_splits True",
        "fused_add_rms_norm True",
        "silu_and_mul True",
        "draw_top_p True",
    ], made.stderr
