"""What the law learns about a replica stays usable for thirty days, at every cadence and load.

Time is virtual. The learner takes one row of steps a round; `decide` is asked a few times a day
with what was learnt until then.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, pi, sin
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.estimate import capacity
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal, Windows
from argosy_law.observe import (
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    StepDelta,
    Value,
)
from argosy_law.signals.validity import validated
from argosy_law.size.pools import Limits, model_of, smallest
from argosy_law.size.work import Replica, Work
from argosy_law.state import ScalingState
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling.demo import goals as demo_goals

TRUE = PRESETS["llama-70b-h100-tp4"]
OBJECTIVE = SLO(ttft_s=1.0, tpot_s=0.04)
START, DAY = 1e6, 86_400.0
# The defaults, the demo's, slow rounds with the shortest memory, and a day's stabilization.
CADENCES = {
    "defaults": (Windows(), 4),
    "demo": (demo_goals().windows, 30),
    "slow rounds": (Windows(60.0, 240.0, 3600.0, down_hold_s=0.0), 1),
    "long memory": (Windows(down_hold_s=DAY), 16),
}
"""With each the number of rounds that one row spans: as if the scrapes between had been missed.
The same time passes and is forgotten; the test is that much quicker."""

Load = Callable[[float, Random], float]
"""Requests per second at a time; 0: no step is run."""
LOADS: dict[str, Load] = {
    "the same rows for ever": lambda at, dice: 6.0,
    "a steady load": lambda at, dice: 6.0 * dice.uniform(0.9, 1.1),
    "days and nights": lambda at, dice: max(6.0 + 8.0 * sin(2 * pi * at / DAY), 0.0),
}
PROMPT, OUTPUT = 1500.0, 200.0


def row(role: RoleName, at: float, rate: float, dice: Random, slower: float = 1.0) -> StepDelta:
    """One replica's steps of ten seconds at its half of `rate`, timed to one per cent."""
    noise = slower * (1 + 0.01 * dice.gauss(0, 1))
    if role == "prefill":
        steps, tokens = 5 * rate, 5 * rate * PROMPT
        seconds = TRUE.prefill_base_s * steps + TRUE.per_prompt_token_s * tokens
        return StepDelta(at, noise * seconds, steps, tokens, steps)
    n, context = 2.2 * rate, PROMPT + OUTPUT / 2
    step = TRUE.decode_base_s + n * (TRUE.per_sequence_s + context * TRUE.per_context_token_s)
    steps = 10 / step
    return StepDelta(
        at,
        noise * step * steps,
        steps,
        decode_sequences=n * steps,
        context_tokens=n * context * steps,
    )


def goals(windows: Windows, *, known: bool) -> Goals:
    return Goals(
        mode="disaggregated",
        roles=(RoleGoal("prefill", 1, 50), RoleGoal("decode", 1, 50)),
        slo=OBJECTIVE,
        windows=windows,
        prior=TRUE if known else None,
    )


def seen(at: float, rate: float, rows: dict[RoleName, StepDelta], windows: Windows) -> Observations:
    kinds = ("prefill", "decode")
    metrics = FleetMetrics(
        at=at,
        arrivals=Value(rate, at) if rate > 0 else Idle(at),
        bins=tuple(Bin(at - i * windows.scrape_s, rate * windows.scrape_s) for i in (3, 2, 1, 0)),
        prompt_tokens=Value(PROMPT, at),
        prompt_tokens_squared=Value(PROMPT**2, at),
        output_tokens=Value(OUTPUT, at),
        roles=tuple(
            RoleMetrics(
                role,
                pods_reporting=2,
                steps=(rows[role],) if role in rows else (),
                running=Value(4.0 * rate, at) if role == "decode" else Value(1.0, at),
                outstanding_prompt_tokens=Value(0.0, at),
                kv_capacity_tokens=Value(TRUE.kv_tokens, at),
            )
            for role in kinds
        ),
    )
    return Observations(metrics, tuple(RoleSupply(role, 2, 2) for role in kinds))


def demanded(decision: Decision, role: RoleName) -> int:
    return next(t.demanded for t in decision.targets if t.role == role)


def needed(role: RoleName, rate: float, slower: float = 1.0) -> int:
    """What the true constants ask for."""
    base = TRUE.prefill_base_s if role == "prefill" else TRUE.decode_base_s
    replica = Replica(
        slower * base,
        slower * TRUE.per_prompt_token_s,
        slower * TRUE.per_sequence_s,
        slower * TRUE.per_context_token_s,
        kv_tokens=TRUE.kv_tokens,
    )
    limits = Limits(OBJECTIVE.ttft_s, OBJECTIVE.tpot_s, OBJECTIVE.attainment)
    return smallest(model_of(role, replica, Work(PROMPT, PROMPT**2, OUTPUT), limits), rate, 0.9)


def usable(estimate: capacity.Estimate, begun: capacity.Estimate) -> None:
    """Finite, and no less certain of a constant than a guess is."""
    assert all(isfinite(t) and 0 <= t < 1.0 for t in estimate.theta)
    for i, (vector, prior) in enumerate(zip(estimate.covariance, begun.theta, strict=True)):
        assert 0 < vector[i] <= 1.001 * (3 * max(prior, estimate.theta[i])) ** 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cadence", CADENCES)
@pytest.mark.parametrize("load", LOADS)
def test_thirty_days_leave_the_learner_usable_the_replicas_right_and_a_change_is_still_learnt(
    cadence: str, load: str
) -> None:
    windows, rounds = CADENCES[cadence]
    law, dice, every = (
        goals(windows, known=load != "a steady load"),
        Random(4),
        rounds * windows.interval_s,
    )
    state, decision = decide(ScalingState(), seen(START, 6.0, {}, windows), law, START)
    learnt = {r.role: r.estimate for r in state.roles}
    steps, asked = int(30 * DAY / every), int(0.3 * DAY / every) + 1
    for k in range(1, steps + 1):
        at = START + k * every
        rate = LOADS[load](at, dice)
        rows: dict[RoleName, StepDelta] = {}
        if rate > 0:
            rows = {role: row(role, at, rate, dice) for role in learnt}
        if k % asked == 0 or k == steps:
            state = replace(
                state, roles=tuple(replace(r, estimate=learnt[r.role]) for r in state.roles)
            )
            state, decision = decide(state, seen(at, 6.0, rows, windows), law, at)
            learnt = {r.role: r.estimate for r in state.roles}
            for role in learnt:
                usable(learnt[role], capacity.begin(role, law.prior, OBJECTIVE))
                assert abs(demanded(decision, role) - needed(role, 6.5)) <= 2
        else:
            for role in rows:
                learnt[role] = capacity.learn(learnt[role], (rows[role],), windows)
    assert all(estimate.learnt for estimate in learnt.values())
    for k in range(1, 61):
        at = START + 30 * DAY + k * every
        for role in learnt:
            step = row(role, at, 6.0 + 2 * sin(k), dice, slower=2.0)
            learnt[role] = capacity.learn(learnt[role], (step,), windows)
    state = replace(state, roles=tuple(replace(r, estimate=learnt[r.role]) for r in state.roles))
    _, decision = decide(state, seen(at, 6.0, {}, windows), law, at)
    assert abs(demanded(decision, "prefill") - needed("prefill", 6.5, slower=2.0)) <= 2


ROWS = st.builds(
    StepDelta,
    at=st.floats(0, 1e9),
    seconds=st.floats(1e-6, 1e15),
    steps=st.floats(1, 1e15),
    prefill_tokens=st.floats(0, 1e15),
    prefill_requests=st.floats(0, 1e15),
    decode_sequences=st.floats(0, 1e15),
    context_tokens=st.floats(0, 1e15),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=30),
    known=st.booleans(),
    role=st.sampled_from(("prefill", "decode")),
)
def test_no_rows_of_counters_make_what_is_learnt_unusable(
    rows: list[StepDelta], known: bool, role: RoleName
) -> None:
    """The bound holds after any valid row, so it holds after any number of them."""
    estimate = capacity.begin(role, TRUE if known else None, OBJECTIVE)
    for given_row in sorted(rows, key=lambda r: r.at):
        metrics = FleetMetrics(0.0, Idle(0.0), roles=(RoleMetrics(role, 1, (given_row,)),))
        estimate = capacity.learn(estimate, validated(metrics).role(role).steps, Windows())
        assert all(isfinite(t) and t >= 0 for t in estimate.theta)
        assert capacity.sound(estimate)
