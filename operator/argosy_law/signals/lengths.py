"""What one request brings: lengths of prompts and answers, and the time of a KV transfer.

Measured by gateways and engines, kept in `state.Lengths`, and guessed until an answer has ended.
"""

from math import exp, inf

from argosy_law.goals import Windows
from argosy_law.observe import Buckets, FleetMetrics, Signal, Value
from argosy_law.size.work import BEYOND, Spread, Work, of_buckets
from argosy_law.state import Lengths

ENOUGH = 1000.0
"""Requests of a window. The share of a bucket that holds a tenth of them has a standard error of
√(0.1 · 0.9/1000) = 1 %."""
FEW = 20.0
"""Requests from which a histogram is used at all."""


def count_growth(grown: dict[float, float]) -> Buckets:
    """Requests per bucket of growths of cumulative counters, by their upper edges."""
    buckets, below = [], 0.0
    for edge in sorted(grown):
        count = grown[edge] - below
        if count > 0:
            buckets.append((edge if edge < inf else BEYOND, count))
            below = grown[edge]
    return tuple(buckets)


def remember(before: Buckets, window: Buckets, windows: Windows) -> Buckets:
    """The buckets after a round whose last `windows.lengths_s` brought `window`.

    Each round adds the part of the window that is new and forgets as much, but keeps `ENOUGH`.
    """
    if not before:
        return window
    new = windows.interval_s / windows.lengths_s
    kept, held = exp(-new), count_requests(before)
    by_count = (ENOUGH - new * count_requests(window)) / held
    kept = min(max(kept, by_count), 1.0)
    sums = {edge: kept * count for edge, count in before}
    for edge, count in window:
        sums[edge] = sums.get(edge, 0.0) + new * count
    return tuple((edge, count) for edge, count in sorted(sums.items()) if count > 1e-6)


def count_requests(buckets: Buckets) -> float:
    """Requests in all buckets."""
    return sum(count for _, count in buckets)


GUESSED_PROMPT = 1200.0
"""Tokens of a prompt until one was measured: about the mean of Azure's public conversation trace of
2023."""
GUESSED_OUTPUT = 200.0
"""Tokens of an answer, from the same trace."""
GUESSED_VARIATION = 2.0
"""E[L²]/E[L]² of prompts: 2 is that of an exponential distribution, wider than most traffic."""
VARIATION_RANGE = (1.0, 101.0)
"""1 is equal lengths. 101 is a standard deviation of ten means: more is not a measurement."""


def last(signal: Signal, before: float | None) -> float | None:
    """The value, or the one before if nothing happened or nothing is known."""
    return signal.value if isinstance(signal, Value) else before


def update_lengths(before: Lengths, metrics: FleetMetrics, windows: Windows) -> Lengths:
    """The lengths after this round; what it did not measure stays."""
    prompt = last(metrics.prompt_tokens, before.prompt)
    variation, squared = before.variation, metrics.prompt_tokens_squared
    if prompt is not None:
        prompt = max(prompt, 1.0)  # every request has a token
        if isinstance(squared, Value) and isinstance(metrics.prompt_tokens, Value):
            low, high = VARIATION_RANGE
            variation = min(max(squared.value / prompt**2, low), high)
    return Lengths(
        prompt=prompt,
        variation=variation,
        output=last(metrics.output_tokens, before.output),
        transfer_s=last(metrics.kv_transfer_s, before.transfer_s),
        cached=last(metrics.cached_share, before.cached),
        context=_context(before.context, metrics, windows),
        prompts=remember(before.prompts, metrics.prompts, windows),
        answers=remember(before.answers, metrics.answers, windows),
    )


def _context(before: float | None, metrics: FleetMetrics, windows: Windows) -> float | None:
    """Tokens of context per sequence and step, averaged over about `windows.lengths_s`.

    Engines count both in every decode step, so each sequence counts as often as it is in a step.
    """
    rows = [row for role in metrics.roles for row in role.steps]
    sequences = sum(row.decode_sequences for row in rows)
    if sequences < 1:
        return before
    now = max(sum(row.context_tokens for row in rows) / sequences, 1.0)
    if before is None:
        return now
    return now + (before - now) * exp(-windows.interval_s / windows.lengths_s)


def work(lengths: Lengths, metrics: FleetMetrics) -> Work:
    """What a request brings: as measured, or guessed before the first answer has ended."""
    prompt = lengths.prompt if lengths.prompt is not None else _prompt_of_steps(metrics)
    variation = lengths.variation if lengths.variation is not None else GUESSED_VARIATION
    output = lengths.output if lengths.output is not None else GUESSED_OUTPUT
    return Work(
        prompt,
        variation * prompt**2,
        output,
        lengths.context,
        _spread(lengths.prompts, prompt),
        _spread(lengths.answers, output),
        # Without a measured length, `prompt` is what steps have computed, or a guess.
        cached=lengths.cached or 0.0 if lengths.prompt is not None else 0.0,
    )


def _spread(buckets: Buckets, mean: float) -> Spread:
    """The lengths that were counted; none while they are few."""
    enough = count_requests(buckets) >= FEW
    return of_buckets(buckets, mean) if enough else ()


def _prompt_of_steps(metrics: FleetMetrics) -> float:
    """Tokens per prompt in the engines' steps, which are known before any request has ended."""
    rows = [row for role in metrics.roles for row in role.steps]
    tokens = sum(row.prefill_tokens for row in rows)
    prompts = sum(row.prefill_requests for row in rows)
    return max(tokens / prompts, 1.0) if prompts >= 1 else GUESSED_PROMPT
