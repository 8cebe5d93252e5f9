"""What a scrape reads of the engine: values of the moment.

Scrapes come on another thread than the engine's, so each function copies a list before it goes
through it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from argosy_engine.core.capacity import hold_of, peak_blocks
from argosy_engine.core.handover.pulls import may_pull
from argosy_engine.core.scheduler import Scheduler

__all__ = [
    "Readings",
    "kv_tokens_held",
    "lease_blocks",
    "outstanding_prompt_tokens",
    "peak_ratio",
    "pulls_to_start",
    "queue_oldest_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the engine loop knows and the scheduler does not."""

    leases: Callable[[], int]
    leases_expired: Callable[[], int]
    draining: Callable[[], bool]

    clock: Callable[[], float] = time.monotonic
    """That of the requests' arrivals."""


def outstanding_prompt_tokens(scheduler: Scheduler) -> int:
    """Without what the prefix cache is known to hold."""
    here = [*scheduler.waiting, *scheduler.arrived, *scheduler.running]
    return sum(sequence.remaining for sequence in here if not sequence.decoding)


def queue_oldest_s(scheduler: Scheduler, now: float) -> float:
    """Since the arrival of the request that waits longest in the queue; 0 if none waits."""
    return max((now - one.request.arrival_s for one in list(scheduler.waiting)), default=0.0)


def kv_tokens_held(scheduler: Scheduler) -> int:
    """Tokens whose KV is held for requests; those of a shared prefix count for each of them."""
    here = [*scheduler.running, *scheduler.arrived, *scheduler.leased.values()]
    return sum(sequence.num_computed for sequence in here)


def lease_blocks(scheduler: Scheduler) -> int:
    return sum(len(sequence.blocks) for sequence in list(scheduler.leased.values()))


def peak_ratio(scheduler: Scheduler) -> float:
    """The most blocks that the admitted requests can hold at one time, of those in the pool."""
    size, longest = scheduler.pool.block_size, scheduler.max_model_len
    here = [*scheduler.running, *scheduler.pulls.sequences(), *scheduler.arrived]
    holds = [hold_of(one, len(one.blocks), size, longest) for one in here]
    return peak_blocks(holds, size) / scheduler.pool.total


def pulls_to_start(scheduler: Scheduler) -> int:
    """Requests in the queue whose prompt a peer may compute."""
    return sum(may_pull(sequence) for sequence in list(scheduler.waiting))
