"""A rollout that fails goes back by itself, as it came, and nothing is lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1.status import ServingDeploymentStatus
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.support.model import Model, condition, converged

WIDE = {"replicas": {"min": 2, "max": 8}}
PAIRS: dict[str, Any] = {"mode": "disaggregated", "roles": {"prefill": WIDE, "decode": WIDE}}
DEADLINE_S = 600.0


def revision(model: Model) -> str:
    return str(model.fleet.status.revision)


def engines(model: Model) -> list[Pod]:
    return [pod for pod in model.pods.values() if pod.role != "gateway"]


def coming(model: Model) -> list[Pod]:
    """Engine pods of the revision that the spec asks for."""
    asked = model.snapshot().asked
    return [pod for pod in engines(model) if pod.revision == asked]


def serving(model: Model) -> int:
    return sum(pod.ready and not pod.draining for pod in engines(model))


def change(model: Model, **looks: Any) -> None:
    for pod in coming(model):
        model.pods[pod.uid] = replace(pod, **looks)


def broken(**spec: Any) -> tuple[Model, str]:
    """A fleet whose new image never becomes ready, and its revision of before."""
    model = converged(**{**PAIRS, **spec})
    before = revision(model)
    model.broken_roles = frozenset({"prefill", "decode", "colocated"})
    model.edit(engine={"image": "engine:2"})
    return model, before


def reason(model: Model) -> str | None:
    return None if model.fleet.status.refused is None else model.fleet.status.refused.reason


def wait(model: Model, seconds: float, *, step_s: float = 5.0) -> None:
    """Let rounds pass, until the revision is refused or the time is over."""
    end = model.now + seconds
    while model.now < end and reason(model) is None:
        model.round()
        model.tick(step_s)


@pytest.mark.parametrize("strategy", ["Paced", "BlueGreen"])
def test_pods_that_are_not_ready_in_time_go_back_and_no_capacity_is_lost(strategy: str) -> None:
    model, before = broken(rollout={"strategy": strategy})
    at = serving(model)
    wait(model, DEADLINE_S - 30)
    assert coming(model)
    assert reason(model) is None
    wait(model, 60)
    assert reason(model) == "ProgressDeadline"
    assert serving(model) == at
    model.converge()
    assert {pod.revision for pod in engines(model)} == {before}
    assert serving(model) == at
    assert model.lost == 0
    assert condition(model, "RolledOut").reason == "RolledBack"
    assert condition(model, "Stalled").status == "True"


@pytest.mark.parametrize(
    ("measured", "patience_s"),
    [("480s", 1440.0), ("200s", DEADLINE_S), ("long", DEADLINE_S), (None, DEADLINE_S)],
)
def test_a_role_that_starts_slowly_has_three_times_its_measured_start(
    measured: str | None, patience_s: float
) -> None:
    model, _ = broken()
    model.memory = LoopMemory()  # another operator has measured it
    status = dump(model.fleet.status)
    status["roles"]["decode"]["timeToReady"] = measured
    read = ServingDeploymentStatus.model_validate(status)
    model.fleet = model.fleet.model_copy(update={"status": read})
    model.broken_roles = frozenset({"decode"})
    wait(model, patience_s - 30)
    assert coming(model)
    assert reason(model) is None
    wait(model, 60)
    assert reason(model) == "ProgressDeadline"


def test_recreated_pods_that_do_not_start_go_back_after_the_old_ones_are_gone() -> None:
    model, before = broken(rollout={"strategy": "Recreate"})
    wait(model, 2 * DEADLINE_S)
    assert reason(model) == "ProgressDeadline"
    assert {pod.revision for pod in engines(model)} != {before}
    model.broken_roles = frozenset()
    model.converge()
    assert {pod.revision for pod in engines(model)} == {before}


def test_pods_that_crash_go_back_at_once_also_when_they_were_ready_before() -> None:
    model = converged(**PAIRS, rollout={"maxSurgeGPUs": 2})
    before = revision(model)
    model.edit(engine={"image": "engine:2"})
    while not any(pod.ready for pod in coming(model)):
        model.round()
        model.tick()
    change(model, restarts=2, ready=False)
    model.round()
    assert reason(model) is None
    change(model, restarts=3, ready=False)
    model.round()
    assert reason(model) == "Crashing"
    model.converge()
    assert {pod.revision for pod in engines(model)} == {before}
    assert model.lost == 0


def test_one_role_that_fails_takes_back_the_pair() -> None:
    model, before = broken()
    model.broken_roles = frozenset({"decode"})
    wait(model, 2 * DEADLINE_S)
    assert reason(model) == "ProgressDeadline"
    model.converge()
    assert {pod.revision for pod in engines(model)} == {before}


LOOKS: dict[str, dict[str, Any]] = {
    "0/3 nodes": {"unschedulable": "0/3 nodes are available"},
    "no such image": {"waiting": ("ImagePullBackOff", "no such image")},
    "a policy": {"waiting": ("CreateContainerConfigError", "a policy of many words. " * 100)},
}


@pytest.mark.parametrize("cause", LOOKS)
def test_the_mark_says_what_the_pods_say_and_fits_into_status(cause: str) -> None:
    model, _ = broken()
    model.round()
    model.tick()
    change(model, **LOOKS[cause])
    model.now += DEADLINE_S
    model.round()
    assert model.fleet.status.refused is not None
    assert cause in model.fleet.status.refused.message


@pytest.mark.parametrize(
    ("since", "failed"),
    [({"lastTransitionTime": "1970-01-01T00:00:00Z"}, "ProgressDeadline"), ({}, None)],
)
def test_pods_that_a_quota_has_refused_for_long_go_back(
    since: dict[str, str], failed: str | None
) -> None:
    model, _ = broken()
    model.round()
    name, deployment = next(
        (name, child)
        for (kind, name), child in model.children.items()
        if kind == "Deployment" and model.snapshot().asked in name
    )
    refusal = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": "exceeded quota",
        **since,
    }
    model.children["Deployment", name] = {**deployment, "status": {"conditions": [refusal]}}
    model.round()
    assert reason(model) == failed


def with_hold() -> Model:
    return broken(rollout={"onFailure": "Hold"})[0]


def paused() -> Model:
    model = broken()[0]
    model.round()
    model.tick()
    model.edit(engine={"image": "engine:2"}, rollout={"paused": True})
    return model


def without_history() -> Model:
    model = broken()[0]
    for key in [key for key in model.children if key[0] == "ControllerRevision"]:
        del model.children[key]
    return model


@pytest.mark.parametrize("held", [with_hold, paused, without_history])
def test_a_rollout_that_may_not_go_back_stays(held: Callable[[], Model]) -> None:
    model = held()
    at = serving(model)
    wait(model, 2 * DEADLINE_S)
    assert reason(model) is None
    assert coming(model)
    assert serving(model) >= at


def test_it_never_goes_back_from_going_back() -> None:
    model, _ = broken()
    wait(model, 2 * DEADLINE_S)
    mark = model.fleet.status.refused
    for pod in engines(model):
        model.pods[pod.uid] = replace(pod, ready=False, restarts=9)
    for _ in range(10):
        model.round()
        model.tick(DEADLINE_S)
    assert mark is not None
    assert model.fleet.status.refused is not None
    assert model.fleet.status.refused.revision == mark.revision


def test_a_spec_that_is_corrected_is_rolled_out() -> None:
    model, before = broken()
    wait(model, 2 * DEADLINE_S)
    model.broken_roles = frozenset()
    model.edit(engine={"image": "engine:3"})
    model.converge()
    assert reason(model) is None
    assert revision(model) != before
    assert condition(model, "RolledOut").status == "True"


@pytest.mark.parametrize("writes", range(4))
def test_an_operator_that_dies_at_any_write_goes_back_all_the_same(writes: int) -> None:
    model, before = broken()
    for number in range(400):
        model.round(writes if number % 3 == 0 else None)
        model.tick(5.0)
    assert reason(model) == "ProgressDeadline"
    model.converge()
    assert {pod.revision for pod in engines(model)} == {before}
    assert model.lost == 0
