"""An SLO that a request alone misses: the load is carried all the same, and the verdict says so."""

from dataclasses import replace

import pytest

from argosy_law.decision import Decision, Rule
from argosy_law.goals import SLO, RoleGoal
from argosy_law.size.pools import colocated_model, decode_model, prefill_model, smallest
from argosy_law.size.work import Replica, Work
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling import ramp
from tests.scaling.closed import Phase
from tests.scaling.known import LLAMA, goals, metrics, play, target, times
from tests.scaling.ramp import GOALS

ONE: dict[RoleName, int] = {"prefill": 1, "decode": 1}
REPLICA = Replica(
    LLAMA.decode_base_s,
    LLAMA.per_prompt_token_s,
    LLAMA.per_sequence_s,
    LLAMA.per_context_token_s,
    kv_tokens=LLAMA.kv_tokens,
)


def grown(slo: SLO, rate: float, ticks: int = 20, **signals: float) -> tuple[Decision, dict]:
    """The last of some decisions that were followed at once, from one replica of each."""
    have, state, law = dict(ONE), None, goals(slo)
    for now in times(ticks):
        seen = metrics(now, rate, have, **{"attainment": 0.0} | signals)
        state, decision = play(law, [(seen, have)], state)
        have = {t.role: t.replicas for t in decision.targets}
    return decision, have


def test_one_prefill_replica_under_a_load_of_nine_grows_although_a_single_prompt_misses_ttft() -> (
    None
):
    """A prompt of 9,000 tokens takes 0.96 s: nine a second are 8.7 replicas' work."""
    decision, have = grown(SLO(0.5, 0.04), 9.0, prompt_tokens=9000.0)
    assert 9 <= have["prefill"] <= 18
    assert not decision.reachable
    assert target(decision, "prefill").rule is Rule.SLO_UNREACHABLE


def test_decode_grows_for_two_thousand_sequences_although_one_alone_misses_tpot() -> None:
    decision, have = grown(SLO(1.0, 0.02), 5.0, running=2000.0)
    assert 2000 * 1100 / LLAMA.kv_tokens < have["decode"] < 100
    assert not decision.reachable


def test_a_pool_that_misses_its_slo_anyway_gives_back_what_the_load_no_longer_needs() -> None:
    state, have, law = None, {"prefill": 12, "decode": 3}, goals(SLO(0.5, 0.04))
    for now in times(120):
        seen = metrics(now, 1.0, have, prompt_tokens=9000.0, attainment=0.0, ttft_attainment=0.0)
        state, decision = play(law, [(seen, have)], state)
        have = {t.role: t.replicas for t in decision.targets}
    assert 1 <= have["prefill"] <= 3


@pytest.mark.parametrize("rate", [0.5, 2.0, 9.0, 40.0])
@pytest.mark.parametrize("output", [2.0, 200.0])
def test_every_pool_whose_slo_is_out_of_reach_is_sized_above_its_load(
    rate: float, output: float
) -> None:
    work = Work(4000, 2 * 4000**2, output)
    tight = decode_model(REPLICA, work, 0.001)
    for model in (
        prefill_model(REPLICA, work, 0.01),
        tight,
        colocated_model(REPLICA, work, 0.01, 0.04),
        colocated_model(REPLICA, work, 5.0, 0.001),
    ):
        assert model.reachable < 0.9
        sizes = [smallest(model, r, 0.9) for r in (rate, 1.5 * rate)]
        assert sizes[0] <= sizes[1]
        carried = model.relaxed(0.9)
        assert carried.attainment(sizes[0], rate) > 0
        assert sizes[0] < 10 * (1 + carried.load(rate))


def test_a_fleet_whose_ttft_is_out_of_reach_serves_its_load_without_a_growing_queue() -> None:
    """A prompt of 2,000 tokens takes 0.22 s, the target is 0.1 s: nine a second in the loop."""
    law = replace(GOALS, slo=SLO(0.1, 0.04), gpu_budget=None)
    law = replace(law, roles=(RoleGoal("prefill", 1, 40), RoleGoal("decode", 1, 40)))
    run = ramp.play(1, (Phase(120, 9.0, 2000, 60),), law)
    end = run.bounds[-1]
    waits = sorted(r.first - r.arrived for r, _ in run.requests if r.arrived > end - 40)
    assert len(waits) > 200
    assert waits[len(waits) // 2] < 2 * 0.22
    assert not run.ticks[-1].decision.reachable
    assert run.ticks[-1].decision.replicas("prefill") <= 6
