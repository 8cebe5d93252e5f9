"""What the engine's Python costs a step of 256 decodes, without a model.

    scheduler   `schedule` and `update`, as the engine loop calls them
    host        these, the plan laid out as the arrays of a native step, and the metrics

Both are CPU time of the thread: the median of a run's steps, and of several runs the least, because
other work on the machine only ever slows a step down. The garbage collector runs as it does in the
engine.
"""

import statistics
import time

import numpy as np

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import SchedulerOutput, StepOutput, StepPlan, flatten
from argosy_engine.model.native.library import Batch
from argosy_engine.runtime.metrics import EngineMetrics

__all__ = ["SEQUENCES", "host_us"]

SEQUENCES = 256
_PROMPT, _STEPS, _RUNS = 128, 200, 5
_LONGEST = 4096
_LOGITS = np.zeros((SEQUENCES, 1), np.float32)


def host_us() -> dict[str, float]:
    """Return the microseconds of a step, of the scheduler and of all."""
    medians = [tuple(map(statistics.median, zip(*_run(), strict=True))) for _ in range(_RUNS)]
    scheduler, host = map(min, zip(*medians, strict=True))
    return {"scheduler": scheduler * 1e6, "host": host * 1e6}


def _run() -> list[tuple[float, float]]:
    """Return the seconds of each step without prompts, of the scheduler and of all."""
    scheduler = _filled()
    metrics = EngineMetrics(EngineConfig(model="", served_name="bench"), max_model_len=_LONGEST)
    taken = []
    for turn in range(_STEPS):
        now = 0.01 * turn
        began = time.thread_time()
        scheduled = scheduler.schedule(now)
        chosen = time.thread_time()
        plan = _prepare(metrics, scheduled)
        prepared = time.thread_time()
        out = StepOutput(token_ids=[7] * sum(c.samples for c in plan.chunks), busy_s=0.01)
        resumed = time.thread_time()
        emissions = scheduler.update(plan, out, now)
        updated = time.thread_time()
        metrics.observe_step(plan, out)
        metrics.observe_emissions(emissions)
        ended = time.thread_time()
        if plan.kind == "decode":
            taken.append((chosen - began + updated - resumed, prepared - began + ended - resumed))
    return taken


def _prepare(metrics: EngineMetrics, scheduled: SchedulerOutput) -> StepPlan:
    assert scheduled.plan is not None
    metrics.observe_schedule(scheduled)
    flat = flatten(scheduled.plan)
    Batch(
        ids=flat.token_ids,
        positions=flat.positions,
        slots=flat.slot_mapping,
        first=flat.cu_q,
        lengths=flat.kv_lens,
        tables=flat.block_tables,
        sampled=flat.sample_rows,
        logits=_LOGITS,
    )
    return scheduled.plan


def _filled() -> Scheduler:
    scheduler = Scheduler(
        pool=BlockPool(num_blocks=1 << 14, block_size=32),
        limits=Limits(max_num_seqs=SEQUENCES, max_num_batched_tokens=1 << 16, max_queue=SEQUENCES),
        policy=MaxUtilization(),
        eos=frozenset({2}),
        max_model_len=_LONGEST,
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
    return scheduler
