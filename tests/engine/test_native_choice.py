"""The engine takes the first native library whose trial in a child process succeeds."""

import logging
import platform
import sys
from pathlib import Path

import pytest

from argosy import cpu
from argosy_engine.model.native import choose as choice
from argosy_engine.model.native import compile as native
from argosy_engine.model.native.choose import first_that_works

NAMES = ("amx", "avx512_bf16", "base")


def trial(**ends: str) -> tuple[str, ...]:
    """A child that runs `ends[name]` for the library of that name, and succeeds for others."""
    cases = "".join(f"\nif sys.argv[1].endswith('_{name}.so'): {end}" for name, end in ends.items())
    return sys.executable, "-c", f"import os, signal, sys{cases}"


def test_the_first_that_works_is_taken():
    assert first_that_works(NAMES, trial()) == "amx"


def test_a_library_that_dies_of_an_illegal_instruction_costs_only_itself(caplog):
    program = trial(amx="os.kill(os.getpid(), signal.SIGILL)")
    with caplog.at_level(logging.WARNING):
        assert first_that_works(NAMES, program) == "avx512_bf16"
    assert "amx (SIGILL)" in caplog.text


def test_a_library_that_computes_something_else_is_not_taken(caplog):
    program = trial(amx="sys.exit(1)", avx512_bf16="sys.exit('wrong by 0.5 with type 0')")
    with caplog.at_level(logging.WARNING):
        assert first_that_works(NAMES, program) == "base"
    assert "amx (exit status 1)" in caplog.text
    assert "avx512_bf16 (wrong by 0.5 with type 0)" in caplog.text


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have one library")
ZEN_3 = "flags\t\t: fpu sse2 fma f16c avx avx2\n"
SAPPHIRE_RAPIDS = (
    "flags\t\t: fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni "
    "amx_bf16 amx_tile amx_int8\n"
)


@X86
@pytest.mark.parametrize(
    ("cpuinfo", "tried"),
    [
        (ZEN_3, ["avx2", "base"]),
        (SAPPHIRE_RAPIDS.replace("amx_tile", ""), list(native.FLAGS)[1:]),
        ("flags\t\t: sse2\n", ["base"]),
        ("", list(native.FLAGS)),
        (None, list(native.FLAGS)),
    ],
)
def test_a_library_of_instructions_that_the_cpu_lacks_is_not_tried(
    tmp_path, monkeypatch, cpuinfo, tried
):
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{cpuinfo}bugs\t\t: none\n")
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(choice, "library_path", lambda name: Path(__file__))
    monkeypatch.setattr(choice, "first_that_works", list)
    assert choice.choose.__wrapped__() == tried


def test_a_compiler_without_the_c_librarys_headers_is_none(monkeypatch, tmp_path):
    looks = '[ "$*" = "-fsyntax-only -x c -" ]'  # at C on its standard input
    for name, ends in (("gcc", "false"), ("clang", looks)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{ends}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.compiler() == [str(tmp_path / "clang")]


def test_without_a_compiler_the_build_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "compiler", lambda: None)
    with pytest.raises(RuntimeError) as failure:
        native.build()
    assert str(failure.value) == (
        "the native step needs a C compiler: install gcc or clang, or `pip install ziglang`; "
        "ARGOSY_NATIVE=0 installs the engine without it"
    )


COMPILES = """
import pathlib, sys
at = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
at.write_text(" ".join(word for word in sys.argv if word.endswith(".c")))
with (at.parent / "calls").open("a") as calls:
    calls.write("call\\n")
"""


def test_the_libraries_are_built_when_a_source_changed_or_one_is_missing(monkeypatch, tmp_path):
    (tmp_path / "step.c").write_text("int step;")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "compiler", lambda: [sys.executable, "-c", COMPILES])

    def compiled(**options):
        before = calls.read_text() if calls.exists() else ""
        paths = native.build(**options)
        assert paths == [tmp_path / f"argosy_{name}.so" for name in native.FLAGS]
        assert not list(tmp_path.glob("*.part"))
        for path in paths:
            assert path.read_text().split() == [str(tmp_path / name) for name in native.SOURCES]
        return len(calls.read_text().removeprefix(before).split())

    calls, whole = tmp_path / "calls", len(native.FLAGS)
    assert compiled() == whole
    assert compiled() == 0
    assert compiled(force=True) == whole
    (tmp_path / "step.c").write_text("int other;")
    assert compiled() == whole
    native.library_path("base").unlink()
    assert compiled() == whole
    assert compiled() == 0


NEW = "-mavx512bf16"
OLD_COMPILER = f"import sys\nif {NEW!r} in sys.argv: sys.exit('unknown flag')\n{COMPILES}"


@pytest.mark.skipif("avx512_bf16" not in native.FLAGS, reason="x86-64 has AVX-512")
def test_a_compiler_that_does_not_know_an_instruction_set_builds_the_others(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "compiler", lambda: [sys.executable, "-c", OLD_COMPILER])
    unknown = native.library_path("avx512_bf16")
    unknown.write_text("of an older release")
    known = [name for name, flags in native.FLAGS.items() if NEW not in flags]
    others = [native.library_path(name) for name in known]
    assert native.build() == others
    assert not unknown.exists()
    assert "no library for avx512_bf16" in capsys.readouterr().err
    calls = (tmp_path / "calls").read_text()
    assert native.build() == others
    assert (tmp_path / "calls").read_text() == calls


def test_a_failed_compile_shows_the_compilers_words(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    words = [sys.executable, "-c", "raise SystemExit('bad flag')"]
    monkeypatch.setattr(native, "compiler", lambda: words)
    with pytest.raises(RuntimeError, match="bad flag"):
        native.build()
    assert list(tmp_path.iterdir()) == []
