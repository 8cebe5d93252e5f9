"""A signal that is unknown keeps replicas or adds some; it never removes one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decision import Rule
from argosy_law.goals import SLO
from argosy_law.observe import FleetMetrics, Idle
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling.known import (
    goals,
    metrics,
    play,
    target,
    times,
    without,
)

GAUGES = (
    "prompt_tokens",
    "prompt_tokens_squared",
    "output_tokens",
    "kv_transfer_s",
    "attainment",
    "running",
    "outstanding_prompt_tokens",
    "kv_capacity_tokens",
)
"""All that is known beside the arrivals, but for the shares that correct the headroom: these move
it by at most 0.4 % a round, and while they are unknown it does not move."""
RESTS_ON: dict[RoleName, set[str]] = {
    "prefill": {
        "arrivals",
        "attainment",
        "prompt_tokens",
        "prompt_tokens_squared",
        "outstanding_prompt_tokens",
    },
    "decode": {
        "arrivals",
        "attainment",
        "prompt_tokens",
        "output_tokens",
        "kv_transfer_s",
        "running",
        "kv_capacity_tokens",
    },
    "colocated": {
        "arrivals",
        "attainment",
        "prompt_tokens",
        "prompt_tokens_squared",
        "output_tokens",
        "running",
        "kv_capacity_tokens",
    },
}
EVERYTHING = (*GAUGES, "arrivals", "ttft_attainment", "tpot_attainment")


def steady(
    have: dict[RoleName, int], names: tuple[str, ...], slo: SLO, rate: float, **usual: float
):
    """Rounds with every signal until replicas may go, then one with all and one without some."""
    law = goals(slo, roles=have)
    state, _ = play(law, [(metrics(now, rate, have, **usual), have) for now in times(12)])
    (last,) = times(1, first=12)
    seen = metrics(last, rate, have, **usual)
    _, full = play(law, [(seen, have)], state)
    _, lacking = play(law, [(without(seen, names), have)], state)
    return full, lacking


def test_an_unknown_kv_gauge_is_not_endless_memory() -> None:
    """Small pools: 30 replicas by memory, 23 by the time of a step."""
    have: dict[RoleName, int] = {"prefill": 20, "decode": 34}
    usual = {"prompt_tokens": 2000.0, "output_tokens": 600.0, "kv_capacity_tokens": 66_144.0}
    full, lacking = steady(have, ("kv_capacity_tokens",), SLO(1.0, 0.05), 30.65, **usual)
    assert target(full, "decode").demanded == 30
    assert target(lacking, "decode").demanded == 30


def test_the_decision_names_the_signal_that_is_unknown() -> None:
    have: dict[RoleName, int] = {"prefill": 6, "decode": 6}
    rounds = [without(metrics(now, 1.0, have), ["kv_capacity_tokens"]) for now in times(60)]
    _, lacking = play(goals(), [(seen, have) for seen in rounds])
    assert "kv_capacity_tokens" in target(lacking, "decode").message
    assert target(lacking, "prefill").replicas == 5


def test_what_is_unknown_does_not_stop_growth() -> None:
    have: dict[RoleName, int] = {"prefill": 1, "decode": 1}
    lacking = [without(metrics(now, 12.0, have), GAUGES[3:]) for now in times(3)]
    _, decision = play(goals(), [(seen, have) for seen in lacking])
    assert target(decision, "prefill").replicas > 1
    assert target(decision, "decode").replicas > 1


RATES = st.floats(0.1, 60)
HAVE = st.integers(1, 40)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    rate=RATES,
    have=st.fixed_dictionaries({"prefill": HAVE, "decode": HAVE})
    | st.fixed_dictionaries({"colocated": HAVE}),
    names=st.sets(st.sampled_from(EVERYTHING), min_size=1),
    slo=st.sampled_from([SLO(1.0, 0.04), SLO(0.3, 0.06), SLO(0.05, 0.01)]),
    usual=st.fixed_dictionaries(
        {
            "prompt_tokens": st.floats(1, 8000),
            "output_tokens": st.floats(1, 1000),
            "running": st.floats(0, 500),
            "outstanding_prompt_tokens": st.floats(0, 1e6),
            "kv_capacity_tokens": st.floats(1e4, 1e6),
            "kv_transfer_s": st.floats(0, 1),
            "attainment": st.floats(0, 1),
        }
    ),
    wide=st.floats(1, 5),
)
def test_no_set_of_unknown_signals_removes_a_replica_or_gives_fewer_than_full_sight(
    rate: float,
    have: dict[RoleName, int],
    names: set[str],
    slo: SLO,
    usual: dict[str, float],
    wide: float,
) -> None:
    """After rounds in which all was known and steady, one round in which `names` are unknown.

    Never fewer than now, for any unknown signal. Never fewer than with every signal, as long as the
    arrivals and the shares that correct the headroom are known: for a colocated role that share is
    the attainment of both limits.
    """
    usual["prompt_tokens_squared"] = wide * usual["prompt_tokens"] ** 2
    full, lacking = steady(have, tuple(names), slo, rate, **usual)
    for role in have:
        if names & RESTS_ON[role]:
            assert target(lacking, role).replicas >= have[role]
        corrects = {"attainment"} if role == "colocated" else set[str]()
        if names <= set(GAUGES) - corrects:
            assert target(lacking, role).replicas >= target(full, role).replicas


def unanswered(
    now: float, have: dict[RoleName, int], rate: float = 9.0, **usual: float
) -> FleetMetrics:
    """Requests come and none has ended: the gateway knows no length yet, only the engines do."""
    seen = metrics(now, rate, have, **usual)
    return replace(
        seen,
        prompt_tokens=Idle(now),
        prompt_tokens_squared=Idle(now),
        output_tokens=Idle(now),
        attainment=Idle(now),
        ttft_attainment=Idle(now),
        tpot_attainment=Idle(now),
        scored=0.0,
    )


ONE: dict[RoleName, int] = {"prefill": 1, "decode": 1}


def test_arrivals_alone_grow_both_roles_before_the_first_answer_has_ended() -> None:
    _, decision = play(goals(), [(unanswered(now, ONE, rate=30.0), ONE) for now in times(3)])
    assert target(decision, "prefill").replicas > 1
    assert target(decision, "decode").replicas > 1


def test_nothing_is_removed_before_the_first_answer_has_ended() -> None:
    have: dict[RoleName, int] = {"prefill": 6, "decode": 6}
    _, decision = play(goals(), [(unanswered(now, have, rate=0.2), have) for now in times(200)])
    assert [t.replicas for t in decision.targets] == [6, 6]
    assert {t.rule for t in decision.targets} == {Rule.CAPACITY_GUESSED}
