"""The engine on this machine's GPU: logits, steps, handovers, and loads beside vLLM.

Without a GPU nothing is measured.
"""

import argparse
import multiprocessing
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from argosy_bench.engine.install import program
from argosy_bench.gpu.handover import measure_handovers
from argosy_bench.gpu.logits import measure_logits
from argosy_bench.gpu.scale import FULL, SMALL, Scale, write_model
from argosy_bench.gpu.served import measure_served
from argosy_bench.gpu.steps import measure_eager_steps, measure_steps
from local.figures import Figure, Figures

_FOLDER = Path("build/bench")
Measured = list[tuple[Figure, float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--model", type=Path, help="folder of a model; without it a Llama-8B's shape is written")
    add("--peer", type=Path, help="environment with vLLM for CUDA (without: `vllm` in PATH)")
    add(
        "--small", action="store_true",
        help="a tiny model and short loads, on a CPU as well: to try this command",
    )  # fmt: skip


def why_not(asked: argparse.Namespace) -> str:
    """Return why nothing can be measured here; empty if it can. Notes the device."""
    asked.device = _in_child(_device_name)
    if asked.small or asked.device:
        return ""
    return "bench-gpu measures nothing: torch sees no GPU here"


def _device_name() -> str:
    """Return the GPU's name; empty without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _put_logits(figures: Figures, asked: argparse.Namespace) -> None:
    _put(figures, asked, _in_child(measure_logits, _scale(asked)))


def _put_steps(figures: Figures, asked: argparse.Namespace) -> None:
    for run in (measure_steps, measure_eager_steps):
        _put(figures, asked, _in_child(run, _model(asked), _scale(asked)))


def _put_handovers(figures: Figures, asked: argparse.Namespace) -> None:
    _put(figures, asked, measure_handovers(_model(asked), _scale(asked)))


def _put_served(figures: Figures, asked: argparse.Namespace) -> None:
    peer = program(asked.peer) if asked.peer else _which("vllm")
    if peer is None:
        figures.notes["vllm"] = "absent: it is not installed"
    _put(figures, asked, measure_served(_model(asked), _scale(asked), peer))


def _put(figures: Figures, asked: argparse.Namespace, measured: Measured) -> None:
    figures.declare(row for row, _ in measured)
    for row, value in measured:
        figures.put(row.name, value)
    figures.notes |= {
        "device": asked.device or "a CPU",
        "model": _model(asked).name,
        "commit": _commit(),
    }


def _scale(asked: argparse.Namespace) -> Scale:
    return SMALL if asked.small else FULL


def _model(asked: argparse.Namespace) -> Path:
    if asked.model:
        return Path(asked.model)
    scale = _scale(asked)
    return write_model(_FOLDER / ("small" if asked.small else "llama-8b"), scale)


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def _in_child(run: Callable[..., Any], *given: object) -> Any:
    """Return what `run` returns in a process of its own, which gives the GPU's memory back."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(run, *given).result()


PARTS = {
    "logits": _put_logits,
    "steps": _put_steps,
    "handovers": _put_handovers,
    "served": _put_served,
}
