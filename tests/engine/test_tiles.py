"""The products of the AMX library with its tile instructions emulated in C, so on any CPU."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.model.native import trial
from argosy_engine.model.native.compile import FOLDER, SOURCES, compiler, library_path
from argosy_engine.model.native.library import BF16, INT8, Library, Matrix

INSTRUCTIONS = Path(__file__).parent / "emulated_tiles.h"
FLAGS = (
    "-O1",
    "-std=c11",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-Wno-psabi",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The library of the engine's own sources, with vectors as wide as AVX-512's."""
    built = tmp_path_factory.mktemp("tiles") / "emulated.so"
    sources = [str(FOLDER / source) for source in SOURCES]
    header = f'-DTILE_INSTRUCTIONS="{INSTRUCTIONS}"'
    words = [*compiler(), *FLAGS, header, *sources, "-o", str(built), "-lm", "-lpthread"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def library(path):
    loaded = Library(path, threads=2, spins=100)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def base():
    loaded = Library(library_path("base"), threads=2, spins=100)
    yield loaded
    loaded.close()


def stored(values):
    """bfloat16's bits of numbers that are in it."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def integers(rng, *shape):
    """Numbers whose products and sums are exact, in whatever order they are added."""
    return rng.integers(-9, 10, shape).astype(np.float32)


# Steps are 32 bfloat16 or 64 codes deep, and a pass over a panel 2,048 bfloat16.
WIDTHS = st.integers(1, 200) | st.sampled_from([2047, 2048, 2049, 2081, 4100])
OUTPUTS = st.integers(1, 110)
ROWS = st.integers(1, 70)
SHAPE = {"out": OUTPUTS, "width": WIDTHS, "rows": ROWS, "seed": st.integers(0, 1 << 16)}


def test_whole_steps_are_the_base_librarys(path, capsys):
    assert trial.main(["trial", str(path), str(library_path("base"))]) == 0, capsys.readouterr().err


@settings(max_examples=60, deadline=None)
@given(**SHAPE, biased=st.booleans())
def test_a_bfloat16_product_of_integers_is_exact(library, out, width, rows, seed, biased):
    rng = np.random.default_rng(seed)
    weight, x = integers(rng, out, width), integers(rng, rows, width)
    bias = integers(rng, out) if biased else None
    product = Matrix(library, stored(weight), BF16, bias)
    right = x @ weight.T + (0 if bias is None else bias)
    assert np.array_equal(product(x), right)


@pytest.mark.parametrize("kind", [BF16, INT8], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 3, 15, 16, 17, 31, 32, 33, 48, 49])
def test_a_row_does_not_depend_on_the_rows_beside_it(library, kind, rows):
    rng = np.random.default_rng(rows)
    weight, x = (rng.standard_normal((n, 300)).astype(np.float32) for n in (150, 80))
    product = Matrix(library, stored(weight) if kind == BF16 else weight, kind, None)
    together = product(x)
    assert np.array_equal(product(x[:rows]), together[:rows])
    assert np.array_equal(product(x[80 - rows :]), together[80 - rows :])


@settings(max_examples=60, deadline=None)
@given(**SHAPE, biased=st.booleans(), lost=st.sampled_from([None, np.nan, np.inf, -np.inf]))
def test_an_8_bit_product_is_the_base_librarys(library, base, out, width, rows, seed, biased, lost):
    rng = np.random.default_rng(seed)
    weight, x = (rng.standard_normal((n, width)).astype(np.float32) for n in (out, rows))
    bias = rng.standard_normal(out).astype(np.float32) if biased else None
    if lost is not None:
        x[rng.integers(rows), rng.integers(width)] = lost
    found, right = (Matrix(one, weight, INT8, bias)(x) for one in (library, base))
    assert np.isnan(right).any(1).sum() == (lost is not None)
    assert np.allclose(found, right, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_fails_no_other(library, lost):
    rng = np.random.default_rng(3)
    product = Matrix(library, stored(rng.standard_normal((70, 200))), BF16, None)
    x = rng.standard_normal((40, 200)).astype(np.float32)
    clean = product(x)
    x[17, 150] = lost
    found = product(x)
    assert not np.isfinite(found[17]).any()
    others = [row for row in range(40) if row != 17]
    assert np.array_equal(found[others], clean[others])


@pytest.mark.parametrize("kind", [BF16, INT8], ids=["bfloat16", "int8"])
def test_no_register_is_in_use_after_a_product(path, library, kind):
    weight = np.ones((70, 96), np.float32)
    product = Matrix(library, stored(weight) if kind == BF16 else weight, kind, None)
    assert np.array_equal(product(np.ones((40, 96))), np.full((40, 70), 96))
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(path)), "tiles_in_use").value == 0
