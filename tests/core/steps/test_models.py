"""The step that has a Job fetch the model: convergence, and nothing before its time."""

import json
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.api.v1alpha1.status import ServingDeploymentStatus
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Action, Create, Delete
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory, Snapshot
from argosy_operator.core.status.compose import status_of
from argosy_operator.core.steps.draft import LOOK_AGAIN_S, Draft
from argosy_operator.core.steps.failures import LOOK_AT_TAKEN_NAMES_S
from argosy_operator.core.steps.models import (
    as_fetched,
    fetch_model,
    may_have_job,
)
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
        self.images = IMAGES

    def snapshot(self) -> Snapshot:
        seen = Observed(self.children, (), {}, None, ISSUER, fetch_pods=self.pods)
        return compose(self.fleet, self.images, seen, LoopMemory(), Clock(1e6, 1e6))

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


@pytest.mark.parametrize("running", [False, True])
def test_a_claim_of_a_stranger_is_not_written_to_and_named(running: bool) -> None:
    world = Round(size="1Gi")
    if running:
        world.makes_job()
    meta = {"name": "chat-model", "uid": "x", "ownerReferences": []}
    claim = {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}}
    world.children["PersistentVolumeClaim", "chat-model"] = claim
    snapshot = world.snapshot()
    planned = plan(snapshot)
    ended = [Delete("Job", "chat-fetch", "job")] if running else []
    assert [a for a in planned.actions if _is_about(a)] == ended
    said = {c.type: c for c in status_of(snapshot, planned.draft, ()).conditions}
    assert "PersistentVolumeClaim/chat-model" in said["NameConflict"].message
    (step,) = (step for step in planned.draft.steps if step.name == "fetch_model")
    assert step.message == "PersistentVolumeClaim chat-model: it is not written to"
    del world.children["PersistentVolumeClaim", "chat-model"]
    world.children.pop(("Job", "chat-fetch"), None)
    world.pods = ()
    world.makes_job()


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


COMMIT = "a" * 40


def stepped(world: Round) -> tuple[str, str, float]:
    """Reason and message of the step, and how soon it asks for the next round."""
    draft = fetch_model(world.snapshot(), Draft(memory=LoopMemory()))
    (step,) = draft.steps
    return step.reason, step.message, draft.wake_s


def with_job(phase: str = "Running", **parts: Any) -> Round:
    world = Round()
    world.makes_job()
    world.pods = tuple(replace(pod, phase=phase, **parts) for pod in world.pods)
    return world


def test_what_a_pod_fetched_is_known_at_once_and_rests_afterwards() -> None:
    world = with_job("Succeeded", said=SAID)
    assert stepped(world) == ("ModelFetched", f"commit {COMMIT}", 0.0)
    world.actions()
    known = world.fleet.status.model
    assert known is not None
    assert known.model_dump(by_alias=True) == {
        "uri": "hf://org/tiny@main", "commit": COMMIT, "path": f"hf/org--tiny/{COMMIT}",
        "bytes": 10, "claimName": "models", "claimUid": "claim",
    }  # fmt: skip
    assert stepped(world) == ("ModelFetched", f"commit {COMMIT} in models", LOOK_AGAIN_S)


NEWER = replace(IMAGES, fetch="registry.example/fetch:2")
"""What a newer operator is installed with."""


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "from before there was a note"])
def test_a_job_that_fetches_stays_when_a_newer_operator_writes_it_otherwise(noted: bool) -> None:
    world = with_job()
    if not noted:
        del world.children["Job", "chat-fetch"]["metadata"]["annotations"][names.INPUTS]
    world.images = NEWER
    assert stepped(world)[0] == "FetchingModel"
    assert world.actions() == []
    world.ends()
    assert stepped(world)[0] == "ModelFetched"


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "from before there was a note"])
def test_a_job_that_fetches_another_model_does_not_stay(noted: bool) -> None:
    world = with_job()
    if not noted:
        del world.children["Job", "chat-fetch"]["metadata"]["annotations"][names.INPUTS]
    world.fleet = fleet(model={"uri": "hf://org/other@main", "fetch": {"claimName": "models"}})
    assert world.actions() == [Delete("Job", "chat-fetch", "job")]


@pytest.mark.parametrize(
    "parts",
    [
        {"started": False, "waiting": ("ImagePullBackOff", "no such image")},
        {"started": False, "terminated": ("UnsupportedArchitecture", "not yet")},
        {"phase": "Failed"},
        {"terminating": True},
    ],
    ids=["no image", "refused", "failed", "deleted"],
)
def test_a_job_that_does_not_fetch_is_made_again_as_a_newer_operator_writes_it(
    parts: dict[str, Any],
) -> None:
    """What is newer may be able to do what it could not."""
    world = with_job(**parts)
    assert stepped(world)[0] == "FetchingModel"
    world.images = NEWER
    assert world.actions() == [Delete("Job", "chat-fetch", "job")]


def test_a_name_that_a_stranger_has_is_looked_at_again() -> None:
    world = Round()
    stranger = {"name": "chat-fetch", "uid": "x", "ownerReferences": []}
    world.children["Job", "chat-fetch"] = {"kind": "Job", "metadata": stranger, "spec": {}}
    assert stepped(world) == ("NameTaken", "Job chat-fetch", LOOK_AT_TAKEN_NAMES_S)


def test_a_model_in_status_counts_while_its_claim_is_the_same() -> None:
    world = with_job("Succeeded", said=SAID)
    world.actions()
    claim = ("PersistentVolumeClaim", "models")
    assert as_fetched(world.fleet, world.children) is world.fleet
    for other in ({}, {claim: {"metadata": {"uid": "new"}}}, {claim: {"metadata": {}}}):
        left = as_fetched(world.fleet, other)
        assert left.status.model is None
        assert left.spec == world.fleet.spec
    bare = Round().fleet
    assert as_fetched(bare, {}) is bare


@pytest.mark.parametrize(
    ("uri", "type_", "reason", "may"),
    [
        ("hf://org/tiny@main", None, None, True),
        ("pvc://models/a", None, None, False),
        ("pvc://models/a", "ModelFetched", "AsSpecified", False),
        ("pvc://models/a", "ModelFetched", "FetchingModel", True),
        ("pvc://models/a", "Ready", "Serving", False),
    ],
)
def test_a_job_is_looked_for_where_one_may_be(
    uri: str, type_: str | None, reason: str | None, may: bool
) -> None:
    given = {"fetch": {"claimName": "models"}} if uri.startswith("hf") else {}
    found = fleet(model={"uri": uri, **given})
    if type_ is not None:
        said = {"type": type_, "status": "True", "reason": reason, "message": "m"}
        said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        status = ServingDeploymentStatus.model_validate({"conditions": [said]})
        found = found.model_copy(update={"status": status})
    assert may_have_job(found) is may


RESULT: dict[str, Any] = {"commit": COMMIT, "path": f"hf/org--tiny/{COMMIT}", "bytes": 10}


@pytest.mark.parametrize(
    "said",
    [
        "[" * 100_000,
        json.dumps(RESULT).replace("10", "1e999"),
        json.dumps(RESULT).replace("10", "1e300"),
        json.dumps(RESULT | {"bytes": 10**100}),
        json.dumps(RESULT | {"bytes": -1}),
        json.dumps(RESULT | {"commit": "a" * 4000}),
        json.dumps(RESULT | {"path": ["hf"]}),
    ],
    ids=["brackets", "inf", "float", "long", "negative", "long commit", "path"],
)
def test_a_pod_that_says_what_status_cannot_hold_has_fetched_nothing(said: str) -> None:
    world = with_job("Succeeded", said=said)
    assert stepped(world)[0] != "ModelFetched"
    assert world.fleet.status.model is None
