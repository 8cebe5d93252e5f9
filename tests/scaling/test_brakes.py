"""Each brake of docs/reference/rules.md, alone, keeps a fleet that is ten times too large.

The control is a fleet of ten prefill and ten decode replicas under a load that one of each carries,
measured for a quarter of an hour: the law gives replicas back at once. Each row of the table
changes one thing of this world, and nothing is given back. The rules are those of
docs/reference/rules.md, written by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.goals import SLO
from argosy_law.observe import (
    FleetMetrics,
    Observations,
    RoleSupply,
    unknown_metrics,
)
from argosy_law.state import ScalingState
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling.known import UNKNOWN, goals, metrics, target, times

TEN: dict[RoleName, int] = {"prefill": 10, "decode": 10}
HOLD_S = 60.0
ROUNDS = 60
"""A quarter of an hour, a round every 15 s."""

Round = tuple[FleetMetrics, tuple[RoleSupply, ...]]


def usual(now: float, **signals: float) -> Round:
    """One request per second; all pods are ready, and all of them report."""
    supply = tuple(RoleSupply(role, n, n) for role, n in TEN.items())
    return metrics(now, 1.0, TEN, **signals), supply


def seen(now: float, **changes: object) -> Round:
    found, supply = usual(now)
    return replace(found, **changes), supply  # type: ignore[arg-type]


def half_silent(now: float) -> Round:
    found, supply = usual(now)
    roles = tuple(replace(role, pods_reporting=5) for role in found.roles)
    return replace(found, roles=roles), supply


def a_while() -> list[Round]:
    return [usual(now) for now in times(ROUNDS)]


LAST = times(1, first=ROUNDS)[0]


def decided(rounds: list[Round], state: ScalingState | None = None) -> Decision:
    """The last decision. The fleet keeps its ten replicas: no decision is followed."""
    decision = None
    for found, supply in rounds:
        observed = Observations(found, supply)
        state, decision = decide(state or ScalingState(), observed, goals(), found.at)
    assert decision is not None
    return decision


def kept(decision: Decision, role: RoleName) -> bool:
    return target(decision, role).replicas >= 10


def test_without_a_brake_both_roles_give_replicas_back() -> None:
    decision = decided([*a_while(), usual(LAST)])
    assert not kept(decision, "prefill")
    assert not kept(decision, "decode")


BRAKES: dict[str, tuple[Callable[[], list[Round]], str, set[RoleName]]] = {
    "the operator has just started": (
        lambda: [usual(now) for now in times(2)],
        "JustStarted",
        {"prefill", "decode"},
    ),
    "Prometheus does not answer": (
        lambda: [*a_while(), (unknown_metrics(LAST, "PrometheusAway"), usual(LAST)[1])],
        "MetricsUnavailable",
        {"prefill", "decode"},
    ),
    "a ready gateway has no fresh samples": (
        lambda: [*a_while(), seen(LAST, silent_gateways=("gateway-b",))],
        "MetricsUnavailable",
        {"prefill", "decode"},
    ),
    "half of the pods do not report": (
        lambda: [*a_while(), half_silent(LAST)],
        "MetricsUnavailable",
        {"prefill", "decode"},
    ),
    "the length of prompts is unknown": (
        lambda: [*a_while(), seen(LAST, prompt_tokens=UNKNOWN)],
        "MetricsUnavailable",
        {"prefill", "decode"},
    ),
    "the length of answers is unknown, which only decode is sized by": (
        lambda: [*a_while(), seen(LAST, output_tokens=UNKNOWN)],
        "MetricsUnavailable",
        {"decode"},
    ),
    "queued prompts would outlast the start of a replica": (
        # A prompt of 1,000 tokens takes a replica about 0.1 s, so that ten replicas need 30 s for
        # these, and decode longer. A start takes 15 s.
        lambda: [*a_while(), usual(LAST, outstanding_prompt_tokens=3_000_000.0)],
        "Backlog",
        {"prefill", "decode"},
    ),
    "attainment is below the goal": (
        lambda: [*a_while(), usual(LAST, attainment=0.5, ttft_attainment=0.7, tpot_attainment=0.7)],
        "AttainmentBelowGoal",
        {"prefill", "decode"},
    ),
    "prompts are late": (
        lambda: [*a_while(), usual(LAST, attainment=0.5, ttft_attainment=0.5)],
        "AttainmentBelowGoal",
        {"prefill"},
    ),
    "answers are slow": (
        lambda: [*a_while(), usual(LAST, attainment=0.5, tpot_attainment=0.5)],
        "AttainmentBelowGoal",
        {"decode"},
    ),
}


@pytest.mark.parametrize("brake", BRAKES)
def test_each_brake_alone_keeps_what_is_there(brake: str) -> None:
    world, rule, roles = BRAKES[brake]
    decision = decided(world())
    for role in ("prefill", "decode"):
        assert kept(decision, role) == (role in roles), role
        if role in roles:
            assert target(decision, role).rule.value == rule


def test_a_capacity_that_was_never_measured_keeps_what_is_there() -> None:
    """Without a profile and without steps, what a replica can do is a guess."""
    law, state, decision = goals(prior=None), ScalingState(), None
    for now in times(ROUNDS):
        found, supply = usual(now)
        blank = replace(found, roles=tuple(replace(r, steps=()) for r in found.roles))
        state, decision = decide(state, Observations(blank, supply), law, now)
    assert decision is not None
    for role in ("prefill", "decode"):
        assert kept(decision, role)
        assert target(decision, role).rule.value == "CapacityGuessed"


def test_a_scale_up_that_is_still_starting_keeps_what_is_there_for_one_hold() -> None:
    """Ten replicas are wanted, one is there. When load falls, nine are still starting."""
    state, decision = ScalingState(), None
    for now in times(20):  # a load of ten replicas
        found = metrics(now, 60.0, {"prefill": 1, "decode": 1})
        supply = tuple(RoleSupply(role, 1, 1) for role in TEN)
        state, decision = decide(state, Observations(found, supply), goals(), now)
    assert decision is not None
    assert target(decision, "prefill").replicas > 1
    raised_at = times(20)[-1]
    rules = {}
    for now in times(30, first=20):
        found = metrics(now, 0.01, {"prefill": 1, "decode": 1})
        supply = tuple(RoleSupply(role, 10, 1, pending=9) for role in TEN)
        state, decision = decide(state, Observations(found, supply), goals(), now)
        rules[now - raised_at] = target(decision, "prefill").rule.value
        if now - raised_at < HOLD_S:
            assert kept(decision, "prefill"), now - raised_at
    assert "ScaleUpPending" in rules.values()
    assert not kept(decision, "prefill"), "a start that never ends holds no longer than one hold"


def test_after_an_outage_of_prometheus_nothing_is_removed_for_the_whole_hold() -> None:
    state = ScalingState()
    for found, supply in a_while():
        state, _ = decide(state, Observations(found, supply), goals(), found.at)
    outage = times(4, first=ROUNDS)
    for now in outage:
        away = Observations(unknown_metrics(now, "PrometheusAway"), usual(now)[1])
        state, decision = decide(state, away, goals(), now)
        assert kept(decision, "prefill")
        assert kept(decision, "decode")
    back = times(12, first=ROUNDS + 4)
    removed_after = None
    for now in back:
        found, supply = usual(now)
        state, decision = decide(state, Observations(found, supply), goals(), now)
        if not kept(decision, "prefill") and removed_after is None:
            removed_after = now - back[0]
    assert removed_after is not None
    assert removed_after >= HOLD_S, "counted from the first round with sight"


def grown(**signals: float) -> dict[str, int]:
    """Replicas asked for after twenty rounds of four requests per second, from one of each."""
    state, one = ScalingState(), {"prefill": 1, "decode": 1}
    for now in times(20):
        found = metrics(now, 4.0, one, **signals)  # type: ignore[arg-type]
        supply = tuple(RoleSupply(role, 1, 1) for role in TEN)
        state, decision = decide(state, Observations(found, supply), goals(SLO(1.0, 0.04)), now)
    return {t.role: t.demanded for t in decision.targets}


def test_long_prompts_ask_for_prefill_and_long_answers_for_decode() -> None:
    usual_size = grown()
    prompts = grown(prompt_tokens=6000.0)
    answers = grown(output_tokens=6000.0)
    assert prompts["prefill"] > usual_size["prefill"]
    assert answers["decode"] > usual_size["decode"]
    assert answers["prefill"] == usual_size["prefill"]
