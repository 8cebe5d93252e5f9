"""Metrics of a broken or hostile pod: the decision is the same, or nothing is removed.

The world is what two gateways and twenty engines export: 24 requests per second for ten minutes,
which some of ten replicas of each role carry, so the honest decision removes one. Each row adds or
spoils what one pod exports in the last scrape.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from math import inf, nan

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Decision, RoleTarget
from argosy_law.observe import FleetMetrics, Observations, RoleSupply, Unknown
from argosy_law.signals.samples import Round, Series, assemble
from argosy_law.state import ScalingState
from tests.scaling.known import EVERY_S, LLAMA, START, goals

LAW = goals()
ROUNDS = 40
PODS = frozenset(f"{role}-{n}" for role in ("prefill", "decode") for n in range(10))
GATEWAYS = frozenset(("gateway-0", "gateway-1"))
SPAN_S = 600.0

World = list[Series]


def counter(name: str, at: float, per_s: float, **labels: str) -> Series:
    """A counter that grew by `per_s` since long ago; a sample every 15 s over the last span."""
    times = [at - EVERY_S * k for k in range(int(SPAN_S / EVERY_S), -1, -1)]
    return Series(name, labels, tuple((t, per_s * (t - START + 10_000)) for t in times))


def gauge(name: str, at: float, value: float, **labels: str) -> Series:
    return Series(name, labels, ((at, value),))


def gateway(pod: str, at: float) -> World:
    """Twelve requests per second: prompts of 1,000 tokens, answers of 200, all within the SLO."""
    of = {"role": "gateway", "pod": pod}
    rows = {
        "argosy_gateway_prompt_tokens_sum": 12_000.0,
        "argosy_gateway_prompt_tokens_count": 12.0,
        "argosy_gateway_prompt_tokens_squared_total": 12e6,
        "argosy_gateway_output_tokens_sum": 2400.0,
        "argosy_gateway_output_tokens_count": 12.0,
    }
    return [
        counter("argosy_requests_received_total", at, 12.0, **of, outcome="accepted"),
        counter("argosy_slo_requests_total", at, 12.0, **of, ttft="ok", tpot="ok"),
        counter("argosy_slo_requests_total", at, 0.0, **of, ttft="miss", tpot="ok"),
        *(counter(name, at, rate, **of) for name, rate in rows.items()),
    ]


def engine(role: str, pod: str, at: float) -> World:
    """2.4 requests per second, with the step times of the usual profile."""
    of = {"role": role, "pod": pod}
    prompt_s = LLAMA.prefill_base_s + 1000 * LLAMA.per_prompt_token_s
    step_s = LLAMA.decode_base_s + LLAMA.per_sequence_s + 1100 * LLAMA.per_context_token_s
    kind = {"kind": role}
    if role == "prefill":
        rows = {
            "argosy_step_seconds_total": 2.4 * prompt_s,
            "argosy_steps_total": 2.4,
            "argosy_step_prefill_tokens_total": 2400.0,
            "argosy_step_prefill_requests_total": 2.4,
        }
    else:
        rows = {
            "argosy_step_seconds_total": 20 * step_s,
            "argosy_steps_total": 20.0,
            "argosy_step_decode_sequences_total": 20.0,
            "argosy_step_context_tokens_total": 22_000.0,
        }
    return [
        *(counter(name, at, rate, **of, **kind) for name, rate in rows.items()),
        counter("argosy_kv_transfer_seconds_sum", at, 0.024, **of, side="receive"),
        counter("argosy_kv_transfer_seconds_count", at, 2.4, **of, side="receive"),
        gauge("vllm:num_requests_running", at, 0.5, **of),
        gauge("argosy_outstanding_prompt_tokens", at, 0.0, **of),
        gauge("argosy_kv_capacity_tokens", at, LLAMA.kv_tokens, **of),
    ]


def honest(at: float) -> World:
    engines = [one for pod in sorted(PODS) for one in engine(pod.partition("-")[0], pod, at)]
    return [*engines, *(one for pod in sorted(GATEWAYS) for one in gateway(pod, at))]


def one_round(
    state: ScalingState, at: float, world: Iterable[Series]
) -> tuple[ScalingState, Decision, FleetMetrics]:
    supply = tuple(RoleSupply(role, 10, 10) for role in ("prefill", "decode"))
    seen = assemble(Round(at, tuple(world), 2, 2, GATEWAYS), LAW.windows, PODS)
    return *decide(state, Observations(seen, supply), LAW, at), seen


@cache
def state_before() -> ScalingState:
    """After ten minutes of honest rounds. No decision is followed."""
    state = ScalingState()
    for k in range(ROUNDS):
        at = START + EVERY_S * k
        state, _, _ = one_round(state, at, honest(at))
    return state


def decided(spoil: Callable[[World, float], Iterable[Series]]) -> tuple[Decision, FleetMetrics]:
    """The decision on one more round, which `spoil` changes."""
    at = START + EVERY_S * ROUNDS
    _, decision, seen = one_round(state_before(), at, spoil(honest(at), at))
    return decision, seen


def spoiled(name: str, pod: str, value: float) -> Callable[[World, float], World]:
    """The newest sample of one pod's metric becomes `value`."""

    def spoil(world: World, at: float) -> World:
        assert any(one.name == name and one.labels["pod"] == pod for one in world)
        return [
            replace(one, samples=(*one.samples[:-1], (at, value)))
            if one.name == name and one.labels["pod"] == pod
            else one
            for one in world
        ]

    return spoil


@cache
def honest_targets() -> dict[str, RoleTarget]:
    return {t.role: t for t in decided(lambda world, _at: world)[0].targets}


COUNTERS = (
    ("gateway-0", "argosy_requests_received_total"),
    ("gateway-0", "argosy_slo_requests_total"),
    ("gateway-0", "argosy_gateway_prompt_tokens_sum"),
    ("gateway-0", "argosy_gateway_prompt_tokens_count"),
    ("gateway-0", "argosy_gateway_prompt_tokens_squared_total"),
    ("gateway-0", "argosy_gateway_output_tokens_sum"),
    ("gateway-0", "argosy_gateway_output_tokens_count"),
    ("prefill-0", "argosy_step_seconds_total"),
    ("prefill-0", "argosy_step_prefill_tokens_total"),
    ("decode-0", "argosy_steps_total"),
    ("decode-0", "argosy_step_context_tokens_total"),
    ("decode-0", "argosy_kv_transfer_seconds_sum"),
)
GAUGES = (
    ("prefill-0", "vllm:num_requests_running"),
    ("decode-0", "vllm:num_requests_running"),
    ("prefill-0", "argosy_outstanding_prompt_tokens"),
    ("decode-0", "argosy_kv_capacity_tokens"),
)


def test_the_honest_world_gives_one_replica_back_and_knows_every_signal() -> None:
    decision, seen = decided(lambda world, _at: world)
    for target in decision.targets:
        assert 2 < target.demanded < 10, "fewer and more can both be told apart from it"
        assert target.replicas == 9
    roles = [seen.role(role) for role in ("prefill", "decode")]
    assert not [
        s for r in roles for s in (r.running, r.kv_capacity_tokens) if isinstance(s, Unknown)
    ]


@pytest.mark.parametrize("value", [nan, inf, -1.0])
@pytest.mark.parametrize(("pod", "name"), [*COUNTERS, *GAUGES])
def test_what_is_no_number_leaves_the_decision_or_holds(pod: str, name: str, value: float) -> None:
    decision, _ = decided(spoiled(name, pod, value))
    for target in decision.targets:
        usual = honest_targets()[target.role]
        same = (target.replicas, target.demanded) == (usual.replicas, usual.demanded)
        assert same or target.replicas == 10, target


@pytest.mark.parametrize(("pod", "name"), COUNTERS)
def test_a_counter_that_falls_to_zero_is_a_restart_and_removes_no_more(pod: str, name: str) -> None:
    decision, _ = decided(spoiled(name, pod, 0.0))
    for target in decision.targets:
        assert target.replicas >= honest_targets()[target.role].replicas


def test_pods_that_are_not_the_fleets_change_nothing() -> None:
    """Another fleet's engines with our labels, a thousand of them, idle and huge."""

    def strangers(world: World, at: float) -> World:
        names = [f"stranger-{n}" for n in range(1000)]
        more = [
            gauge(name, at, 1e12, role="prefill", pod=pod)
            for pod in names
            for name in ("vllm:num_requests_running", "argosy_outstanding_prompt_tokens")
        ]
        fast = [
            counter("argosy_steps_total", at, 1e6, role="decode", pod=pod, kind="decode")
            for pod in names[:50]
        ]
        return [*world, *more, *fast]

    decision, _ = decided(strangers)
    assert {t.role: t for t in decision.targets} == honest_targets()
