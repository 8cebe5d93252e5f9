"""A native library of another release is noticed before anything is computed with it."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from argosy_engine.model.native.compile import compiler
from argosy_engine.model.native.library import DRAW, LayerFields, Library, MatrixFields, ModelFields
from argosy_engine.model.native.library import _BatchFields as BatchFields

FIELDS = (MatrixFields, LayerFields, ModelFields, BatchFields)
SIZES = [*map(ctypes.sizeof, FIELDS), DRAW.itemsize]
SOURCE = """
#include <stdint.h>
void argosy_sizes(int64_t sizes[5]) {
    const int64_t ours[5] = {%s};
    for (int i = 0; i < 5; i++) sizes[i] = ours[i];
}
"""


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([*SIZES[:3], SIZES[3] + 8, SIZES[4]], id="another size"),
        pytest.param(SIZES, id="a function is missing"),
    ],
)
def test_a_library_of_another_release_is_refused_by_name(tmp_path: Path, sizes: list[int]) -> None:
    source, path = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text(SOURCE % ", ".join(map(str, sizes)))
    command = compiler()
    assert command is not None
    subprocess.run([*command, "-shared", "-fPIC", source, "-o", path], check=True)
    with pytest.raises(OSError, match=r"old\.so is of another release: build the package again"):
        Library(path, threads=1, spins=1)
