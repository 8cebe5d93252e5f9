"""Full decode steps without a server: what the served one is compared with, greedy and sampled."""

from statistics import median

from argosy_bench.peer.loads import PROMPT, TOKENS
from argosy_bench.peer.servers import SEQUENCES
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import Chunk, StepPlan
from argosy_engine.runtime.torch.runner import TorchRunner

__all__ = ["GREEDY", "SAMPLED", "steps_s"]

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.95, seed=7)
_CONTEXT = PROMPT + TOKENS // 2
_BLOCK = 32
_REPEATS = 15


def steps_s(runner: TorchRunner) -> tuple[float, float]:
    """Median seconds of a full decode step, greedy and sampled, from steps that alternate."""
    took: dict[str, list[float]] = {"greedy": [], "sampled": []}
    for _ in range(_REPEATS):
        took["greedy"].append(runner.execute(_full_step(GREEDY)).busy_s)
        took["sampled"].append(runner.execute(_full_step(SAMPLED)).busy_s)
    return median(took["greedy"]), median(took["sampled"])


def _full_step(sampling: SamplingParams) -> StepPlan:
    blocks = -(-_CONTEXT // _BLOCK)
    chunks = tuple(
        Chunk(
            request_id=str(row),
            tokens=[5] * _CONTEXT,
            block_table=list(range(1 + row * blocks, 1 + (row + 1) * blocks)),
            start=_CONTEXT - 1,
            count=1,
            samples=True,
            decode=True,
            sampling=sampling,
        )
        for row in range(SEQUENCES)
    )
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=_BLOCK,
        prefill_tokens=0,
        prefill_sequences=0,
        decode_sequences=SEQUENCES,
        decode_context_tokens=SEQUENCES * _CONTEXT,
        after_idle=False,
    )
