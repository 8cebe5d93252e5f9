"""Which numbers of a round can be true, and which signals are unknown.

The first step of `decide`. Metrics come from `samples.assemble`, or from any other caller of the
law, so each number is checked here and not where it is read.
"""

from dataclasses import replace
from math import isfinite

from argosy_law.goals import Windows
from argosy_law.observe import (
    Buckets,
    FleetMetrics,
    Idle,
    RoleMetrics,
    RoleName,
    Signal,
    StepDelta,
    Unknown,
    Value,
    plausible,
)
from argosy_law.size.work import BEYOND

SHORTEST_S = 1e-6
"""No step takes less time, in seconds."""
LARGEST_STEP = 1e9
"""No step takes as many seconds, tokens or sequences."""

SIZED_BY: dict[RoleName, tuple[str, ...]] = {
    "prefill": ("prompt_tokens", "prompt_tokens_squared", "outstanding_prompt_tokens"),
    "decode": (
        "prompt_tokens",
        "output_tokens",
        "kv_transfer_s",
        "running",
        "kv_capacity_tokens",
    ),
    "colocated": (
        "prompt_tokens",
        "prompt_tokens_squared",
        "output_tokens",
        "running",
        "kv_capacity_tokens",
    ),
}
"""Signals that a role's size needs, by their names in `FleetMetrics` and `RoleMetrics`."""


def validated(metrics: FleetMetrics) -> FleetMetrics:
    """The round without what cannot be true: such a signal is Unknown, such a row is left out."""
    return replace(
        metrics,
        arrivals=_validate(metrics.arrivals),
        bins=tuple(b for b in metrics.bins if plausible(b.end) and plausible(b.count)),
        prompt_tokens=_validate(metrics.prompt_tokens),
        prompt_tokens_squared=_validate(metrics.prompt_tokens_squared),
        output_tokens=_validate(metrics.output_tokens),
        cached_share=_validate_share(metrics.cached_share),
        prompts=_validate_buckets(metrics.prompts),
        answers=_validate_buckets(metrics.answers),
        kv_transfer_s=_validate(metrics.kv_transfer_s),
        attainment=_validate(metrics.attainment),
        ttft_attainment=_validate(metrics.ttft_attainment),
        tpot_attainment=_validate(metrics.tpot_attainment),
        scored=metrics.scored if plausible(metrics.scored) else 0.0,
        roles=tuple(_validate_role(role) for role in metrics.roles),
    )


def _validate_role(role: RoleMetrics) -> RoleMetrics:
    return replace(
        role,
        steps=tuple(row for row in role.steps if _plausible_row(row)),
        running=_validate(role.running),
        outstanding_prompt_tokens=_validate(role.outstanding_prompt_tokens),
        kv_capacity_tokens=_validate(role.kv_capacity_tokens),
    )


def _validate_buckets(buckets: Buckets) -> Buckets:
    whole = all(plausible(count) and 0 < edge <= BEYOND for edge, count in buckets)
    return buckets if whole else ()


def _validate(signal: Signal) -> Signal:
    match signal:
        case Value(value=number) if not plausible(number):
            return Unknown("NotANumber: negative, infinite, NaN or too large for any fleet")
        case Value(at=at) | Idle(at=at) if not isfinite(at):
            return Unknown("NotANumber: the time of the sample")
    return signal


def _validate_share(signal: Signal) -> Signal:
    """A share above 1 is none: it would take work away that is there."""
    if isinstance(signal, Value) and signal.value > 1:
        return Unknown("NotAShare: more than all")
    return _validate(signal)


def _plausible_row(row: StepDelta) -> bool:
    numbers = (
        row.at,
        row.seconds,
        row.steps,
        row.prefill_tokens,
        row.prefill_requests,
        row.decode_sequences,
        row.context_tokens,
    )
    # Samples are interpolated: a part of a step, or one without time, measures no step.
    whole = all(plausible(n) for n in numbers) and row.steps >= 1 and row.seconds >= SHORTEST_S
    sizes = (row.seconds, row.prefill_tokens, row.decode_sequences, row.context_tokens)
    return whole and all(size / row.steps < LARGEST_STEP for size in sizes)


def why_unavailable(metrics: FleetMetrics, windows: Windows) -> str | None:
    """Why the arrivals are not known; None if they are. Without them nothing can be decided.

    Ages are differences on the clock of the samples' source, so the operator's clock is not needed.
    """
    match metrics.arrivals:
        case Unknown(reason=reason):
            return reason
        case Value(at=at) | Idle(at=at) if metrics.at - at > windows.fresh_s:
            return windows.stale_reason
    return None


def unknown_signals(role: RoleName, metrics: FleetMetrics) -> tuple[str, ...]:
    """Names of the signals that are unknown now and that a removal in `role` needs.

    These are measured attainment and those that its size needs: with one of them missing, the load
    may be larger than it looks.
    """
    of_role = metrics.role(role)
    return tuple(
        name
        for name in ("attainment", *SIZED_BY[role])
        if isinstance(getattr(metrics if hasattr(metrics, name) else of_role, name), Unknown)
    )
