"""`make bench-engine`: decode steps and prefills of one model, beside their matrix products.

    python -m argosy_bench.suites.engine --model DIR [--dtype auto] [--json FILE]

Step and products alternate in the same run, and each is the best of several repeats, because other
work on a shared machine only ever slows a step down. `…_over_products` is the step's time over that
of its matrix products: it would be 1 if attention, norms, sampling and Python cost nothing.
`…_native_over_torch` is the native step's time over torch's: the ratio of the medians of runs that
alternate (`--compute`). `peer.table` says what stands beside vLLM and the floor,
`argosy_bench.quantized` what `--quantization int8` adds.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.scheduler import host_us
from argosy_engine.config import EngineConfig
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import Chunk, StepPlan
from argosy_engine.runtime.machine import set_spinning

set_spinning()  # as `argosy engine serve` does, before torch is loaded

import torch  # noqa: E402

from argosy_bench import quantized  # noqa: E402
from argosy_bench.peer.compare import Beside  # noqa: E402
from argosy_engine.model.native_trunk import NativeTrunk  # noqa: E402
from argosy_engine.model.trunk import Trunk  # noqa: E402
from argosy_engine.runtime.cpu import settle  # noqa: E402
from argosy_engine.runtime.torch.runner import TorchRunner, load  # noqa: E402
from argosy_engine.runtime.torch.sampler import columns  # noqa: E402

CONTEXT = 128
"""Tokens that a decode step attends to."""
_BLOCK = 32
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
_MODEL = "SmolLM2-135M-Instruct"
_BATCHES = (1, 8, 32)
_PREFILLS = (128, 512)
_COMPARED = ("decode_1", "decode_8", "decode_32", "prefill_512")
_PAIRS = 5


def _figures() -> Iterator[Figure]:
    yield Figure("load_s", "s", digits=2)
    for step in (*(f"decode_{n}" for n in _BATCHES), *(f"prefill_{n}" for n in _PREFILLS)):
        yield Figure(f"{step}_ms", "ms", digits=2)
        yield Figure(f"{step}_tokens_per_s", "tokens/s", digits=2)
        yield Figure(f"{step}_over_products", digits=2)
    for step in _COMPARED:
        yield Figure(f"{step}_native_over_torch", digits=2)
    yield from quantized.figures(_COMPARED)
    yield Figure("sample_32_top_p_ms", "ms", digits=2)
    yield Figure("rss_mib", "MiB", digits=2)
    for name, most in (("scheduler", 300), ("host", 500)):
        target = Target("<=", most, of_the_machine=True)
        yield Figure(f"{name}_us_per_step_256_seqs", "µs", target, digits=0)


FIGURES = tuple(_figures())


def chunk_of(index: int, start: int, count: int) -> Chunk:
    """`count` tokens of one sequence from position `start` on; the sequence samples one."""
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


def plan_of(chunks: tuple[Chunk, ...]) -> StepPlan:
    """The step that computes these chunks."""
    decodes = [chunk for chunk in chunks if chunk.decode]
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=_BLOCK,
        prefill_tokens=sum(chunk.count for chunk in chunks if not chunk.decode),
        prefill_sequences=len(chunks) - len(decodes),
        decode_sequences=len(decodes),
        decode_context_tokens=len(decodes) * CONTEXT,
        after_idle=False,
    )


def _products_s(trunk: Trunk | NativeTrunk, tokens: int, sampled: int) -> float:
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
    plan, tokens = plan_of(chunks), sum(chunk.count for chunk in chunks)
    trunk = runner.trunk
    assert isinstance(trunk, Trunk | NativeTrunk)  # SmolLM2 is a Llama
    pairs = [
        (runner.execute(plan).busy_s, _products_s(trunk, tokens, len(chunks)))
        for _ in range(repeats)
    ]
    return min(step for step, _ in pairs), min(products for _, products in pairs)


def _sampling_s(trunk: NativeTrunk) -> float:
    """Seconds to draw 32 rows with top_p 0.95 from peaked logits, as a model gives them."""
    logits = torch.randn(32, trunk.spec.vocab, generator=torch.Generator().manual_seed(0)) * 6
    asked = [SamplingParams(max_tokens=1, top_p=0.95, seed=row) for row in range(32)]
    times = []
    for position in range(8):
        began = time.perf_counter()
        trunk.draw(logits, columns(asked, [position] * 32))
        times.append(time.perf_counter() - began)
    return min(times)


def _native_over_torch(
    runners: dict[str, TorchRunner], chunks: tuple[Chunk, ...], pairs: int
) -> float:
    """Median time of the native step over torch's, from runs that alternate."""
    plan = plan_of(chunks)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(pairs):
        for name, runner in runners.items():
            times[name].append(runner.execute(plan).busy_s)
    return median(times["native"]) / median(times["torch"])


def _loaded(model: str, dtype: str, compute: str) -> TorchRunner:
    config = EngineConfig(
        model=model,
        served_name="bench",
        dtype=dtype,  # type: ignore[arg-type]
        compute=compute,  # type: ignore[arg-type]
        kv_cache_tokens=8192,
    )
    runner, _ = load(config)
    runner.warm_up()
    return runner


def measure(figures: Figures, model: str, dtype: str) -> None:
    """Load the model and put every figure."""
    began = time.perf_counter()
    runner = _loaded(model, dtype, "torch")
    figures.put("load_s", time.perf_counter() - began)
    decodes = {
        f"decode_{batch}": tuple(chunk_of(index, CONTEXT - 1, 1) for index in range(batch))
        for batch in _BATCHES
    }
    prefills = {f"prefill_{tokens}": (chunk_of(0, 0, tokens),) for tokens in _PREFILLS}
    for name, chunks in (decodes | prefills).items():
        step_s, products_s = _best_s(runner, chunks, 8 if name in decodes else 3)
        figures.put(f"{name}_ms", step_s * 1e3)
        figures.put(f"{name}_tokens_per_s", sum(chunk.count for chunk in chunks) / step_s)
        figures.put(f"{name}_over_products", step_s / products_s)
    # The same type in both, whichever one of them would choose.
    native = _loaded(model, runner.facts["dtype"], "native")
    for name in _COMPARED:
        both = {"torch": runner, "native": native}
        ratio = _native_over_torch(both, (decodes | prefills)[name], _PAIRS)
        figures.put(f"{name}_native_over_torch", ratio)
    figures.notes["native"] = native.facts["cpu_isa"]
    assert isinstance(native.trunk, NativeTrunk)
    figures.put("sample_32_top_p_ms", _sampling_s(native.trunk) * 1e3)
    native.close()
    compared = {name: plan_of((decodes | prefills)[name]) for name in _COMPARED}
    quantized.measure(figures, model, compared)
    for name, microseconds in host_us().items():
        figures.put(f"{name}_us_per_step_256_seqs", microseconds)
    figures.put("rss_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    cache = os.environ.get("ARGOSY_CACHE") or Path.home() / ".cache" / "argosy"
    parser = argparse.ArgumentParser(prog="make bench-engine", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(cache) / "models" / _MODEL)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--json", type=Path, help="write the figures file here")
    parser.add_argument("--peer", type=Path, help="environment with vLLM's CPU build")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both servers; 0: no server")
    asked = parser.parse_args()
    if not asked.model.is_dir():
        parser.error(f"no model in {asked.model}: python -m local.weights.smollm2 writes one")
    beside = Beside(asked.model, asked.peer, asked.rounds)
    figures = Figures((*FIGURES, *beside.rows()), "make bench-engine")
    measure(figures, str(asked.model), asked.dtype)
    beside.measure(figures)
    figures.notes |= {
        "model": asked.model.name,
        "dtype": asked.dtype,
        "isa": settle().isa,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
