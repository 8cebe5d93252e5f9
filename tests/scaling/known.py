"""Observations in which every signal is known, and the same without some of them."""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from argosy_law.decide import decide
from argosy_law.decision import Decision, RoleTarget
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, Profile, RoleGoal, Windows
from argosy_law.observe import (
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    StepDelta,
    Unknown,
    Value,
)
from argosy_law.state import ScalingState
from argosy_operator.api.v1alpha1 import RoleName

LLAMA = PRESETS["llama-70b-h100-tp4"]
START = 1_000_000.0
EVERY_S = 15.0
POOLS: tuple[RoleName, ...] = ("prefill", "decode")
UNKNOWN = Unknown("NoSamples")

USUAL = SLO(1.0, 0.04)

Have = Mapping[RoleName, int]
"""Replicas of each role: of prefill and decode, or of colocated."""


def goals(
    slo: SLO = USUAL, *, prior: Profile | None = LLAMA, roles: Collection[RoleName] = POOLS
) -> Goals:
    return Goals(
        mode="colocated" if "colocated" in roles else "disaggregated",
        roles=tuple(RoleGoal(role, 1, 1000) for role in roles),
        slo=slo,
        windows=Windows(interval_s=EVERY_S, down_hold_s=60.0, cold_start_s=15.0),
        prior=prior,
    )


def steps(role: RoleName, now: float, context: float = 1100.0) -> tuple[StepDelta, ...]:
    """Ten steps of a prompt of 1,000 tokens each, ten of 8 sequences, or one row of each."""
    prompts = 10 * (LLAMA.prefill_base_s + 1000 * LLAMA.per_prompt_token_s)
    prefill = StepDelta(now, prompts, 10, prefill_tokens=10_000, prefill_requests=10)
    step = LLAMA.decode_base_s + 8 * (LLAMA.per_sequence_s + context * LLAMA.per_context_token_s)
    decode = StepDelta(now, 10 * step, 10, decode_sequences=80, context_tokens=80 * context)
    return {"prefill": (prefill,), "decode": (decode,), "colocated": (prefill, decode)}[role]


def metrics(now: float, rate: float, have: Have, **signals: float) -> FleetMetrics:
    """A round at a steady `rate`. `signals`: other numbers than the usual ones, by their names."""

    def of(name: str, usual: float) -> Value:
        return Value(signals.get(name, usual), now)

    prompt, output = of("prompt_tokens", 1000.0), of("output_tokens", 200.0)
    return FleetMetrics(
        at=now,
        arrivals=Value(rate, now) if rate else Idle(now),
        bins=tuple(Bin(now - 15 * k, 15 * rate) for k in range(40, -1, -1)),
        prompt_tokens=prompt,
        prompt_tokens_squared=of("prompt_tokens_squared", prompt.value**2),
        output_tokens=output,
        kv_transfer_s=of("kv_transfer_s", 0.0),
        attainment=of("attainment", 1.0),
        ttft_attainment=of("ttft_attainment", 1.0),
        tpot_attainment=of("tpot_attainment", 1.0),
        scored=100.0,
        roles=tuple(
            RoleMetrics(
                role,
                pods_reporting=have[role],
                steps=steps(role, now, prompt.value + output.value / 2),
                running=of("running", 0.0),
                outstanding_prompt_tokens=of("outstanding_prompt_tokens", 0.0),
                kv_capacity_tokens=of("kv_capacity_tokens", LLAMA.kv_tokens),
            )
            for role in have
        ),
    )


def without(seen: FleetMetrics, names: Collection[str]) -> FleetMetrics:
    """The same round without these signals, in the fleet's numbers and in those of its roles."""

    def unknown(part: FleetMetrics | RoleMetrics) -> dict[str, Signal]:
        return {f.name: UNKNOWN for f in fields(part) if f.name in names}

    roles = tuple(replace(r, **unknown(r)) for r in seen.roles)  # type: ignore[arg-type]
    return replace(seen, **unknown(seen), roles=roles)  # type: ignore[arg-type]


def supply(have: Have) -> tuple[RoleSupply, ...]:
    return tuple(RoleSupply(role, n, n) for role, n in have.items())


def play(
    law: Goals,
    rounds: list[tuple[FleetMetrics, Have]],
    state: ScalingState | None = None,
) -> tuple[ScalingState, Decision]:
    """The decision on the last of these rounds."""
    state, decision = state or ScalingState(), None
    for seen, have in rounds:
        state, decision = decide(state, Observations(seen, supply(have)), law, seen.at)
    assert decision is not None
    return state, decision


def times(count: int, first: int = 0) -> list[float]:
    return [START + EVERY_S * (first + i) for i in range(count)]


def target(decision: Decision, role: RoleName) -> RoleTarget:
    return next(t for t in decision.targets if t.role == role)
