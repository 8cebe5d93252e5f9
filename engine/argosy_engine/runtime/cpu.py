"""Which matrix products work on this CPU, tried in a child process before the first one here.

Some virtual machines announce AMX and fail at its first instruction: bfloat16 products of 8 rows or
more end the process with SIGILL. So a child tries them (`runtime.torch.products`). The engine caps
oneDNN's instruction set (`ONEDNN_MAX_CPU_ISA`) at what worked, and learns which type is faster.

The engine's start calls `begin` before torch is imported: the child and the import take about two
seconds each and run side by side. `torch.runner.load` calls `settle` before its first product. Both
act once in a process, because oneDNN reads its environment once.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from argosy.cpu import cpu_flags
from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.model.native.choose import choose
from argosy_engine.model.spec import read_dtype, trunk_knows
from argosy_engine.runtime.machine import allowed_threads

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "argosy_engine.runtime.torch.products")
_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_DEFAULT = "DEFAULT"  # oneDNN's name for everything that the CPU announces
_LEVELS = (_DEFAULT, "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
_SAFE = "AVX512_CORE_FP16"  # the highest one without AMX
_NATIVE = {"avx512_bf16", "bf16"}  # flags of CPUs (x86, Arm) that multiply bfloat16 without AMX
_TIMEOUT_S = 60.0
_CLEARLY = 1.25
"""Speedup from which bfloat16 counts as faster. Replicas must choose the same type, or they cannot
exchange KV, so noise must not decide between nearly equal speeds. Measured: 0.4 to 0.5 where
bfloat16 is emulated, 0.94 to 1.06 with AVX512_BF16 on Emerald Rapids (1.4 at 1 row, 0.6 from 128
rows on)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The child's result for one instruction set."""

    isa: str

    lived: list[str]
    """Types whose products worked."""

    speedup: float | None
    """float32's time over bfloat16's; None: not measured."""

    end: str
    """How a failed try ended: "SIGILL", "exit status 1"; empty if all worked."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """What this process computes with."""

    isa: str
    """oneDNN's cap; DEFAULT: none."""

    bfloat16_works: bool = True
    bfloat16_faster: bool = False


class _Process:
    """State of this process: the child while it runs, then the result."""

    child: subprocess.Popen[bytes] | None = None
    settled: Cpu | None = None


def begin(config: EngineConfig) -> None:
    """Start the child, if this CPU and `config` need one. LoadError for a folder without config."""
    if _Process.child is None and _Process.settled is None and _wanted(config, cpu_flags()):
        threads = str(config.threads or allowed_threads())
        command = [*PROGRAM, threads, *levels(os.environ.get(_VARIABLE))]
        try:
            _Process.child = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that its forks can be ended with it
            )
        except OSError as error:
            _Process.settled = _unknown(f"no child process could be started: {error.strerror}")


def settle() -> Cpu:
    """Wait for the child and cap oneDNN. LoadError when no product works at all."""
    if _Process.settled is None:
        child, _Process.child = _Process.child, None
        if child is None:
            _Process.settled = Cpu(os.environ.get(_VARIABLE) or _DEFAULT)
        else:
            _Process.settled = _verdict(child)
    if _Process.settled.isa != _DEFAULT:
        os.environ[_VARIABLE] = _Process.settled.isa
    return _Process.settled


def abandon() -> None:
    """End the child: an accelerator computes, so its result is not needed."""
    child, _Process.child = _Process.child, None
    if child is not None:
        _kill(child)


def levels(given: str | None) -> list[str]:
    """Instruction sets to try in turn, from the user's cap (or everything) downwards."""
    first = (given or _DEFAULT).upper()
    if first in _LEVELS:
        return list(_LEVELS[_LEVELS.index(first) :])
    return [first, *_LEVELS[1:]]


def judge(attempts: Iterable[Attempt]) -> Cpu | None:
    """The first set at which both types work, else the first at which float32 does, else None."""
    single: Cpu | None = None
    for attempt in attempts:
        if {"float32", "bfloat16"} <= set(attempt.lived):
            return Cpu(attempt.isa, True, (attempt.speedup or 0.0) >= _CLEARLY)
        if single is None and "float32" in attempt.lived:
            single = Cpu(attempt.isa, bfloat16_works=False)
    return single


def _without_amx(given: str | None) -> bool:
    """Whether the user's own cap leaves AMX out."""
    name = (given or _DEFAULT).upper()
    return name not in (_DEFAULT, "ALL") and "AMX" not in name


def _wanted(config: EngineConfig, flags: set[str]) -> bool:
    """Whether torch multiplies, and AMX is announced, which may not work, or the faster type is
    not known."""
    torch_alone = (
        config.compute == "torch" or config.beyond_native or config.tensor_parallel_size > 1
    )
    if not torch_alone and choose() is not None and trunk_knows(Path(config.model)):
        return False
    if "amx_tile" in flags and not _without_amx(os.environ.get(_VARIABLE)):
        return True
    if config.dtype != "auto" or not flags & (_NATIVE | {"amx_tile"}):
        return False
    return read_dtype(Path(config.model)) != "float32"


def _verdict(child: subprocess.Popen[bytes]) -> Cpu:
    try:
        out, _ = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill(child)
        return _unknown(f"the child that tries products gave no result within {_TIMEOUT_S:.0f} s")
    if child.returncode != 0:
        return _unknown(f"the child that tries products ended with {child.returncode}")
    attempts = [Attempt(**raw) for raw in json.loads(out)]
    found = judge(attempts)
    if found is None:
        tried = ", ".join(f"{one.isa}: {one.end}" for one in attempts)
        raise LoadError(
            "BadArgument",
            f"this CPU computes no matrix product ({tried}): use another type of machine",
        )
    _log_result(found, attempts)
    return found


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End it with its forks: one that hangs keeps the output open, and reading would not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _log_result(found: Cpu, attempts: list[Attempt]) -> None:
    speed = next((one.speedup for one in attempts if one.isa == found.isa), None)
    words = "bfloat16 does not work"
    if speed is not None:
        words = f"bfloat16 is {speed:.2f} times as fast as float32"
    died = ", ".join(f"{one.isa} ({one.end})" for one in attempts if one.end)
    if died:
        log.warning(
            "matrix products fail on this CPU at %s: oneDNN is capped at %s=%s, %s",
            died,
            _VARIABLE,
            found.isa,
            words,
        )
    else:
        log.info("matrix products work on this CPU at %s, %s", found.isa, words)


def _unknown(why: str) -> Cpu:
    """No result: leave AMX out, which is slower on some CPUs and works on all."""
    given = os.environ.get(_VARIABLE)
    cap = given if given and _without_amx(given) else _SAFE
    log.warning("%s: oneDNN is capped at %s=%s", why, _VARIABLE, cap)
    return Cpu(cap)
