"""Decode steps without a server: what the served ones are compared with."""

from dataclasses import dataclass
from statistics import median

from argosy_bench.peer.loads import PROMPT, TOKENS
from argosy_bench.peer.servers import SEQUENCES
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import Chunk, StepPlan
from argosy_engine.runtime.torch.runner import TorchRunner

__all__ = ["GREEDY", "SAMPLED", "Steps", "steps_s"]

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.95, seed=7)
_CONTEXT = PROMPT + TOKENS // 2
_BLOCK = 32
_REPEATS = 15


@dataclass(frozen=True, slots=True)
class Steps:
    """Median seconds of steps that alternate."""

    one: float
    """One greedy row."""
    full: float
    """All rows, greedy."""
    sampled: float
    """All rows, with `top_p`."""


def steps_s(runner: TorchRunner) -> Steps:
    """Time each kind of step."""
    kinds = {"one": (1, GREEDY), "full": (SEQUENCES, GREEDY), "sampled": (SEQUENCES, SAMPLED)}
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(_REPEATS):
        for kind, (rows, sampling) in kinds.items():
            took[kind].append(runner.execute(_decodes(rows, sampling)).busy_s)
    return Steps(**{kind: median(values) for kind, values in took.items()})


def _decodes(rows: int, sampling: SamplingParams) -> StepPlan:
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
        for row in range(rows)
    )
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=_BLOCK,
        prefill_tokens=0,
        prefill_sequences=0,
        decode_sequences=rows,
        decode_context_tokens=rows * _CONTEXT,
        after_idle=False,
    )
