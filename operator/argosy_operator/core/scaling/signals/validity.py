"""Sight and memory: which metrics are true, and what they teach about requests and replicas.

First links of `decide`'s chain. Metrics come from `samples.assemble`, or from anybody who calls the
law; what was learnt stays in `state.ScalingState`.
"""

from dataclasses import astuple, replace
from math import exp, isfinite

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.goals import SLO, Goals, Windows
from argosy_operator.core.scaling.observe import (
    LARGEST,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    StepDelta,
    Unknown,
    Value,
    plausible,
)
from argosy_operator.core.scaling.size.formulas import Work
from argosy_operator.core.scaling.state import Gauges, Lengths, RoleState, ScalingState

FEEDBACK_GAIN = 0.03
FEEDBACK_ERROR = (-0.03, 0.12)
HEADROOM = (0.85, 1.1)
SCORED_ENOUGH = 20
GUESSED_PROMPT, GUESSED_OUTPUT, GUESSED_VARIATION = 1200.0, 200.0, 2.0
"""Tokens of a prompt and of an answer, and E[L²]/E[L]², until one was measured: about the means of
the public conversation trace of Azure (2023), and prompts as wide as an exponential law."""

SHORTEST_S = 1e-6
LARGEST_STEP = 1e9
"""No step takes as many seconds, tokens or sequences."""


def validated(metrics: FleetMetrics) -> FleetMetrics:
    """The round without what cannot be true: such a signal is unknown, such a row is absent."""
    return replace(
        metrics,
        arrivals=_validated(metrics.arrivals),
        bins=tuple(b for b in metrics.bins if plausible(b.end) and plausible(b.count)),
        prompt_tokens=_validated(metrics.prompt_tokens),
        prompt_tokens_squared=_validated(metrics.prompt_tokens_squared),
        output_tokens=_validated(metrics.output_tokens),
        kv_transfer_s=_validated(metrics.kv_transfer_s),
        attainment=_validated(metrics.attainment),
        ttft_attainment=_validated(metrics.ttft_attainment),
        tpot_attainment=_validated(metrics.tpot_attainment),
        scored=metrics.scored if plausible(metrics.scored) else 0.0,
        roles=tuple(_validated_role(r) for r in metrics.roles),
    )


def _validated_role(role: RoleMetrics) -> RoleMetrics:
    return replace(
        role,
        steps=tuple(row for row in role.steps if _plausible_row(row)),
        running=_validated(role.running),
        outstanding_prompt_tokens=_validated(role.outstanding_prompt_tokens),
        kv_capacity_tokens=_validated(role.kv_capacity_tokens),
    )


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
    # Part of a step (samples are interpolated) and no time at all are no measurement of a step.
    whole = all(plausible(n) for n in numbers) and row.steps >= 1 and row.seconds >= SHORTEST_S
    sizes = (row.seconds, row.prefill_tokens, row.decode_sequences, row.context_tokens)
    return whole and all(size / row.steps < LARGEST_STEP for size in sizes)


def _validated(signal: Signal) -> Signal:
    match signal:
        case Value(value=number) if not plausible(number):
            return Unknown("NotANumber: negative, infinite, NaN or beyond any fleet")
        case Value(at=at) | Idle(at=at) if not isfinite(at):
            return Unknown("NotANumber: the time of the sample")
    return signal


def sound(state: ScalingState) -> bool:
    """Is everything remembered a number that the law may reckon with? False for a state that was
    read back and cannot be right."""
    times = (state.valid_since, state.last_valid_at, state.busy_at, state.demand.end)
    memories = [r.holds for r in state.roles]
    wants = [w for m in memories for w in (*m.highs, *m.lows)]
    demand, last = state.demand, [astuple(r.gauges) for r in state.roles]
    numbers = (
        *(n for part in (astuple(state.lengths), *last) for n in part if n is not None),
        *demand.counts,
        *(f.rate for f in demand.pending),
        *(n for pair in demand.residuals for n in pair),
        *(w.replicas for w in wants),
    )
    moments = (
        *(t for t in (*times, *(m.raised_at for m in memories)) if t is not None),
        *(f.due for f in demand.pending),
        *(w.at for w in wants),
    )
    return (
        all(map(plausible, numbers))
        and all(map(isfinite, moments))
        and all(HEADROOM[0] <= r.headroom <= HEADROOM[1] for r in state.roles)
        and all(capacity.sound(r.estimate) for r in state.roles)
    )


def why_unavailable(metrics: FleetMetrics, windows: Windows) -> str | None:
    """Why the arrivals, without which nothing may be decided, are not known; None if they are.

    Ages are differences on the clock of the samples' source, whatever the operator's says."""
    match metrics.arrivals:
        case Unknown(reason=reason):
            return reason
        case Value(at=at) | Idle(at=at) if metrics.at - at > windows.fresh_s:
            return windows.stale_reason
    return None


def mark_valid(
    state: ScalingState, metrics: FleetMetrics, goals: Goals, slo: SLO, now: float
) -> ScalingState:
    """Note that the metrics are true now, whether requests come, and what a request brings."""
    windows, renewed = goals.windows, not sound(state)
    if renewed:
        state = ScalingState()
    gap = (
        state.last_valid_at is None
        or now - state.last_valid_at > windows.fresh_s + windows.interval_s
    )
    # What is seen while a gateway is silent is a part: the hold begins when the whole is seen.
    gap = gap or bool(metrics.silent_gateways)
    busy = gap or isinstance(metrics.arrivals, Value)
    begun = {g.role: capacity.begin(g.role, goals.prior, slo) for g in goals.roles}
    gauges = Gauges(kv_capacity_tokens=(goals.prior and goals.prior.kv_tokens) or None)
    roles = {r: RoleState(r, replace(e, renewed=renewed), gauges) for r, e in begun.items()}
    roles |= {r.role: r for r in state.roles if r.role in roles}
    return replace(
        state,
        valid_since=now if gap else state.valid_since,
        last_valid_at=now,
        busy_at=now if busy else state.busy_at,
        roles=tuple(roles.values()),
        lengths=_lengths(state.lengths, metrics),
    )


def _last(signal: Signal, before: float | None) -> float | None:
    """The value, or what was known before when nothing happened or nothing is known."""
    return signal.value if isinstance(signal, Value) else before


def _lengths(before: Lengths, metrics: FleetMetrics) -> Lengths:
    prompt = _last(metrics.prompt_tokens, before.prompt)
    variation, squared = before.variation, metrics.prompt_tokens_squared
    if prompt is not None:
        prompt = max(prompt, 1.0)  # a request has a token at least
        if isinstance(squared, Value) and isinstance(metrics.prompt_tokens, Value):
            # A wilder spread than σ = 10 means is no measurement.
            variation = min(max(squared.value / prompt**2, 1.0), 101.0)
    return Lengths(
        prompt,
        variation,
        _last(metrics.output_tokens, before.output),
        _last(metrics.kv_transfer_s, before.transfer_s),
    )


def work(lengths: Lengths, metrics: FleetMetrics) -> Work:
    """What a request brings: as measured, and guessed where no answer has ended yet."""
    prompt = lengths.prompt if lengths.prompt is not None else _prompt_of_steps(metrics)
    variation = lengths.variation if lengths.variation is not None else GUESSED_VARIATION
    output = lengths.output if lengths.output is not None else GUESSED_OUTPUT
    return Work(prompt, variation * prompt**2, output)


def _prompt_of_steps(metrics: FleetMetrics) -> float:
    """Tokens per prompt of the steps that engines ran, before any request has ended."""
    rows = [row for role in metrics.roles for row in role.steps]
    tokens, prompts = sum(r.prefill_tokens for r in rows), sum(r.prefill_requests for r in rows)
    return max(tokens / prompts, 1.0) if prompts >= 1 else GUESSED_PROMPT


RESTS_ON: dict[RoleName, tuple[str, ...]] = {
    "prefill": ("prompt_tokens", "prompt_tokens_squared", "outstanding_prompt_tokens"),
    "decode": (
        "prompt_tokens", "output_tokens", "kv_transfer_s", "running", "kv_capacity_tokens"
    ),
    "colocated": (
        "prompt_tokens", "prompt_tokens_squared", "output_tokens", "running", "kv_capacity_tokens"
    ),
}  # fmt: skip
"""Signals that a role's size rests on, by their names in `FleetMetrics` and `RoleMetrics`."""


def unknown_signals(role: RoleName, metrics: FleetMetrics) -> tuple[str, ...]:
    """Those that are unknown now, and measured attainment if it is: while there is one, what is
    known may be too little, and nothing may be removed."""
    of_role = metrics.role(role)
    names = ("attainment", *RESTS_ON[role])
    return tuple(
        name
        for name in names
        if isinstance(getattr(metrics if hasattr(metrics, name) else of_role, name), Unknown)
    )


def _gauges(before: Gauges, metrics: RoleMetrics, supply: RoleSupply) -> Gauges:
    # One silent pod must not hide its share of the queue.
    silent = max(supply.ready / metrics.pods_reporting, 1.0) if metrics.pods_reporting else 1.0

    def whole(part: Signal) -> Signal:
        return (
            Value(min(part.value * silent, LARGEST), part.at) if isinstance(part, Value) else part
        )

    return Gauges(
        _last(whole(metrics.running), before.running),
        _last(whole(metrics.outstanding_prompt_tokens), before.outstanding_prompt_tokens),
        _last(metrics.kv_capacity_tokens, before.kv_capacity_tokens),
    )


def learn(role: RoleState, seen: Observations, goals: Goals) -> RoleState:
    """Capacity from the step counters; headroom from measured attainment, slow and narrow. While
    another revision comes up, what is known is a guess about it: it may be another model."""
    metrics, of_role = seen.metrics, seen.metrics.role(role.role)
    estimate = capacity.learn(role.estimate, of_role.steps, goals.windows)
    if any(s.rolling for s in seen.supply):
        estimate = replace(estimate, rows=0, steps=0.0)
    per_role = {"prefill": metrics.ttft_attainment, "decode": metrics.tpot_attainment}
    measured = per_role.get(role.role, metrics.attainment)
    headroom = role.headroom
    if isinstance(measured, Value) and metrics.scored >= SCORED_ENOUGH and goals.slo:
        # Each pool aims above the fleet's goal, so that their product does not fall below it.
        error = (1 + goals.slo.attainment) / 2 - measured.value
        low, high = FEEDBACK_ERROR
        headroom *= exp(FEEDBACK_GAIN * min(max(error, low), high))
        headroom = min(max(headroom, HEADROOM[0]), HEADROOM[1])
    gauges = _gauges(role.gauges, of_role, seen.of(role.role))
    return replace(role, estimate=estimate, headroom=headroom, gauges=gauges)
