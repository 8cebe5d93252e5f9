"""8-bit matrices beside the others: a step's time, and what the rounding costs.

`…_int8_over_bf16` is the ratio of the medians of runs that alternate, both with the native step.
`int8_perplexity_ratio` is int8's perplexity over float32's, both with float32 KV, of the first
TOKENS tokens of each of this repository's TEXTS.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from argosy_bench.figures import Figure, Figures, Target
from argosy_engine.config import EngineConfig
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import Chunk, StepPlan
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.runtime.torch.runner import TorchRunner, load

__all__ = ["figures", "measure"]

TOKENS = 512
TEXTS = (
    "0003-ttft-of-unstreamed-answers.md",
    "0008-kv-protocol-2.md",
    "0010-streams-survive.md",
    "0014-neighbours.md",
)
_FOLDER = Path(__file__).resolve().parents[2] / "designs"
_BLOCK = 32
_PAIRS = 5


def figures(steps: tuple[str, ...]) -> Iterator[Figure]:
    """What `measure` puts for steps of these names."""
    for step in steps:
        yield Figure(f"{step}_int8_over_bf16", digits=2)
    yield Figure("int8_perplexity_ratio", target=Target("<=", 1.01), digits=4)


def measure(put: Figures, model: str, plans: Mapping[str, StepPlan]) -> None:
    """Put the figures; KV of 8192 tokens holds any of `plans`."""
    runners = {name: _loaded(model, "bfloat16", name)[0] for name in ("none", "int8")}
    for step, plan in plans.items():
        times: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(_PAIRS):
            for name, runner in runners.items():
                times[name].append(runner.execute(plan).busy_s)
        put.put(f"{step}_int8_over_bf16", median(times["int8"]) / median(times["none"]))
    for runner in runners.values():
        runner.close()
    losses = []
    for name in ("none", "int8"):
        runner, tokenizer = _loaded(model, "float32", name)
        losses.append(_loss(runner, tokenizer))
        runner.close()
    put.put("int8_perplexity_ratio", math.exp(losses[1] - losses[0]))


def _loaded(model: str, dtype: str, quantization: str) -> tuple[TorchRunner, Tokenizer]:
    config = EngineConfig(
        model=model,
        served_name="bench",
        dtype=dtype,  # type: ignore[arg-type]
        compute="native",
        quantization=quantization,  # type: ignore[arg-type]
        kv_cache_tokens=8192,
    )
    runner, tokenizer = load(config)
    runner.warm_up()
    return runner, tokenizer


def _loss(runner: TorchRunner, tokenizer: Tokenizer) -> float:
    """Mean of -log p of each token given those before it."""
    losses: list[float] = []
    for name in TEXTS:
        tokens = tokenizer.encode((_FOLDER / name).read_text())[:TOKENS]
        chunk = Chunk(
            request_id=name,
            tokens=tokens,
            block_table=list(range(1, 2 + len(tokens) // _BLOCK)),
            start=0,
            count=len(tokens),
            samples=False,
            decode=False,
            sampling=SamplingParams(max_tokens=1, prompt_logprobs=0),
            n_prompt=len(tokens),
        )
        plan = StepPlan(
            index=1,
            chunks=(chunk,),
            block_size=_BLOCK,
            prefill_tokens=len(tokens),
            prefill_sequences=1,
            decode_sequences=0,
            decode_context_tokens=0,
            after_idle=True,
        )
        told = runner.execute(plan).prompt_likely[name]
        losses += [-of_it[0][1] for of_it in told.values()]
    return sum(losses) / len(losses)
