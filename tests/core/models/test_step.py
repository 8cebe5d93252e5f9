"""The step that has a Job fetch the model: convergence, and nothing before its time."""

import json
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.api.v1alpha1.status import ServingDeploymentStatus
from argosy_operator.core.fleet.actions import Action, Create, Delete
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.fleet.snapshot import Clock, Snapshot
from argosy_operator.core.plan import plan
from argosy_operator.core.status.compose import status_of
from argosy_operator.shell.gather import Observed, compose
from tests.support.model import IMAGES, ISSUER, fleet

OURS = [{"uid": "fleet-1", "controller": True}]
SAID = json.dumps({"commit": "a" * 40, "path": "hf/org--tiny/" + "a" * 40, "bytes": 10})


class Round:
    """One fleet, whose claim exists; what its rounds read and do."""

    def __init__(self, uri: str = "hf://org/tiny@main", **fetch: Any) -> None:
        self.fleet = fleet(model={"uri": uri, "fetch": fetch or {"claimName": "models"}})
        claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "models", "uid": "claim"}}
        self.children: dict[tuple[str, str], Any] = {("PersistentVolumeClaim", "models"): claim}
        self.pods: tuple[Pod, ...] = ()

    def snapshot(self) -> Snapshot:
        seen = Observed(self.children, (), {}, None, ISSUER, fetch_pods=self.pods)
        return compose(self.fleet, IMAGES, seen, LoopMemory(), Clock(1e6, 1e6))

    def actions(self) -> list[Action]:
        """About Jobs and engine Deployments, of one round; its status counts for the next one."""
        snapshot = self.snapshot()
        planned = plan(snapshot)
        status = status_of(snapshot, planned.draft, ())
        kept = ServingDeploymentStatus.model_validate({"model": status.model})
        self.fleet = self.fleet.model_copy(update={"status": kept})
        return [a for a in planned.actions if _is_about(a)]

    def makes_job(self) -> None:
        (create,) = self.actions()
        assert isinstance(create, Create)
        assert create.obj["kind"] == "Job"
        meta = create.obj["metadata"] | {"uid": "job"}
        self.children["Job", meta["name"]] = create.obj | {"metadata": meta}
        self.pods = (Pod("chat-fetch-1", "p", "fetch", "", owner="job"),)

    def ends(self) -> None:
        self.pods = tuple(replace(pod, phase="Succeeded", said=SAID) for pod in self.pods)


def _is_about(action: Action) -> bool:
    if isinstance(action, Delete):
        return action.kind == "Job"
    if not isinstance(action, Create):
        return False
    labels = action.obj["metadata"]["labels"]
    return action.obj["kind"] == "Job" or "serving.argosy.dev/revision" in labels


def test_no_engine_is_made_before_the_model_is_there() -> None:
    world = Round()
    world.makes_job()
    assert world.actions() == []
    world.ends()
    assert world.actions() == []  # the commit goes into status first
    (create,) = world.actions()
    assert isinstance(create, Create)
    pod = create.obj["spec"]["template"]["spec"]
    (volume,) = (v for v in pod["volumes"] if v["name"] == "weights")
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert f"/models/hf/org--tiny/{'a' * 40}" in pod["containers"][0]["args"]


def test_a_second_round_makes_no_second_job() -> None:
    world = Round()
    world.makes_job()
    assert world.actions() == []
    assert world.actions() == []


def test_the_commit_is_part_of_the_revision() -> None:
    world = Round()
    world.makes_job()
    before = world.snapshot().revision
    world.ends()
    world.actions()
    assert world.snapshot().revision != before


def test_a_job_of_another_spec_is_made_again_once_its_pods_are_gone() -> None:
    world = Round()
    world.makes_job()
    other = fleet(model={"uri": "hf://org/other@main", "fetch": {"claimName": "models"}})
    world.fleet = other
    (delete,) = world.actions()
    assert delete == Delete("Job", "chat-fetch", "job")
    del world.children["Job", "chat-fetch"]
    assert world.actions() == []  # its pod still runs
    world.pods = ()
    (create,) = world.actions()
    assert isinstance(create, Create)


def test_a_job_is_deleted_when_the_model_is_used_where_it_is() -> None:
    world = Round()
    world.makes_job()
    world.fleet = fleet(model={"uri": "pvc://models/a"})
    assert Delete("Job", "chat-fetch", "job") in world.actions()


def test_a_job_that_ended_without_a_word_runs_again() -> None:
    world = Round()
    world.makes_job()
    world.pods = ()
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.children["Job", "chat-fetch"]["status"] = ended
    assert world.actions() == [Delete("Job", "chat-fetch", "job")]


def test_a_job_of_a_stranger_is_not_touched_and_named() -> None:
    world = Round()
    stranger = {"name": "chat-fetch", "uid": "x", "ownerReferences": []}
    world.children["Job", "chat-fetch"] = {"kind": "Job", "metadata": stranger, "spec": {}}
    snapshot = world.snapshot()
    planned = plan(snapshot)
    assert [a for a in planned.actions if _is_about(a)] == []
    said = {c.type: c for c in status_of(snapshot, planned.draft, ()).conditions}
    assert "Job/chat-fetch" in said["NameConflict"].message


def test_a_claim_that_was_made_again_is_filled_again() -> None:
    world = Round()
    world.makes_job()
    world.ends()
    world.actions()
    world.children["PersistentVolumeClaim", "models"]["metadata"]["uid"] = "new"
    del world.children["Job", "chat-fetch"]
    world.pods = ()
    (create,) = world.actions()
    assert isinstance(create, Create)
    assert create.obj["kind"] == "Job"


@pytest.mark.parametrize("owner", ["another-job", ""])
def test_pods_of_others_say_nothing(owner: str) -> None:
    world = Round()
    world.makes_job()
    world.pods = (Pod("p", "p", "fetch", "", owner=owner, phase="Succeeded", said=SAID),)
    world.actions()
    assert world.fleet.status.model is None
