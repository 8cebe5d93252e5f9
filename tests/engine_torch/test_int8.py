"""8-bit matrices of the native step, with every library that this CPU executes."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from functools import partial  # noqa: E402

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.step import flatten  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool, PoolShape  # noqa: E402
from argosy_engine.model.loader import dummy_weights  # noqa: E402
from argosy_engine.model.native.compile import library_path  # noqa: E402
from argosy_engine.model.native.library import INT8, Library, Matrix  # noqa: E402
from argosy_engine.model.native_trunk import NativeLinear, NativeTrunk  # noqa: E402
from argosy_engine.model.trunk import Linear, Trunk  # noqa: E402
from argosy_engine.runtime.torch import sources as choice  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_torch.test_native_step import (  # noqa: E402
    BLOCKS,
    CPU,
    WORKING,
    chunk,
    plan_of,
    spec_of,
)

GROUP = 64
# Of logits beside the exact ones, relative to the largest. A rounded number is wrong by 1/254 of
# its group's largest at most, about 1/80 of a usual one; the errors of a sum cancel in part.
CLOSE = 0.05


@pytest.fixture(scope="module", params=WORKING)
def library(request):
    loaded = Library(library_path(request.param), threads=2, spins=100)
    yield loaded
    loaded.close()


def matrix(library, weight, bias=None):
    return Matrix(library, np.ascontiguousarray(weight, np.float32), INT8, bias)


def integers(rng, rows, width):
    """Codes that stand for themselves: each group of a row has a 127, so its scale is 1."""
    numbers = rng.integers(-127, 128, (rows, width))
    numbers[:, ::GROUP] = 127
    return numbers


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 16),
    rows=st.sampled_from([1, 2, 3, 4, 6, 7, 12, 13, 40]),
    out=st.sampled_from([1, 7, 31, 32, 64, 75, 200]),
    width=st.sampled_from([1, 2, 3, 63, 64, 65, 130, 576, 1025]),
)
def test_a_product_of_codes_is_exactly_that_of_integers(library, seed, rows, out, width):
    rng = np.random.default_rng(seed)
    weight, x = integers(rng, out, width), integers(rng, rows, width)
    right = x @ weight.T
    assert np.array_equal(matrix(library, weight)(x), right)


@pytest.mark.parametrize("x", [127, -127])
@pytest.mark.parametrize("w", [127, -127])
@pytest.mark.parametrize("width", [64, 1000])
def test_the_largest_codes_do_not_saturate(library, x, w, width):
    found = matrix(library, np.full((40, width), w))(np.full((7, width), x))
    assert np.array_equal(found, np.full((7, 40), x * w * width))


def rounded(values):
    """Each group as multiples of 1/127 of its largest."""
    parts = []
    for at in range(0, values.shape[1], GROUP):
        part = values[:, at : at + GROUP].astype(np.float64)
        scale = np.abs(part).max(1, keepdims=True) / 127
        parts.append(np.rint(part / np.where(scale > 0, scale, 1)) * scale)
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("rows", [1, 6, 25])
@pytest.mark.parametrize("width", [65, 576])
def test_a_product_of_any_numbers_is_that_of_the_rounded_ones(library, rows, width):
    rng = np.random.default_rng(rows)
    weight, x = (rng.standard_normal((n, width)).astype(np.float32) for n in (70, rows))
    bias = rng.standard_normal(70).astype(np.float32)
    right = rounded(x) @ rounded(weight).T + bias
    assert np.abs(matrix(library, weight, bias)(x) - right).max() < 0.1


def test_a_huge_number_costs_the_precision_of_its_own_group_only(library):
    rng = np.random.default_rng(1)
    weight, x = (rng.standard_normal((4, 192)).astype(np.float32) for _ in range(2))
    x[1, 70] = 1e30
    weight[:, 64:128] = 0
    found, right = matrix(library, weight)(x), x.astype(np.float64) @ weight.T
    assert np.abs(found - right).max() < 0.5


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_fails_no_other(library, lost):
    rng = np.random.default_rng(2)
    product = matrix(library, rng.standard_normal((70, 200)))
    x = rng.standard_normal((9, 200)).astype(np.float32)
    clean = product(x)
    x[4, 150] = lost
    found = product(x)
    assert np.isnan(found[4]).all()
    others = [row for row in range(9) if row != 4]
    assert np.array_equal(found[others], clean[others])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 7, 40])
def test_a_row_does_not_depend_on_the_rows_beside_it(library, rows):
    rng = np.random.default_rng(rows)
    product = matrix(library, rng.standard_normal((150, 300)))
    x = rng.standard_normal((40, 300)).astype(np.float32)
    assert np.array_equal(product(x[:rows]), product(x)[:rows])


def trunks(library, dtype):
    """(exact, 8-bit) with the same weights, a pool each."""
    spec = spec_of()
    shape = PoolShape(
        blocks=BLOCKS,
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        block_size=16,
        head_dim=spec.head_dim,
    )
    pools = [PagedPool(shape, dtype, CPU) for _ in range(2)]
    exact = Trunk(spec, dummy_weights(spec, dtype, CPU, Linear), max_positions=spec.max_positions)
    packed = dummy_weights(spec, dtype, CPU, partial(NativeLinear, library, int8=True))
    native = NativeTrunk(library, spec, packed, pools[1], max_positions=spec.max_positions)
    return exact, native, pools


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_logits_are_close_to_those_of_exact_matrices(library, dtype):
    exact, native, pools = trunks(library, dtype)
    for chunks in ([chunk(0, 131, [3, 1, 2], 0, 40)], [chunk(0, 131, [3, 1, 2], 40, 1)]):
        flat = flatten(plan_of(chunks, 16))
        with torch.inference_mode():
            right = exact.logits(flat, pools[0]).float()
            found = native.logits(flat, pools[1])
        close = CLOSE if dtype is torch.float32 else 2 * CLOSE
        assert float((found - right).abs().max()) < close * float(right.abs().max())


def started(tmp_path, **given):
    folder = write_tiny(tmp_path / "tiny")
    config = EngineConfig(
        model=str(folder), served_name="m", threads=1, kv_cache_tokens=512, **given
    )
    runner, _ = load(config)
    runner.close()
    return runner


def test_an_int8_engine_exchanges_kv_with_one_of_its_dtype(tmp_path):
    int8, plain = (
        started(tmp_path / name, dtype="float32", quantization=name) for name in ("int8", "none")
    )
    assert int8.kv_layout() == plain.kv_layout()
    assert int8.facts["cpu_isa"] == plain.facts["cpu_isa"] + " int8"


def asked(compute, device=CPU):
    config = EngineConfig(model="", served_name="", compute=compute, quantization="int8", threads=1)
    return choice.open_library(config, device)


def test_int8_without_the_native_step_is_refused_with_what_to_write(monkeypatch):
    with pytest.raises(LoadError, match=r"--quantization int8: .* say --compute native"):
        asked("torch")
    with pytest.raises(LoadError, match=r"--quantization int8: a GPU computes here; leave it out"):
        asked("auto", torch.device("cuda"))
    monkeypatch.setattr(choice, "choose", lambda: None)
    with pytest.raises(LoadError, match=r"--quantization int8: .* C compiler is, or leave it out"):
        asked("auto")
