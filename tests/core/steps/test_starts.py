"""A pod's time to its first readiness is learnt from starts that were seen."""

from dataclasses import replace

from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.support.model import START_S, Model, fleet


def converged() -> Model:
    model = Model(fleet(roles={"colocated": {"replicas": {"min": 2, "max": 4}}}))
    model.converge()
    return model


def learnt(model: Model) -> list[float]:
    return [s for role, s in model.memory.starts.values() if role == "colocated"]


def test_a_start_that_was_seen_is_learnt() -> None:
    model = converged()
    assert len(learnt(model)) == 2
    assert all(START_S <= seconds <= START_S + 2 for seconds in learnt(model))
    assert model.fleet.status.roles.colocated is not None
    assert model.fleet.status.roles.colocated.time_to_ready == "2s"


def test_a_pod_that_became_ready_again_hours_later_is_no_slow_start() -> None:
    """Its readiness wavered once, then the operator was started anew."""
    model = converged()
    model.memory = LoopMemory()
    model.now += 36_000
    model.pods = {u: replace(p, ready_at=model.now - 5) for u, p in model.pods.items()}
    model.round()
    assert learnt(model) == []
    model.round()
    assert learnt(model) == []
    assert model.fleet.status.roles.colocated is not None
    assert model.fleet.status.roles.colocated.time_to_ready == "2s"


def test_a_start_of_less_than_a_second_is_learnt_as_it_was() -> None:
    model = Model(fleet())
    model.round()
    model.tick()
    model.round()
    pod = next(pod for pod in model.pods.values() if pod.role == "colocated")
    uid = pod.uid
    assert uid in model.memory.starting
    model.pods[uid] = replace(pod, ready=True, ready_at=pod.created_at + 0.25)
    assert plan(model.snapshot()).memory.starts[uid] == ("colocated", 0.25)
