"""Steps of one model beside their matrix products, and served ones beside vLLM and the floor."""

import argparse
from pathlib import Path

import torch

from argosy_bench.engine import lock, served, steps
from argosy_engine.runtime.cpu import settle
from local.figures import Figures
from local.weights.smollm2 import default_out


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--model", type=Path, default=default_out("float32"), help="folder of the weights")
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="of the steps")
    add("--peer", type=Path, help="environment with vLLM's CPU build")
    add("--rounds", type=int, default=3, help="turns of both servers (3)")


def _measure_steps(figures: Figures, asked: argparse.Namespace) -> None:
    _check(asked.model)
    steps.measure(figures, str(asked.model), asked.dtype)
    figures.notes |= {
        "model": asked.model.name,
        "dtype": asked.dtype,
        "isa": settle().isa,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _measure_served(figures: Figures, asked: argparse.Namespace) -> None:
    _check(asked.model)
    served.measure(figures, asked.model, asked.peer, asked.rounds)


def _check(model: Path) -> None:
    if not model.is_dir():
        raise SystemExit(f"no model in {model}: python -m local.weights.smollm2 writes one")


def _measure_lock(figures: Figures, asked: argparse.Namespace) -> None:
    lock.measure(figures, lock.Load(rounds=asked.rounds))


PARTS = {"steps": _measure_steps, "served": _measure_served, "lock": _measure_lock}
