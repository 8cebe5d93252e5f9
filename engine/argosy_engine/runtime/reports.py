"""What the engine loop writes to the log about requests, the length of steps, and its own end."""

import logging
from collections.abc import Callable
from concurrent.futures import Future

from argosy_engine.core.request import Emission, Sequence
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepPlan
from argosy_engine.core.step_time import longer_step, shorter_step
from argosy_engine.runtime.inbox import log_subject

log = logging.getLogger(__name__)

_EVERY_S = 10.0
"""Between two lines about the work, as vLLM has it."""


class Reports:
    """What the loop tells about its work; called on its thread."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._since_s = clock()
        self._prompt_tokens = self._output_tokens = 0
        """Since then."""
        self._preemptions = 0
        """Since the start."""
        self._warned_of_long = self._warned_of_short = False

    def count_preemption(self, sequence: Sequence) -> None:
        self._preemptions += 1
        _log_preemption(sequence, self._preemptions)

    def step(self, plan: StepPlan, output_tokens: int) -> None:
        """A step was computed, and so many tokens were drawn."""
        self._prompt_tokens += plan.prefill_tokens
        self._output_tokens += output_tokens
        if plan.kind == "mixed" and not self._warned_of_long:
            self._warned_of_long = _log_long_steps(self._scheduler)
        if plan.prefill_tokens and not self._warned_of_short:
            self._warned_of_short = _log_short_steps(self._scheduler, plan)

    def tick(self) -> None:
        """Write the line about the work, if it is time and there was some."""
        now = self._clock()
        passed_s = now - self._since_s
        if passed_s < _EVERY_S:
            return
        prompt, output = self._prompt_tokens, self._output_tokens
        self._since_s, self._prompt_tokens, self._output_tokens = now, 0, 0
        if not (prompt or output):
            return
        scheduler = self._scheduler
        pool = scheduler.pool
        log.info(
            "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
            "Running: %d reqs, Waiting: %d reqs, KV cache usage: %.1f%%, Preemptions: %d",
            prompt / passed_s,
            output / passed_s,
            len(scheduler.running),
            len(scheduler.waiting) + len(scheduler.pulls) + len(scheduler.arrived),
            100 * pool.used / pool.total,
            self._preemptions,
        )


def _log_preemption(sequence: Sequence, total: int) -> None:
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


def _log_short_steps(scheduler: Scheduler, plan: StepPlan) -> bool:
    """Whether it warned that a step that the limit on its tokens has filled is too short."""
    limits, terms = scheduler.limits, scheduler.step_time.terms
    tokens = limits.max_num_batched_tokens
    if limits.auto_tokens or terms is None or plan.tokens < tokens:
        return False
    enough = longer_step(terms, tokens, limits.tpot_limit_s)
    if enough is None:
        return False
    log.warning(
        "--max-num-batched-tokens %d is below argosy_saturation_tokens (%d): steps of %d prompt "
        "tokens compute %.0f of them a second on this machine, and steps of %d compute %.0f, so "
        "that first tokens come later: write --max-num-batched-tokens auto, or %d",
        tokens,
        terms.saturation_tokens,
        tokens,
        tokens / terms.step_s(tokens, 0),
        enough,
        enough / terms.step_s(enough, 0),
        enough,
    )
    return True


def _log_long_steps(scheduler: Scheduler) -> bool:
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
