"""Steps of the model without a server, beside the roofline of this device.

The roofline of a step is the longer of two times: that of reading the weights and the KV at the
bandwidth, and that of its multiplications at the rate, which this run measures with one large read
and one large product. Norms, sampling and the host are left out.

A decode is timed as the engine runs it: each step is launched while the last one runs, and takes
its tokens from it. A prompt is launched and awaited.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from argosy.model_config import ModelSpec
from argosy_bench.engine.steps import chunk_of, plan_of
from argosy_bench.gpu.scale import Scale
from argosy_engine.config import EngineConfig
from argosy_engine.core.runner import Launcher
from argosy_engine.core.step import StepPlan
from argosy_engine.model.spec import read_spec
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.launcher import TorchLauncher
from argosy_engine.runtime.torch.runner import TorchRunner, load
from local.figures import Figure

Work = Sequence[tuple[int, int]]
"""(start, count) of each sequence of a step."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device did at best."""

    read_bytes_per_s: float
    flops_per_s: float
    """In bfloat16, a multiplication and an addition counted as two."""


def device() -> torch.device:
    """Return where an engine computes."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def measure_ceilings(scale: Scale) -> Ceilings:
    """Time one large read and one large product."""
    memory = torch.ones(scale.read_bytes // 2, dtype=torch.int16, device=device())
    read_s = _repeat_s(memory.max, scale.repeats)
    square = torch.randn(scale.side, scale.side, device=device()).to(torch.bfloat16)
    product_s = _repeat_s(lambda: square @ square, scale.repeats)
    return Ceilings(scale.read_bytes / read_s, 2 * scale.side**3 / product_s)


def _repeat_s(run: Callable[[], object], times: int) -> float:
    """Return the mean seconds of a call; the device runs them one after another."""
    for _ in range(3):
        run()
    _finish()
    began = time.perf_counter()
    for _ in range(times):
        run()
    _finish()
    return (time.perf_counter() - began) / times


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def roofline_s(spec: ModelSpec, work: Work, ceilings: Ceilings) -> float:
    """Return the least seconds of a step in bfloat16, of which each sequence samples a token."""
    head = spec.vocab * spec.hidden
    kv = sum(start + count for start, count in work) * spec.kv_bytes_per_token(2)
    read = (spec.trunk_parameters + head) * 2 + kv
    pairs = sum(count * start + count * count / 2 for start, count in work)
    products = spec.trunk_parameters * sum(count for _, count in work) + head * len(work)
    flops = 2 * products + 4 * spec.layers * spec.q_size * pairs
    return max(read / ceilings.read_bytes_per_s, flops / ceilings.flops_per_s)


def measure_steps(model: Path, scale: Scale) -> list[tuple[Figure, float]]:
    """Return what this device does at best, and all steps beside it."""
    ceilings = measure_ceilings(scale)
    torch.cuda.empty_cache()  # what it was measured with is not the KV pool's otherwise
    found = [
        (Figure("read_gb_per_s", "GB/s", digits=1), ceilings.read_bytes_per_s / 1e9),
        (Figure("bf16_tflops", "TFLOP/s", digits=2), ceilings.flops_per_s / 1e12),
    ]
    spec, works = read_spec(model), _works(scale)
    for name, took_s in _times_s(model, scale, {}).items():
        over = took_s / roofline_s(spec, works[name], ceilings)
        found.append((Figure(f"{name}_ms", "ms", digits=2), took_s * 1e3))
        found.append((Figure(f"{name}_over_roofline", digits=2), over))
    return found


def measure_eager_steps(model: Path, scale: Scale) -> list[tuple[Figure, float]]:
    """Return the times of the decode steps whose kernels are launched one by one."""
    times_s = _times_s(model, replace(scale, prompts=scale.prompts[:1]), {"cuda_graphs": "off"})
    return [
        (Figure(f"{name}_eager_ms", "ms", digits=2), took_s * 1e3)
        for name, took_s in times_s.items()
        if name.startswith("decode")
    ]


def _times_s(model: Path, scale: Scale, options: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each step that the KV pool has room for."""
    runner, launcher = _load(model, scale, options)
    times_s = {
        name: _step_s(launcher, work, scale.repeats)
        for name, work in _works(scale).items()
        if _fits(runner, work)
    }
    runner.close()
    return times_s


def _works(scale: Scale) -> dict[str, Work]:
    decodes: dict[str, Work] = {
        f"decode_{rows}": [(scale.context, 1)] * rows for rows in scale.decodes
    }
    return decodes | {f"prompt_{tokens}": [(0, tokens)] for tokens in scale.prompts}


def _load(model: Path, scale: Scale, options: dict[str, Any]) -> tuple[TorchRunner, Launcher]:
    """Load the model with random weights, as an engine does."""
    config = EngineConfig(
        model=str(model),
        served_name="m",
        load_format="dummy",
        dtype="bfloat16",
        compute="auto" if device().type == "cuda" else "torch",
        max_num_batched_tokens=max(scale.prompts),
        kv_cache_tokens=scale.kv_tokens,
        **options,
    )
    runner, _ = load(config)
    runner.warm_up()
    if runner.launcher is not None:
        return runner, runner.launcher
    assert isinstance(runner.trunk, Trunk)  # on a CPU, where engines launch nothing
    return runner, TorchLauncher(runner.trunk, runner._pool, runner.execute)


def _fits(runner: TorchRunner, work: Work) -> bool:
    layout = runner.kv_layout()
    blocks = sum(-(-(start + count) // layout.block_size) for start, count in work)
    return blocks <= layout.num_blocks


def _step_s(launcher: Launcher, work: Work, repeats: int) -> float:
    chunks = tuple(chunk_of(row, *one) for row, one in enumerate(work))
    plan = plan_of(chunks)
    if plan.decode_sequences:
        return _ahead_s(launcher, plan, repeats)
    times = []
    for _ in range(repeats + 1):  # the first one chooses kernels
        began = time.perf_counter()
        launcher.launch(plan, None).result()
        times.append(time.perf_counter() - began)
    return median(times[1:])


def _ahead_s(launcher: Launcher, plan: StepPlan, repeats: int) -> float:
    """Return the mean seconds of steps that are each launched before the last one is read."""
    following = replace(plan, drawn=tuple(range(plan.decode_sequences)))
    last = launcher.launch(plan, None)
    began = 0.0
    for turn in range(2 * repeats + 3):
        if turn == 3:
            began = time.perf_counter()
        step = launcher.launch(following, last)
        last.result()
        last = step
    took = time.perf_counter() - began
    last.result()
    return took / (2 * repeats)
