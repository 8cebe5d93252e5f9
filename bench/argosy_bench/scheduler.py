"""What the scheduler costs a step, without a model: 256 sequences that decode.

    python -m argosy_bench.scheduler

Each step is `schedule` and `update`, as the engine loop calls them; the collector runs as it does
there. The figure is the median of the steps of several runs.
"""

import statistics
import sys
import time

from argosy_engine.core.blocks.pool import BlockPool
from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepOutput

__all__ = ["SEQUENCES", "scheduler_s"]

SEQUENCES = 256
_PROMPT, _STEPS, _RUNS = 128, 200, 5


def scheduler_s() -> float:
    """Seconds a step."""
    return statistics.median(seconds for _ in range(_RUNS) for seconds in _run())


def _run() -> list[float]:
    scheduler = Scheduler(
        pool=BlockPool(num_blocks=1 << 14, block_size=32),
        limits=Limits(max_num_seqs=SEQUENCES, max_num_batched_tokens=1 << 16, max_queue=SEQUENCES),
        policy=MaxUtilization(),
        eos=frozenset({2}),
        max_model_len=4096,
    )
    for index in range(SEQUENCES):
        scheduler.add(
            NewRequest(
                request_id=f"r{index}",
                token_ids=[3 + (index * 7 + at) % 999 for at in range(_PROMPT)],
                sampling=SamplingParams(max_tokens=1000, ignore_eos=True),
                arrival_s=0.0,
            )
        )
    taken = []
    for turn in range(_STEPS):
        now = 0.01 * turn
        began = time.perf_counter()
        plan = scheduler.schedule(now).plan
        middle = time.perf_counter()
        assert plan is not None
        out = StepOutput(token_ids=[7] * sum(c.samples for c in plan.chunks), busy_s=0.01)
        resumed = time.perf_counter()
        scheduler.update(plan, out, now)
        if plan.kind == "decode":
            taken.append(middle - began + time.perf_counter() - resumed)
    return taken


if __name__ == "__main__":
    sys.stdout.write(f"{scheduler_s() * 1e6:.0f} µs\n")
