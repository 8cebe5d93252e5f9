"""Triton's driver, compiled ahead: processes without a compiler load it, and no other Triton does.

A library of empty functions is their libcuda, since what loads the driver calls none of them.
"""

import logging
import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch
triton = pytest.importorskip("triton")

from argosy_engine.model.attention import driver  # noqa: E402
from argosy_engine.model.native.compile import compiler  # noqa: E402

LOAD = """
import sys
from pathlib import Path
from argosy_engine.model.attention import driver
driver.use_built(Path(sys.argv[1]))
from triton.backends.nvidia.driver import CudaUtils
print(callable(CudaUtils().launch))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the driver."""
    path = driver.build(tmp_path_factory.mktemp("built"))
    assert path is not None
    return path.parent


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory):
    """A folder with the stand-in."""
    folder = tmp_path_factory.mktemp("cuda")
    names = set(re.findall(r"\b(cu[A-Z]\w*)\(", driver._find_source().read_text()))
    source = folder / "cuda.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    target = folder / "libcuda.so.1"
    subprocess.run([*compiler(), "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return folder


@pytest.fixture
def load(libcuda, tmp_path):
    """Load the driver in a process that finds no compiler, with this HOME."""

    def load(folder):
        env = {k: v for k, v in os.environ.items() if k not in ("CC", "TRITON_INTERPRET")}
        env |= {"PATH": "/nowhere", "HOME": str(tmp_path), "LD_LIBRARY_PATH": str(libcuda)}
        words = [sys.executable, "-W", "ignore", "-c", LOAD, str(folder)]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)

    return load


def test_a_process_without_a_compiler_loads_the_driver(built, load, tmp_path):
    done = load(built)
    assert done.stdout == "True\n", done.stderr
    assert list((tmp_path / ".triton").rglob("cuda_utils*")), "what pods get by HOME"


def test_without_the_library_triton_asks_for_a_compiler(load, tmp_path):
    done = load(tmp_path / "empty")
    assert done.returncode != 0
    assert "Failed to find C compiler" in done.stderr


def test_a_library_for_another_triton_is_named_and_left_alone(built, tmp_path, monkeypatch, caplog):
    (library,) = built.iterdir()
    other = library.name.replace("triton-driver-", "triton-driver-0")
    (tmp_path / other).write_bytes(library.read_bytes())
    monkeypatch.setattr(triton.knobs.build, "impl", None)
    with caplog.at_level(logging.WARNING):
        driver.use_built(tmp_path)
    assert triton.knobs.build.impl is None
    assert other in caplog.text


def test_the_library_of_another_triton_has_another_name(built, tmp_path, monkeypatch):
    (library,) = built.iterdir()
    monkeypatch.setattr(driver, "version", lambda _: "0.0")
    assert driver._built_path(driver._find_source(), built) != library


def test_other_c_files_are_refused_by_name(built, tmp_path, monkeypatch):
    monkeypatch.setattr(triton.knobs.build, "impl", None)
    driver.use_built(built)
    (tmp_path / "other.c").write_text("int other;\n")
    with pytest.raises(RuntimeError, match="other"):
        triton.knobs.build.impl("other", str(tmp_path / "other.c"), str(tmp_path), [], [], [])
