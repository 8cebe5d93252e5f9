"""Warm spares: replicas beyond what the load asks for, which growth takes first."""

from dataclasses import replace

import pytest

from argosy_operator.core.scaling.decision import Decision, Rule
from argosy_operator.core.scaling.goals import Goals
from tests.scaling import known


def steady(goals: Goals, rate: float, have: known.Have, rounds: int = 40) -> Decision:
    """The decision after so many rounds at one rate, whose decisions are followed."""
    state, decision = None, None
    for now in known.times(rounds):
        seen = known.metrics(now, rate, have)
        state, decision = known.play(goals, [(seen, have)], state)
        have = {role: decision.replicas(role) for role in have}
    assert decision is not None
    return decision


@pytest.mark.parametrize("spares", [1, 3])
@pytest.mark.parametrize("rate", [2.0, 30.0])
def test_each_role_has_the_spares_on_top_of_what_its_load_asks_for(
    rate: float, spares: int
) -> None:
    plain = steady(known.goals(), rate, {"prefill": 1, "decode": 1})
    spare = steady(replace(known.goals(), warm_spares=spares), rate, {"prefill": 1, "decode": 1})
    for role in known.POOLS:
        assert spare.replicas(role) == plain.replicas(role) + spares
        assert known.target(spare, role).demanded == known.target(plain, role).demanded
        assert known.target(spare, role).rule is Rule.WARM_SPARES
    assert "WarmSpares: spec.autoscaling.warmSpares are kept ready" in spare.message


QUEUED = {"outstanding_prompt_tokens": 4_000_000.0}
"""Prompts that wait: more than new replicas work off within a minute."""


@pytest.mark.parametrize("spares", [1, 4, 6])
def test_a_queue_uses_the_spares_and_asks_for_none_of_its_own(spares: int) -> None:
    have = {"prefill": 4, "decode": 4}
    calm = [(known.metrics(now, 5.0, have), have) for now in known.times(20)]
    (now,) = known.times(1, first=20)
    burst = (known.metrics(now, 5.0, have, **QUEUED), have)
    _, quiet = known.play(known.goals(), calm)
    _, plain = known.play(known.goals(), [*calm, burst])
    _, spare = known.play(replace(known.goals(), warm_spares=spares), [*calm, burst])
    for role in known.POOLS:
        queue = known.target(plain, role).demanded
        assert known.target(plain, role).rule is Rule.BACKLOG
        beyond = known.target(quiet, role).demanded + spares
        assert known.target(spare, role).replicas == max(queue, beyond)
        rule = Rule.WARM_SPARES if beyond > queue else Rule.BACKLOG
        assert known.target(spare, role).rule is rule


def test_an_idle_fleet_has_no_spares() -> None:
    goals, have = replace(known.goals(), warm_spares=2), {"prefill": 3, "decode": 3}
    busy = [(known.metrics(now, 1.0, have), have) for now in known.times(20)]
    quiet = [(known.metrics(now, 0.0, have), have) for now in known.times(30, first=20)]
    _, decision = known.play(goals, busy + quiet)
    assert decision.replicas("prefill") < 3
    assert known.target(decision, "prefill").demanded == 1
    assert known.target(decision, "prefill").rule in (Rule.IDLE, Rule.STEP_LIMIT)


def test_spares_stay_within_the_maximum() -> None:
    goals = replace(known.goals(), warm_spares=5)
    roles = tuple(replace(role, max=3) for role in goals.roles)
    decision = steady(replace(goals, roles=roles), 2.0, {"prefill": 1, "decode": 1})
    assert decision.replicas("prefill") == 3
    assert known.target(decision, "prefill").rule is Rule.MAX_REPLICAS


def test_a_budget_takes_the_spares_before_what_the_load_needs() -> None:
    plain = steady(known.goals(), 30.0, {"prefill": 1, "decode": 1})
    needed = sum(t.demanded for t in plain.targets)
    goals = replace(known.goals(), warm_spares=4, gpu_budget=needed)
    decision = steady(goals, 30.0, {"prefill": 1, "decode": 1})
    assert [t.replicas for t in decision.targets] == [t.demanded for t in plain.targets]
    assert {t.rule for t in decision.targets} == {Rule.GPU_BUDGET}
    assert [t.over_budget for t in decision.targets] == [4, 4]


def test_growth_uses_the_spare_that_is_there() -> None:
    """One replica more is needed: it is ready, and the next spare starts."""
    goals = replace(known.goals(), warm_spares=1)
    before = steady(goals, 30.0, {"prefill": 1, "decode": 1})
    have = {role: before.replicas(role) for role in known.POOLS}
    grown = steady(goals, 40.0, have)
    for role in known.POOLS:
        more = known.target(grown, role).demanded - known.target(before, role).demanded
        assert more >= 1
        assert known.target(before, role).replicas >= known.target(before, role).demanded + 1
        assert grown.replicas(role) == known.target(grown, role).demanded + 1
