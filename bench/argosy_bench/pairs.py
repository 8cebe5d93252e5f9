"""bfloat16 products of the native step, multiplied in pairs and widened, in alternating runs.

    python -m argosy_bench.pairs [--runs 7] [--json FILE]

The matrices are those of `LAYERS` layers of SmolLM2-135M with random numbers, multiplied by one
thread. Rates are medians over the runs, and the ratios medians of neighbours: a ratio below 1 says
that to widen is faster. What the engine takes on this CPU stands beside them (designs/0023).
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from argosy_bench.figures import Figure, Figures, conclude
from argosy_engine.model.native.choose import choose
from argosy_engine.model.native.compile import library_path
from argosy_engine.model.native.library import BF16, Library, Matrix

Floats = npt.NDArray[np.float32]
LAYERS = 8
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Outputs and inputs of q, k and v; the output; gate and up; down."""
ROWS = (1, 32, 512)
WITH_PAIRS = ("avx512_bf16", "amx")
"""Libraries that have instructions for pairs; that of AMX multiplies in tiles where it can."""

FIGURES = (
    *(
        Figure(f"{way}_{rows}_gflops", "GFLOP/s", digits=0)
        for rows in ROWS
        for way in ("pairs", "widened")
    ),
    *(Figure(f"widened_over_pairs_{rows}", digits=2) for rows in ROWS),
    Figure("engine_takes_pairs", digits=0),
)


def measure(figures: Figures, path: Path, runs: int) -> None:
    """Multiply in both ways in turn, `runs` times for each number of rows."""
    rng = np.random.default_rng(0)
    packer = Library(path, threads=1, spins=0)
    figures.put("engine_takes_pairs", packer.pairs)
    matrices = [_matrix(packer, rng, *shape) for _ in range(LAYERS) for shape in SHAPES]
    packer.close()
    for rows in ROWS:
        inputs = {width: rng.standard_normal((rows, width), np.float32) for _, width in SHAPES}
        outputs = {out: np.zeros((rows, out), np.float32) for out, _ in SHAPES}
        work = 2e-9 * rows * LAYERS * sum(out * width for out, width in SHAPES)
        timed = partial(_seconds, path, matrices, inputs, outputs)
        seconds = [(timed(True), timed(False)) for _ in range(runs)]
        for way, times in zip(("pairs", "widened"), zip(*seconds, strict=True), strict=True):
            figures.put(f"{way}_{rows}_gflops", work / statistics.median(times))
        ratios = [widened / pairs for pairs, widened in seconds]
        figures.put(f"widened_over_pairs_{rows}", statistics.median(ratios))


def _matrix(library: Library, rng: np.random.Generator, out: int, width: int) -> Matrix:
    weight = rng.standard_normal((out, width), np.float32)
    return Matrix(library, (weight.view(np.uint32) >> 16).astype(np.uint16), BF16, None)


def _seconds(
    path: Path,
    matrices: list[Matrix],
    inputs: dict[int, Floats],
    outputs: dict[int, Floats],
    pairs: bool,
) -> float:
    """Of one product with every matrix. The way is one choice for the whole process."""
    library = Library(path, threads=1, spins=0, pairs=pairs)
    fields = [matrix.fields for matrix in matrices]
    last = fields[-1]
    library.product(last, inputs[last.in_], outputs[last.out])  # the team takes its memory here
    began = time.perf_counter()
    for matrix in fields:
        library.product(matrix, inputs[matrix.in_], outputs[matrix.out])
    took = time.perf_counter() - began
    library.close()
    return took


def main() -> int:
    """Measure; exit status 2 where the CPU has no such instructions."""
    parser = argparse.ArgumentParser(prog="python -m argosy_bench.pairs")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    name = choose()
    if name not in WITH_PAIRS:
        parser.exit(2, f"this CPU has no instructions for bfloat16 pairs (native {name})\n")
    figures = Figures(FIGURES, f"python -m argosy_bench.pairs --runs {asked.runs}")
    figures.notes["native"] = name
    measure(figures, library_path("avx512_bf16"), asked.runs)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
