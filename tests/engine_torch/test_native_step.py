"""The native step beside the torch trunk, with every library that this CPU executes."""

import dataclasses
import itertools
import random

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from functools import partial  # noqa: E402

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from argosy.model_config import ModelSpec, Rope  # noqa: E402
from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool, PoolShape  # noqa: E402
from argosy_engine.model.loader import dummy_weights  # noqa: E402
from argosy_engine.model.native import trial  # noqa: E402
from argosy_engine.model.native.choose import first_that_works  # noqa: E402
from argosy_engine.model.native.compile import FLAGS, library_path  # noqa: E402
from argosy_engine.model.native.library import Library  # noqa: E402
from argosy_engine.model.native_trunk import NativeLinear, NativeTrunk  # noqa: E402
from argosy_engine.model.trunk import Linear, Trunk  # noqa: E402
from argosy_engine.runtime.torch import sources as choice  # noqa: E402

CPU = torch.device("cpu")
WORKING = [name for name in FLAGS if first_that_works([name]) == name]
BLOCKS = 40
# Relative to the largest logit. torch rounds to bfloat16 after each operator, the native step not.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}


def spec_of(**given):
    """A decoder of two layers whose sizes fill no vector and no panel."""
    fields = {
        "architecture": "Qwen3ForCausalLM",
        "layers": 2,
        "hidden": 70,
        "inner": 90,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "vocab": 131,
        "max_positions": 600,
        "norm_eps": 1e-5,
        "rope": Rope(theta=10_000.0),
        "windows": (0, 0),
        "qkv_bias": True,
        "qk_norm": True,
        "tied": False,
        "dtype": "float32",
    }
    return ModelSpec(**(fields | given))


WITH_PAIRS = [name for name in WORKING if "-mavx512bf16" in FLAGS[name]]
WAYS = [(name, pairs) for name in WORKING for pairs in (True, False) if name in WITH_PAIRS or pairs]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way[0] + "-widened" * (not way[1]))
def library(request):
    """Each library; one with an instruction for bfloat16 pairs with them, and without."""
    name, pairs = request.param
    loaded = Library(library_path(name), threads=2, spins=100, pairs=pairs)
    assert loaded.pairs == (pairs and name in WITH_PAIRS)
    yield loaded
    loaded.close()


class Pair:
    """The same random weights and the same pool, once for torch and once for the library.

    Torch computes in float32, whatever the weights' type is: in bfloat16 it rounds after each
    operator and is often three times as far from the right logits as the library.
    """

    def __init__(self, library, spec, dtype, block_size):
        shape = PoolShape(
            blocks=BLOCKS,
            layers=spec.layers,
            kv_heads=spec.kv_heads,
            block_size=block_size,
            head_dim=spec.head_dim,
        )
        self.dtype = dtype
        self.pools = [PagedPool(shape, kind, CPU) for kind in (torch.float32, dtype)]
        # What a block held before must not be seen.
        self.pools[1].memory.normal_()
        self.pools[0].memory.copy_(self.pools[1].memory)
        weights = dummy_weights(spec, dtype, CPU, wide)
        packed = dummy_weights(spec, dtype, CPU, partial(NativeLinear, library))
        for one in (weights, packed):
            vary(one)
        self.torch = Trunk(spec, widened(weights), max_positions=spec.max_positions)
        self.native = NativeTrunk(
            library, spec, packed, self.pools[1], max_positions=spec.max_positions
        )

    def step(self, plan):
        """Compare a step's logits and the KV of both pools."""
        flat = flatten(plan)
        with torch.inference_mode():
            right = self.torch.logits(flat, self.pools[0]).float()
            found = self.native.logits(flat, self.pools[1])
        assert found.shape == right.shape
        assert float(right.std()) > 0.1
        close = CLOSE[self.dtype]
        assert float((found - right).abs().max()) < close * float(right.abs().max())
        kv, ours = (pool.memory.float() for pool in self.pools)
        assert float((kv - ours).abs().max()) < close * float(kv.abs().max())


def wide(weight, bias=None):
    """A product in float32 with weights of another type."""
    return Linear(weight.float(), None if bias is None else bias.float())


def widened(weights):
    """The weights whose matrices are wide, with norms and embedding in float32 too."""
    norms = ("attention_norm", "mlp_norm", "q_norm", "k_norm")
    layers = []
    for layer in weights.layers:
        found = {name: getattr(layer, name) for name in norms}
        wider = {name: norm if norm is None else norm.float() for name, norm in found.items()}
        layers.append(dataclasses.replace(layer, **wider))
    return dataclasses.replace(
        weights,
        embedding=weights.embedding.float(),
        norm=weights.norm.float(),
        layers=layers,
    )


def vary(weights):
    """Norms that are not all ones: each number must be the one of its place."""
    generator = torch.Generator().manual_seed(1)
    norms = [weights.norm]
    for layer in weights.layers:
        norms += [layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm]
    for norm in norms:
        if norm is not None:
            norm.uniform_(0.5, 1.5, generator=generator)


def chunk(name, vocab, table, start, count, *, samples=True):
    tokens = [(7 * position + 3 * name) % vocab for position in range(start + count)]
    return Chunk(
        request_id=str(name),
        tokens=tokens,
        block_table=to_table(table),
        start=start,
        count=count,
        samples=samples,
        decode=count == 1,
        sampling=SamplingParams(max_tokens=1),
    )


def plan_of(chunks, block_size):
    decodes = sum(one.decode for one in chunks)
    return StepPlan(
        index=1,
        chunks=tuple(chunks),
        block_size=block_size,
        prefill_tokens=0,
        prefill_sequences=len(chunks) - decodes,
        decode_sequences=decodes,
        decode_context_tokens=0,
        after_idle=False,
    )


@pytest.mark.parametrize("name", FLAGS)
def test_every_library_is_built(name):
    assert library_path(name).is_file(), "run: python -m argosy_engine.model.native.compile"


def test_the_trial_finds_a_library_right_and_names_what_is_wrong(monkeypatch, capsys):
    base = str(library_path("base"))
    assert trial.main(["trial", base, base]) == 0
    assert capsys.readouterr().err == ""
    compute, steps = trial._step, itertools.count()
    # The first library's, of the prompt and of the decode.
    monkeypatch.setattr(trial, "_step", lambda *step: compute(*step) + 0.25 * (next(steps) < 2))
    assert trial.main(["trial", base, base]) == 1
    assert capsys.readouterr().err == "wrong by 0.25 with type 0\n"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 12, 13, 25, 130])
@pytest.mark.parametrize(
    ("out", "width"), [(1, 1), (31, 7), (64, 65), (70, 66), (200, 2049), (33, 2050)]
)
def test_a_product_is_torchs(library, dtype, rows, out, width):
    generator = torch.Generator().manual_seed(rows * out)
    weight = torch.randn(out, width, generator=generator).to(dtype)
    bias = torch.randn(out, generator=generator).to(dtype)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    found = NativeLinear(library, weight, bias)(x.float())
    right = x.double() @ weight.double().T + bias.double()
    assert float((found - right).abs().max()) < 2e-6 * width + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3, 6, 7, 40])
def test_a_row_does_not_depend_on_the_rows_beside_it(library, dtype, rows):
    generator = torch.Generator().manual_seed(rows)
    product = NativeLinear(library, torch.randn(70, 300, generator=generator).to(dtype))
    x = torch.randn(40, 300, generator=generator)
    assert torch.equal(product(x[:rows]), product(x)[:rows])


GROUPS = [(1, 1), (3, 1), (4, 2), (9, 3), (6, 6)]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 16),
    heads=st.sampled_from(GROUPS),
    head_dim=st.sampled_from([6, 16, 64, 128]),
    block_size=st.sampled_from([1, 4, 16, 32]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    biased=st.booleans(),
    windows=st.tuples(st.integers(0, 200), st.sampled_from([0, 1, 16, 64])),
)
def test_steps_of_random_batches_are_torchs(
    library, seed, heads, head_dim, block_size, dtype, biased, windows
):
    rng = random.Random(seed)
    spec = spec_of(
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        qkv_bias=biased,
        qk_norm=not biased,
        windows=windows,
    )
    pair = Pair(library, spec, dtype, block_size)
    free = list(range(1, BLOCKS))
    rng.shuffle(free)
    tables = [free[at : at + 13] for at in range(0, 39, 13)]
    room = 13 * block_size
    done = [0] * len(tables)
    for _ in range(4):
        chunks = []
        for name, table in enumerate(tables):
            count = min(rng.choice([0, 1, 1, 2, room // 3, 70]), room - done[name])
            if count:
                samples = rng.random() < 0.8 or not chunks
                chunks.append(chunk(name, 131, table, done[name], count, samples=samples))
                done[name] += count
        if chunks:
            pair.step(plan_of(chunks, block_size))


@pytest.mark.parametrize("windows", [(0, 0), (100, 0), (3, 600)])
def test_a_prompt_of_many_tiles_and_a_long_decode(library, windows):
    spec = spec_of(heads=6, kv_heads=2, windows=windows)
    pair = Pair(library, spec, torch.float32, 16)
    table = list(range(39, 0, -1))
    pair.step(plan_of([chunk(0, 131, table, 0, 301)], 16))
    pair.step(plan_of([chunk(0, 131, table, 301, 258)], 16))
    pair.step(plan_of([chunk(0, 131, table, 559, 1)], 16))


def test_a_step_without_samples_writes_kv(library):
    pair = Pair(library, spec_of(), torch.float32, 16)
    first = dataclasses.replace(chunk(0, 131, [4, 2], 0, 20), samples=False)
    flat = flatten(plan_of([first], 16))
    assert pair.native.logits(flat, pair.pools[1]).shape == (0, 131)
    with torch.inference_mode():
        pair.torch.logits(flat, pair.pools[0])
    pair.step(plan_of([chunk(0, 131, [4, 2], 20, 1)], 16))


@pytest.mark.parametrize("token", [-1, 131])
def test_a_token_that_the_model_does_not_have_is_refused_as_torch_refuses_it(library, token):
    pair = Pair(library, spec_of(), torch.float32, 16)
    plan = plan_of([chunk(0, 131, [1], 0, 3)], 16)
    plan.chunks[0].tokens[1] = token
    with pytest.raises(IndexError, match="token ids are 0 to 130"):
        pair.native.logits(flatten(plan), pair.pools[1])


def test_a_row_of_nan_fails_no_other(library):
    pair = Pair(library, spec_of(), torch.float32, 16)
    pair.native.weights.embedding[5] = float("nan")
    chunks = [chunk(name, 131, [name + 1], 0, 1) for name in range(3)]
    clean = pair.native.logits(flatten(plan_of(chunks, 16)), pair.pools[1]).clone()
    chunks[1].tokens[0] = 5
    found = pair.native.logits(flatten(plan_of(chunks, 16)), pair.pools[1])
    assert found[1].isnan().all()
    assert torch.equal(found[0], clean[0])
    assert torch.equal(found[2], clean[2])


def asked(compute):
    config = EngineConfig(model="", served_name="", compute=compute, threads=1)
    return choice.open_library(config, CPU)


@pytest.mark.parametrize("compute", ["auto", "native"])
def test_the_library_that_works_computes_unless_torch_is_asked_for(monkeypatch, compute):
    monkeypatch.setattr(choice, "choose", lambda: "base")
    native = asked(compute)
    assert native.name == "base"
    assert not native.multiplies_bfloat16
    native.library.close()
    assert asked("torch") is None


@pytest.mark.parametrize("name", FLAGS)
def test_bfloat16_is_faster_where_the_library_multiplies_it(name):
    found = choice.Native(name, library=None)
    assert found.multiplies_bfloat16 == (name in ("amx", "avx512_bf16"))


def test_without_a_library_torch_computes_or_the_engine_says_why_not(monkeypatch):
    monkeypatch.setattr(choice, "choose", lambda: None)
    assert asked("auto") is None
    with pytest.raises(LoadError, match="no native library that works on this CPU"):
        asked("native")
