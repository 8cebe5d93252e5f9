"""What the engine loop writes to the log about requests, the length of steps, and its own end."""

import logging
from concurrent.futures import Future

from argosy_engine.core.costs.step_time import shorter_step
from argosy_engine.core.request import Emission, Sequence
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.runtime.inbox import log_subject

__all__ = ["log_end", "log_end_of_thread", "log_long_steps", "log_preemption"]

log = logging.getLogger(__name__)


def log_preemption(sequence: Sequence, total: int) -> None:
    """`total` counts the preemptions of all requests, this one included."""
    swapped = bool(sequence.swapped)
    log.warning(
        "preempted %s (mode=%s, time %d): not enough KV cache space, no KV block is free for the "
        "next tokens; its %d tokens %s. If this happens often, raise --kv-cache-tokens or "
        "--gpu-memory-utilization, or lower --max-num-seqs. total_cumulative_preemption_cnt=%d",
        sequence.request_id,
        "SWAP" if swapped else "RECOMPUTE",
        sequence.preemptions,
        len(sequence.tokens),
        "wait in the host's memory" if swapped else "are computed again",
        total,
        extra=log_subject(sequence.request),
    )


def log_long_steps(scheduler: Scheduler) -> bool:
    """Whether it warned that the limit on a step's tokens stops streams for long."""
    limits, terms = scheduler.limits, scheduler.step_time.terms
    tokens = limits.max_num_batched_tokens
    enough = None if limits.auto_tokens else shorter_step(terms, tokens)
    if terms is None or enough is None:
        return False
    log.warning(
        "a step of %d prompt tokens takes %.1f s on this machine, and every stream waits for its "
        "end; from %d tokens on (argosy_saturation_tokens) a longer step computes hardly more of "
        "them a second: write --max-num-batched-tokens auto, or %d",
        tokens,
        terms.step_s(tokens, 0),
        enough,
        enough,
    )
    return True


def log_end(emission: Emission) -> None:
    """Log a failed request; the line about its failed step has no request id."""
    if emission.reason == "error":
        log.warning("failed: %s", emission.message, extra=log_subject(emission.sequence.request))


def log_end_of_thread(running: "Future[None]") -> None:
    if error := running.exception():
        log.error("the engine thread has ended", exc_info=error)
