"""Decode steps and prefills of one model, beside their matrix products, and without a server.

Step and products alternate in the same run, and each is the best of several repeats, because other
work on a shared machine only ever slows a step down. `…_over_products` is the step's time over that
of its matrix products: it would be 1 if attention, norms, sampling and Python cost nothing.
`…_native_over_torch` and `…_int8_over_bf16` are ratios of the medians of runs that alternate.
`int8_perplexity_ratio` is int8's perplexity over float32's, both with float32 KV, of the first
TOKENS tokens of each of this repository's TEXTS.
"""

import math
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from argosy_engine.config import EngineConfig
from argosy_engine.core.request import Chunk, to_table
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import StepPlan
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.runtime.machine import set_spinning
from local.figures import Figure, Figures, Target

set_spinning()  # as `argosy engine serve` does, before torch is loaded

import torch  # noqa: E402

from argosy_engine.model.native_trunk import NativeTrunk  # noqa: E402
from argosy_engine.model.trunk import Trunk  # noqa: E402
from argosy_engine.runtime.torch.runner import TorchRunner, load  # noqa: E402
from argosy_engine.runtime.torch.sampler import columns  # noqa: E402

CONTEXT = 128
"""Tokens that a decode step attends to."""
_BLOCK = 32
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
_BATCHES = (1, 8, 32)
_PREFILLS = (128, 512)
_COMPARED = ("decode_1", "decode_8", "decode_32", "prefill_512")
_PAIRS = 5
TOKENS = 512
TEXTS = (
    "0003-ttft-of-unstreamed-answers.md",
    "0008-kv-protocol-2.md",
    "0010-streams-survive.md",
    "0011-health-and-affinity.md",
)
DESIGNS = Path(__file__).resolve().parents[3] / "designs"


def _figures() -> Iterator[Figure]:
    yield Figure("load_s", "s", digits=2)
    for step in (*(f"decode_{n}" for n in _BATCHES), *(f"prefill_{n}" for n in _PREFILLS)):
        yield Figure(f"{step}_ms", "ms", digits=2)
        yield Figure(f"{step}_tokens_per_s", "tokens/s", digits=2)
        yield Figure(f"{step}_over_products", digits=2)
    for step in _COMPARED:
        yield Figure(f"{step}_native_over_torch", digits=2)
        yield Figure(f"{step}_int8_over_bf16", digits=2)
    yield Figure("int8_perplexity_ratio", target=Target("<=", 1.01), digits=4)
    yield Figure("sample_32_top_p_ms", "ms", digits=2)
    yield Figure("rss_mib", "MiB", digits=2)


FIGURES = tuple(_figures())


def chunk_of(
    index: int, start: int, count: int, *, sampling: SamplingParams = _GREEDY, samples: bool = True
) -> Chunk:
    """Return `count` tokens of one sequence from position `start` on, which sample one."""
    blocks = -(-(start + count) // _BLOCK)
    return Chunk(
        request_id=str(index),
        tokens=[5] * (start + count),
        block_table=to_table(range(1 + index * blocks, 1 + (index + 1) * blocks)),
        start=start,
        count=count,
        samples=samples,
        decode=count == 1,
        sampling=sampling,
    )


def plan_of(chunks: tuple[Chunk, ...]) -> StepPlan:
    """Return the step that computes these chunks."""
    decodes = [chunk for chunk in chunks if chunk.decode]
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=_BLOCK,
        prefill_tokens=sum(chunk.count for chunk in chunks if not chunk.decode),
        prefill_sequences=len(chunks) - len(decodes),
        decode_sequences=len(decodes),
        decode_context_tokens=sum(chunk.start + 1 for chunk in decodes),
        after_idle=False,
    )


def decodes_of(
    sequences: int, context: int = CONTEXT, sampling: SamplingParams = _GREEDY
) -> StepPlan:
    """Return a step of this many decodes, each with this much context."""
    return plan_of(
        tuple(chunk_of(row, context - 1, 1, sampling=sampling) for row in range(sequences))
    )


def alternate_s(
    runners: Mapping[str, TorchRunner], plans: Mapping[str, StepPlan], times: int
) -> dict[tuple[str, str], float]:
    """Return the median seconds by runner and plan, of steps that alternate."""
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(times):
        for step, plan in plans.items():
            for name, runner in runners.items():
                took.setdefault((name, step), []).append(runner.execute(plan).busy_s)
    return {key: median(seconds) for key, seconds in took.items()}


def _products_s(trunk: Trunk | NativeTrunk, tokens: int, sampled: int) -> float:
    """Return the seconds of every matrix product of a step of `tokens` tokens, and nothing else."""
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


def _best_s(runner: TorchRunner, plan: StepPlan, repeats: int) -> tuple[float, float]:
    """Return the least seconds of the step, and of its products."""
    tokens, trunk = sum(chunk.count for chunk in plan.chunks), runner.trunk
    assert isinstance(trunk, Trunk | NativeTrunk)  # SmolLM2 is a Llama
    pairs = [
        (runner.execute(plan).busy_s, _products_s(trunk, tokens, len(plan.chunks)))
        for _ in range(repeats)
    ]
    return min(step for step, _ in pairs), min(products for _, products in pairs)


def _sampling_s(trunk: NativeTrunk) -> float:
    """Return the seconds to draw 32 rows with top_p 0.95 from logits as peaked as a model's."""
    logits = torch.randn(32, trunk.spec.vocab, generator=torch.Generator().manual_seed(0)) * 6
    asked = [SamplingParams(max_tokens=1, top_p=0.95, seed=row) for row in range(32)]
    times = []
    for position in range(8):
        began = time.perf_counter()
        trunk.draw(logits, columns(asked, [position] * 32))
        times.append(time.perf_counter() - began)
    return min(times)


def load_runner(
    model: str, dtype: str, compute: str, quantization: str = "none"
) -> tuple[TorchRunner, Tokenizer]:
    """Load the model with room for 8192 tokens of KV, and warm it up."""
    config = EngineConfig(
        model=model,
        served_name="m",
        dtype=dtype,  # type: ignore[arg-type]
        compute=compute,  # type: ignore[arg-type]
        quantization=quantization,  # type: ignore[arg-type]
        kv_cache_tokens=8192,
    )
    runner, tokenizer = load(config)
    runner.warm_up()
    return runner, tokenizer


def measure(figures: Figures, model: str, dtype: str) -> None:
    """Load the model and put every figure."""
    figures.declare(FIGURES)
    began = time.perf_counter()
    runner, _ = load_runner(model, dtype, "torch")
    figures.put("load_s", time.perf_counter() - began)
    decodes = {f"decode_{batch}": decodes_of(batch) for batch in _BATCHES}
    prefills = {f"prefill_{tokens}": plan_of((chunk_of(0, 0, tokens),)) for tokens in _PREFILLS}
    plans = decodes | prefills
    for name, plan in plans.items():
        step_s, products_s = _best_s(runner, plan, 8 if name in decodes else 3)
        figures.put(f"{name}_ms", step_s * 1e3)
        figures.put(f"{name}_tokens_per_s", sum(chunk.count for chunk in plan.chunks) / step_s)
        figures.put(f"{name}_over_products", step_s / products_s)
    compared = {name: plans[name] for name in _COMPARED}
    # The same type in both, whichever one of them would choose.
    native, _ = load_runner(model, runner.facts["dtype"], "native")
    took = alternate_s({"torch": runner, "native": native}, compared, _PAIRS)
    for name in compared:
        ratio = took["native", name] / took["torch", name]
        figures.put(f"{name}_native_over_torch", ratio)
    figures.notes["native"] = native.facts["cpu_isa"]
    assert isinstance(native.trunk, NativeTrunk)
    figures.put("sample_32_top_p_ms", _sampling_s(native.trunk) * 1e3)
    native.close()
    _measure_int8(figures, model, compared)
    figures.put("rss_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _measure_int8(figures: Figures, model: str, plans: Mapping[str, StepPlan]) -> None:
    runners = {name: load_runner(model, "bfloat16", "native", name)[0] for name in ("none", "int8")}
    took = alternate_s(runners, plans, _PAIRS)
    for step in plans:
        figures.put(f"{step}_int8_over_bf16", took["int8", step] / took["none", step])
    for runner in runners.values():
        runner.close()
    losses = []
    for name in runners:
        runner, tokenizer = load_runner(model, "float32", "native", name)
        losses.append(_loss(runner, tokenizer))
        runner.close()
    figures.put("int8_perplexity_ratio", math.exp(losses[1] - losses[0]))


def _loss(runner: TorchRunner, tokenizer: Tokenizer) -> float:
    """Return the mean of -log p of each token given those before it."""
    losses: list[float] = []
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for name in TEXTS:
        tokens = tokenizer.encode((DESIGNS / name).read_text())[:TOKENS]
        chunk = replace(
            chunk_of(0, 0, len(tokens), sampling=asked, samples=False),
            tokens=tokens,
            n_prompt=len(tokens),
        )
        plan = plan_of((chunk,))
        likely = runner.execute(plan).prompt_likely[chunk.request_id]
        losses += [-of_it[0][1] for of_it in likely.values()]
    return sum(losses) / len(losses)
