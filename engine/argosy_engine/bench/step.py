"""Decode steps and prefills of one model, beside what their matrix products alone take.

    python -m argosy_engine.bench.step --model DIR [--dtype auto] [--json FILE]

Prints a line a figure; writes {"figures", "environment", "command"}. Step and products alternate in
the same run, and each is the best of several repeats: the neighbours of a shared machine only ever
slow a step down. `…_over_products` is the step over that limit: 1 would be an engine in which
attention, norms, sampling and Python cost nothing.
"""

import argparse
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path

from argosy_engine.config import EngineConfig
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import Chunk, StepPlan
from argosy_engine.runtime.machine import set_spinning

set_spinning()  # as `argosy engine serve` does, before torch is loaded

import torch  # noqa: E402

from argosy_engine.model.trunk import Trunk  # noqa: E402
from argosy_engine.runtime.cpu import settle  # noqa: E402
from argosy_engine.runtime.torch.runner import TorchRunner, load  # noqa: E402
from argosy_engine.runtime.torch.sampler import sample  # noqa: E402

_CONTEXT = 128
_BLOCK = 32
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
_NAME = "SmolLM2-135M-Instruct"


def _chunk(index: int, start: int, count: int) -> Chunk:
    blocks = -(-(start + count) // _BLOCK)
    return Chunk(
        request_id=str(index),
        tokens=[5] * (start + count),
        block_table=list(range(1 + index * blocks, 1 + (index + 1) * blocks)),
        start=start,
        count=count,
        samples=True,
        decode=count == 1,
        sampling=_GREEDY,
    )


def _plan(chunks: tuple[Chunk, ...]) -> StepPlan:
    decodes = [chunk for chunk in chunks if chunk.decode]
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=_BLOCK,
        prefill_tokens=sum(chunk.count for chunk in chunks if not chunk.decode),
        prefill_sequences=len(chunks) - len(decodes),
        decode_sequences=len(decodes),
        decode_context_tokens=len(decodes) * _CONTEXT,
        after_idle=False,
    )


def _products_s(trunk: Trunk, tokens: int, sampled: int) -> float:
    """Seconds of every matrix product of a step of `tokens` tokens, and nothing else."""
    weights, spec = trunk.weights, trunk.spec
    like = weights.embedding
    made = {
        width: torch.ones(tokens, width, dtype=like.dtype, device=like.device)
        for width in (spec.hidden, spec.q_size, spec.inner)
    }
    _finish(like.device)
    began = time.perf_counter()
    with torch.inference_mode():
        for layer in weights.layers:
            layer.qkv(made[spec.hidden])
            layer.out(made[spec.q_size])
            layer.gate_up(made[spec.hidden])
            layer.down(made[spec.inner])
        weights.head(made[spec.hidden][:sampled])
    _finish(like.device)
    return time.perf_counter() - began


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _best_s(runner: TorchRunner, chunks: tuple[Chunk, ...], repeats: int) -> tuple[float, float]:
    """(step, its products), in seconds."""
    plan, tokens = _plan(chunks), sum(chunk.count for chunk in chunks)
    pairs = [
        (runner.execute(plan).busy_s, _products_s(runner.trunk, tokens, len(chunks)))
        for _ in range(repeats)
    ]
    return min(step for step, _ in pairs), min(products for _, products in pairs)


def _sampling_s(vocab: int) -> float:
    """Seconds to draw 32 rows with top_p 0.95 from peaked logits, as a model gives them."""
    logits = torch.randn(32, vocab, generator=torch.Generator().manual_seed(0)) * 6
    asked = [SamplingParams(max_tokens=1, top_p=0.95, seed=row) for row in range(32)]
    times = []
    for position in range(8):
        began = time.perf_counter()
        sample(logits, asked, [position] * 32)
        times.append(time.perf_counter() - began)
    return min(times)


def measure(model: str, dtype: str) -> dict[str, float]:
    """Figures by name; milliseconds, tokens a second, MiB and ratios."""
    began = time.perf_counter()
    runner, _ = load(
        EngineConfig(model=model, served_name="bench", dtype=dtype, kv_cache_tokens=8192)  # type: ignore[arg-type]
    )
    runner.warm_up()
    figures = {"load_s": time.perf_counter() - began}
    decodes = {
        f"decode_{batch}": tuple(_chunk(index, _CONTEXT - 1, 1) for index in range(batch))
        for batch in (1, 8, 32)
    }
    prefills = {f"prefill_{tokens}": (_chunk(0, 0, tokens),) for tokens in (128, 512)}
    for name, chunks in (decodes | prefills).items():
        step_s, products_s = _best_s(runner, chunks, 8 if name in decodes else 3)
        figures[f"{name}_ms"] = step_s * 1e3
        tokens = sum(chunk.count for chunk in chunks)
        figures[f"{name}_tokens_per_s"] = tokens / step_s
        figures[f"{name}_over_products"] = step_s / products_s
    figures["sample_32_top_p_ms"] = _sampling_s(runner.vocab_size) * 1e3
    figures["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    """Command line; see the module."""
    cache = os.environ.get("ARGOSY_CACHE") or Path.home() / ".cache" / "argosy"
    parser = argparse.ArgumentParser(description="Measure decode steps and prefills.")
    parser.add_argument("--model", default=str(Path(cache) / "models" / _NAME))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures = measure(args.model, args.dtype)
    for name, value in figures.items():
        sys.stdout.write(f"{name:28} {value}\n")
    if args.json:
        environment = {
            "isa": settle().isa,
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
