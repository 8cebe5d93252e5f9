"""A pod's time to its first readiness is learnt from starts that were seen."""

from dataclasses import replace

from argosy_law.goals import Windows, cold_start_s
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.pods import Start, StartPhases
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.targets import supply_of
from tests.support.model import START_S, Model, fleet


def converged() -> Model:
    model = Model(fleet(roles={"colocated": {"replicas": {"min": 2, "max": 4}}}))
    model.converge()
    return model


def learnt(model: Model) -> list[float]:
    return [one.seconds for one in model.memory.starts.values() if one.role == "colocated"]


def learnt_of(model: Model, revision: str) -> list[float]:
    return [one.seconds for one in model.memory.starts_of("colocated", revision)]


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
    assert plan(model.snapshot()).memory.starts[uid] == Start("colocated", 0.25, pod.revision)


def test_a_start_is_learnt_with_its_phases() -> None:
    model = Model(fleet())
    for _ in range(2):
        model.round()
        model.tick()
    pod = next(pod for pod in model.pods.values() if pod.role == "colocated")
    phases = StartPhases(1.0, 2.0, 30.0, 7.0)
    model.pods[pod.uid] = replace(pod, ready=True, ready_at=pod.created_at + 40, phases=phases)
    model.round()
    assert model.memory.starts[pod.uid].phases == phases
    role = model.fleet.status.roles.colocated
    assert role is not None
    assert role.time_to_ready == "40s"
    assert role.start_phases is not None
    assert role.start_phases.model_dump() == {
        "scheduling": "1s", "files": "2s", "images": "30s", "load": "7s",
    }  # fmt: skip


def test_each_role_of_vllm_has_its_own_start_of_minutes() -> None:
    took = {"prefill": 147.0, "decode": 413.0}
    engine = {"type": "vllm", "image": "v:1"}
    model = Model(fleet(mode="disaggregated", engine=engine, model={"uri": "pvc://models"}))
    model.round()
    model.tick()
    model.round()
    for uid, pod in model.pods.items():
        if pod.role in took:
            ready_at = pod.created_at + took[pod.role]
            model.pods[uid] = replace(pod, ready=True, started=True, ready_at=ready_at)
    planned = plan(model.snapshot())
    assert {one.role: one.seconds for one in planned.memory.starts.values()} == took
    draft = replace(planned.draft, memory=planned.memory)
    for role, seconds in took.items():
        supply = supply_of(model.snapshot(), draft, role, 1)
        assert cold_start_s(supply, Windows(cold_start_s=180)) == seconds


def test_a_revision_has_its_own_starts_once_one_was_measured() -> None:
    """The new one takes ten times as long; an edit back has what was measured before."""
    model = converged()
    before = model.snapshot().revision
    quick = learnt(model)
    assert learnt_of(model, "another") == quick
    model.start_s = 10 * START_S
    model.edit(engine={"env": [{"name": "A", "value": "1"}]})
    model.converge()
    after = model.snapshot().revision
    assert min(learnt_of(model, after)) >= 10 * START_S
    assert learnt_of(model, before) == quick
    assert model.fleet.status.roles.colocated is not None
    assert model.fleet.status.roles.colocated.time_to_ready == "20s"
