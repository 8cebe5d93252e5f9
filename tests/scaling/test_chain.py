"""The links of `decide`, each with what it hands on."""

from dataclasses import replace

import pytest

from argosy_law import decide as law
from argosy_law.decide import Sized, decide
from argosy_law.decision import RoleTarget, Rule
from argosy_law.estimate import capacity
from argosy_law.goals import Inputs, RoleGoal, Serving
from argosy_law.observe import Bin, Observations, RoleSupply
from argosy_law.pace.gates import GATES
from argosy_law.size.pools import PrefillModel
from argosy_law.size.sizing import Pool, Size
from argosy_law.state import RoleState, ScalingState
from tests.scaling import known
from tests.scaling.known import POOLS, START, USUAL

QUEUE = PrefillModel(((0.2, 1.0),), 0.2, 1.0, 1.0)
NEED = Size(4, 5, Rule.DEMAND, QUEUE, 15.0, True)
HAVE = {"prefill": 6, "decode": 6}


def role(name: str = "prefill") -> RoleState:
    return RoleState(name, capacity.begin(name, None, USUAL))  # type: ignore[arg-type]


def inputs(**goals: object) -> Inputs:
    whole = replace(known.goals(), **goals)  # type: ignore[arg-type]
    pods = (RoleSupply("prefill", 6, 6, gpus_per_replica=4), RoleSupply("decode", 6, 6))
    return Inputs(Observations(known.metrics(START, 15.0, HAVE), pods), whole, USUAL, START)


def target(replicas: int = 6, demanded: int = 4, name: str = "prefill") -> RoleTarget:
    return RoleTarget(name, 6, replicas, demanded, Rule.DEMAND, "why")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gate", "demanded", "fewest"),
    [
        (None, 4, 4),
        (None, 9, 6),
        (next(g for g in GATES if not g.need_known), 4, 6),
        (next(g for g in GATES if g.need_known), 4, 4),
    ],
)
def test_a_budget_leaves_a_role_its_need_or_all_that_it_has_while_that_is_unknown(
    gate, demanded: int, fewest: int
) -> None:
    assert Sized(target(demanded=demanded), role(), gate).fewest == fewest


def test_what_a_budget_takes_off_is_said_and_counted() -> None:
    goals = replace(known.goals(), gpu_budget=8)
    assert law._bounded(target(6), 6, goals) == target(6)
    cut = law._bounded(target(6), 2, goals)
    assert (cut.replicas, cut.over_budget, cut.wanted) == (2, 4, 6)
    assert (cut.rule, cut.message) == (Rule.GPU_BUDGET, "spec.autoscaling.gpuBudget.max is 8")


def test_a_budget_is_shared_between_pools_as_they_were_sized() -> None:
    sized = (
        Sized(target(5), role(), None),
        Sized(target(7, name="decode"), role("decode"), None),
    )
    sizes = {"prefill": NEED, "decode": replace(NEED, rate=9.0)}
    day = RoleGoal("prefill", 3, 9, min_schedule="day", unscheduled_min=2)
    seen = inputs(roles=(day, RoleGoal("decode", 1, 9)), serving=Serving("deadline"))
    assert law._pools(sized, sizes, seen) == (  # type: ignore[arg-type]
        Pool(2, 5, 4, QUEUE, 15.0, queued=False),
        Pool(1, 7, 1, QUEUE, 9.0, queued=True),
    )
    plain = law._pools(sized, sizes, inputs())  # type: ignore[arg-type]
    assert [pool.queued for pool in plain] == [False, False]
    assert law._pools(sized, {"prefill": NEED}, seen) == ()
    assert law._within_budget(sized, (), inputs(gpu_budget=1)) == tuple(s.target for s in sized)


def test_a_budget_that_is_too_small_takes_from_roles_whose_need_is_known() -> None:
    """Prefill keeps what it has while its need is unknown; decode goes to its minimum."""
    unknown = next(gate for gate in GATES if not gate.need_known)
    sized = (
        Sized(target(6), role(), unknown),
        Sized(target(6, name="decode"), role("decode"), None),
    )
    sizes = {"prefill": NEED, "decode": NEED}
    seen = inputs(gpu_budget=6 * 4 + 4)
    fitted = law._within_budget(sized, law._pools(sized, sizes, seen), seen)  # type: ignore[arg-type]
    assert [t.replicas for t in fitted] == [6, 4]
    tight = inputs(gpu_budget=6 * 4 + 3)
    fitted = law._within_budget(sized, law._pools(sized, sizes, tight), tight)  # type: ignore[arg-type]
    assert fitted[0].replicas < 6, "below what both need the minimum is all that is kept"


def test_a_decision_keeps_what_it_has_learnt_for_the_next_one() -> None:
    seen = inputs()
    state, _ = decide(ScalingState(), seen.observations, seen.goals, START)
    assert tuple(r.role for r in state.roles) == POOLS
    assert (state.valid_since, state.last_valid_at, state.busy_at) == (START, START, START)
    assert state.demand.end == START
    assert state.demand.pending[0].due == START + 15.0 + 15.0 + 15.0
    assert state.season.counted_to == START
    assert state.lengths.prompt == 1000.0
    later = replace(
        seen.observations,
        metrics=replace(seen.observations.metrics, at=START + 15, bins=(Bin(START + 15, 9.0),)),
    )
    after, _ = decide(state, later, seen.goals, START + 15)
    assert after.valid_since == START
    assert after.demand.counts == (*state.demand.counts, 9.0)
