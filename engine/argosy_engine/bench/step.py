"""Decode steps and a prefill of one model, in milliseconds and tokens a second.

    python -m argosy_engine.bench.step --model DIR [--dtype auto] [--json FILE]

Prints a line a figure; writes {"figures", "environment", "command"}. Best of several repeats, since
the neighbours of a shared machine only ever slow a step down.
"""

import argparse
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path

import torch

from argosy_engine.config import EngineConfig
from argosy_engine.core.plan import Row, StepPlan
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.runtime.torch_runner import TorchRunner, load

_CONTEXT = 128
_BLOCK = 32
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
_NAME = "SmolLM2-135M-Instruct"


def _row(index: int, start: int, count: int) -> Row:
    blocks = -(-(start + count) // _BLOCK)
    return Row(
        request_id=str(index),
        tokens=[5] * (start + count),
        block_table=list(range(1 + index * blocks, 1 + (index + 1) * blocks)),
        start=start,
        count=count,
        samples=True,
        decode=count == 1,
        sampling=_GREEDY,
    )


def _best_s(runner: TorchRunner, rows: tuple[Row, ...], repeats: int) -> float:
    decodes = [row for row in rows if row.decode]
    plan = StepPlan(
        index=1,
        rows=rows,
        block_size=_BLOCK,
        prefill_tokens=sum(row.count for row in rows if not row.decode),
        prefill_sequences=len(rows) - len(decodes),
        decode_sequences=len(decodes),
        decode_context_tokens=len(decodes) * _CONTEXT,
        after_idle=False,
    )
    return min(runner.execute(plan).busy_s for _ in range(repeats))


def measure(model: str, dtype: str) -> dict[str, float]:
    began = time.perf_counter()
    runner, _ = load(
        EngineConfig(model=model, served_name="bench", dtype=dtype, kv_cache_tokens=8192)  # type: ignore[arg-type]
    )
    runner.warm_up()
    figures = {"load_s": time.perf_counter() - began}
    for batch in (1, 8, 32):
        rows = tuple(_row(index, _CONTEXT - 1, 1) for index in range(batch))
        step_s = _best_s(runner, rows, 8)
        figures[f"decode_{batch}_ms"] = step_s * 1e3
        figures[f"decode_{batch}_tokens_per_s"] = batch / step_s
    for tokens in (128, 512):
        step_s = _best_s(runner, (_row(0, 0, tokens),), 3)
        figures[f"prefill_{tokens}_ms"] = step_s * 1e3
        figures[f"prefill_{tokens}_tokens_per_s"] = tokens / step_s
    figures["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    cache = os.environ.get("ARGOSY_CACHE") or Path.home() / ".cache" / "argosy"
    parser = argparse.ArgumentParser(description="Measure decode steps and a prefill.")
    parser.add_argument("--model", default=str(Path(cache) / "models" / _NAME))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures = measure(args.model, args.dtype)
    for name, value in figures.items():
        sys.stdout.write(f"{name:28} {value}\n")
    if args.json:
        environment = {
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }
        command = "python -m argosy_engine.bench.step " + " ".join(sys.argv[1:])
        text = {"figures": figures, "environment": environment, "command": command}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(text, indent=2) + "\n")


if __name__ == "__main__":
    main()
