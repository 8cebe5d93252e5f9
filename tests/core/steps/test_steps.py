"""Every step of the plan reports a reason and a message: one world in which it acts, one not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from argosy_law.observe import FleetMetrics, Idle
from argosy_law.record import VERSION, Kept, text_of
from argosy_law.state import ScalingState
from argosy_operator.api.v1alpha1.status import RefusedStatus, ServingDeploymentStatus
from argosy_operator.core.plan import CHAIN, conclude, plan
from argosy_operator.core.snapshot.actions import Apply, ErrorKind, Outcome
from argosy_operator.core.snapshot.pods import FailingPair, GatewayLoad, Handovers, SettingsRead
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import REASONS, Step, StepReason
from tests.core.steps.canaries import lost, serving, undecided
from tests.scaling import known
from tests.support.model import Model, converged, digest_of, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}
EXTERNAL = {"roles": WIDE, "autoscaling": {"policy": "External"}}


def step(world: Model | Snapshot, name: str) -> Step:
    """What the step of this name reports in the next round."""
    snapshot = world.snapshot() if isinstance(world, Model) else world
    return next(step for step in plan(snapshot).draft.steps if step.name == name)


def deleted() -> Model:
    model = converged()
    meta = {"deletion_timestamp": "2026-01-01T00:00:00Z"}
    metadata = model.fleet.metadata.model_copy(update=meta)
    model.fleet = model.fleet.model_copy(update={"metadata": metadata})
    return model


def without_service() -> Model:
    model = converged()
    del model.children["Service", "chat"]
    return model


def with_a_foreign_service() -> Model:
    model = converged()
    live = model.children["Service", "chat"]
    metadata = {**live["metadata"], "ownerReferences": []}
    model.children["Service", "chat"] = {**live, "metadata": metadata}
    return model


def measured() -> Model:
    model = converged(slo=SLO)
    model.metrics = FleetMetrics(at=model.now, arrivals=Idle(model.now))
    model.memory = replace(model.memory, decide_at=0.0)
    return model


def after_a_restart(text: str) -> Model:
    """Metrics are there, and a ConfigMap of an operator before."""
    model = measured()
    meta = {"name": "chat-learnt", "ownerReferences": [{"uid": "fleet-1"}]}
    learnt = {"kind": "ConfigMap", "metadata": meta, "data": {"learnt.json": text}}
    model.children["ConfigMap", "chat-learnt"] = learnt
    return model


def busy_for_long() -> Model:
    """What was learnt was last written an hour ago."""
    model = measured()
    model.metrics = known.metrics(model.now, 2.0, {"colocated": 1})
    model.memory = replace(
        model.memory, learnt_read=True, learnt_at=model.now + model.stepped - 3600
    )
    return model


def between_decisions() -> Model:
    model = converged(slo=SLO)
    model.memory = replace(model.memory, decide_at=1e12)
    return model


def at_zero() -> Model:
    model = converged(autoscaling={"scaleToZero": {"after": "10m"}})
    model.says(GatewayLoad(0, 600.0))
    model.converge()
    return model


def with_a_request_at_zero() -> Model:
    model = at_zero()
    model.says(GatewayLoad(1, 0.0))
    return model


def typed() -> Model:
    types = [
        {"name": name, "costPerHour": "4.10", "nodeSelector": {"gpu": name}}
        for name in ("h100", "a100")
    ]
    return converged(gpuTypes=types, roles={"colocated": {"gpuTypes": ["h100", "a100"]}})


def without_room(*full: str) -> Model:
    """Pods of a new image find no node with these types, for as long as the spec waits."""
    model = typed()
    model.room = dict.fromkeys(full, 0)
    model.edit(engine={"image": "engine:2"})
    for _ in full:
        for _ in range(3):
            model.round()
            model.tick()
        model.tick(600.0)
    return model


def asked_for_more() -> Model:
    model = converged(**EXTERNAL)
    model.scale_role("colocated", 3)
    return model


def with_raised_minimum() -> Model:
    model = converged(roles=WIDE)
    model.edit(roles={"colocated": {"replicas": {"min": 2, "max": 4}}})
    return model


def draining() -> Model:
    model = converged(**EXTERNAL)
    model.scale_role("colocated", 2)
    model.converge()
    model.requests = dict.fromkeys(model.pods, 100)
    model.scale_role("colocated", 1)
    model.round()
    return model


def with_a_new_image(**rollout: Any) -> Model:
    model = converged(rollout=rollout)
    model.edit(engine={"image": "engine:2"})
    model.round()
    return model


def with_a_new_image_that_crashes(**rollout: Any) -> Model:
    model = with_a_new_image(**rollout)
    model.tick()
    for uid, pod in model.pods.items():
        if pod.revision == model.snapshot().asked:
            model.pods[uid] = replace(pod, ready=False, restarts=3)
    return model


def with_a_new_image_that_serves() -> Model:
    model = with_a_new_image()
    for _ in range(4):
        model.tick()
    return model


def after_a_failure(wait_s: float) -> Model:
    """The Service is missing, and creating it failed this many seconds ago."""
    model = without_service()
    snapshot = model.snapshot()
    planned = plan(snapshot)
    (apply,) = (a for a in planned.actions if isinstance(a, Apply))
    outcome = Outcome(apply, ErrorKind.FORBIDDEN, "no")
    model.memory = conclude(snapshot, planned, (outcome,)).memory
    model.now += wait_s
    return model


def after_deletions(times: int) -> Model:
    """Another writer deleted the Service so often; it was created again each time but the last."""
    model = converged()
    for _ in range(times - 1):
        del model.children["Service", "chat"]
        model.round()
    del model.children["Service", "chat"]
    return model


def paused() -> Model:
    model = without_service()
    model.edit(paused=True)
    return model


FLIPS = {
    "mode": "disaggregated",
    "roles": {role: {"replicas": {"min": 1, "max": 4}} for role in ("prefill", "decode")},
    "autoscaling": {"policy": "External", "roleFlip": True},
}


def two_and_one() -> Model:
    model = converged(**FLIPS)
    model.scale_role("prefill", 2)
    model.converge()
    return model


def a_flip_is_due(rounds: int) -> Model:
    """One prefill pod too many, one decode pod too few, so many rounds ago."""
    model = two_and_one()
    model.scale_role("prefill", 1)
    model.scale_role("decode", 2)
    for _ in range(rounds):
        model.round()
    return model


def right_after_a_flip() -> Model:
    model = a_flip_is_due(5)
    model.tick()
    model.converge()
    model.scale_role("prefill", 2)
    model.scale_role("decode", 1)
    return model


def a_pod_is_sick(rounds: int = 0, *, broken: bool = False) -> Model:
    """The gateways blamed a prefill pod so many rounds ago; its replacement may never serve."""
    two = {role: {"replicas": {"min": 2, "max": 4}} for role in ("prefill", "decode")}
    model = converged(mode="disaggregated", roles=two)
    sick = min(pod.name for pod in model.pods.values() if pod.role == "prefill")
    decodes = [pod.name for pod in model.pods.values() if pod.role == "decode"]
    rows = {FailingPair(sick, d, "silent", 3, since_s=70.0, last_s=5.0) for d in decodes}
    model.handovers = Handovers(frozenset(rows), dict.fromkeys(decodes, 1.0))
    for _ in range(rounds):
        model.round()
    if broken:
        model.now += 600
    return model


def sick_in_a_role_that_grows() -> Model:
    model = a_pod_is_sick()
    model.edit(roles={role: {"replicas": {"min": 3, "max": 4}} for role in ("prefill", "decode")})
    return model


def from_a_hub() -> Model:
    """The model is to be fetched, into a claim that exists."""
    model = Model(fleet(model={"uri": "hf://org/tiny@main", "fetch": {"claimName": "models"}}))
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "models", "uid": "claim"}}
    model.children["PersistentVolumeClaim", "models"] = claim | {"spec": {}}
    return model


def being_fetched() -> Model:
    model = from_a_hub()
    job = model.snapshot().fetch_job
    assert job is not None
    model.children["Job", "chat-fetch"] = job | {"metadata": job["metadata"] | {"uid": "job"}}
    return model


def fetched() -> Model:
    model = from_a_hub()
    known = {"uri": "hf://org/tiny@main", "commit": "abc", "claimName": "models"}
    status = ServingDeploymentStatus.model_validate(
        {"model": known | {"claimUid": "claim", "path": "hf/org--tiny/abc"}}
    )
    model.fleet = model.fleet.model_copy(update={"status": status})
    return model


def renamed(*refused: str) -> Model:
    """The new name is written, and the gateways have read it only if they have refused it."""
    model = converged()
    model.settings_read = {}
    model.edit(model={"uri": "sim://opt-13b-a100", "servedNames": ["other"]})
    model.round()
    if refused:
        model.settings_read = None
        read = SettingsRead(digest_of(model.settings_of_gateways()), *refused)
        model.says(GatewayLoad(0, 1.0, settings=read))
    return model


def with_an_empty_history() -> Model:
    model = converged()
    kept = {key: child for key, child in model.children.items() if key[0] != "ControllerRevision"}
    model.children = kept
    return model


def refused(by: str = "") -> Model:
    """A fleet of two revisions of which the newer one is refused."""
    model = converged()
    old = str(model.fleet.status.revision)
    model.edit(engine={"image": "engine:2"})
    model.converge()
    asked = model.snapshot().asked
    model.refuse(RefusedStatus(revision=by or asked, message="it is slow", runs=old))
    return model


WORLDS: dict[StepReason, tuple[str, Callable[[], Model], str]] = {
    StepReason.BEING_DELETED: ("skip_if_deleting", deleted, "deleted at 2026-01-01T00:00:00Z"),
    StepReason.NOT_BEING_DELETED: ("skip_if_deleting", converged, "not being deleted"),
    StepReason.APPLYING_CHILDREN: ("apply_children", without_service, "Apply Service/chat"),
    StepReason.NAME_TAKEN: ("apply_children", with_a_foreign_service, "owner: Service/chat"),
    StepReason.CHILDREN_UP_TO_DATE: ("apply_children", converged, "children are as rendered"),
    StepReason.MODEL_IN_PLACE: ("fetch_model", converged, "sim://opt-13b-a100"),
    StepReason.MODEL_FETCHED: ("fetch_model", fetched, "commit abc in models"),
    StepReason.FETCHING_MODEL: ("fetch_model", being_fetched, "Job chat-fetch: no pod yet"),
    StepReason.MAKING_JOB: ("fetch_model", from_a_hub, "Job chat-fetch"),
    StepReason.LEARNT_READ: (
        "read_learnt",
        lambda: after_a_restart(text_of(Kept(VERSION, "aa", ScalingState()))),
        "from ConfigMap chat-learnt",
    ),
    StepReason.LEARNT_UNREADABLE: (
        "read_learnt",
        lambda: after_a_restart("{}"),
        "ConfigMap chat-learnt is not used: its version is None",
    ),
    StepReason.NOTHING_TO_READ: ("read_learnt", measured, "there is no ConfigMap chat-learnt"),
    StepReason.WRITING_LEARNT: ("write_learnt", busy_for_long, "Apply ConfigMap/chat-learnt"),
    StepReason.LEARNT_KEPT: ("write_learnt", measured, "written 0 s ago, or read then"),
    StepReason.DECIDED: ("choose_targets", measured, "colocated stays 1 (Demand: "),
    StepReason.BETWEEN_DECISIONS: ("choose_targets", between_decisions, "colocated 1"),
    StepReason.AT_MINIMUM: ("choose_targets", with_raised_minimum, "colocated 2"),
    StepReason.AT_ZERO: ("choose_targets", at_zero, "no request waits in the gateways"),
    StepReason.WAKING: ("choose_targets", with_a_request_at_zero, "colocated 0 → 1"),
    StepReason.EXTERNAL_OWNER: ("choose_targets", asked_for_more, "colocated 3"),
    StepReason.CREATING_WORKLOADS: (
        "create_workloads",
        lambda: Model(fleet()),
        "Create ServingRole/chat-colocated, Create Deployment/chat-colocated-",
    ),
    StepReason.WORKLOADS_EXIST: ("create_workloads", converged, "of colocated"),
    StepReason.SCALING_ROLES: ("scale_roles", with_raised_minimum, "chat-colocated 1 → 2"),
    StepReason.ROLES_AT_TARGET: ("scale_roles", converged, "colocated 1"),
    StepReason.ANY_GPU: ("choose_gpu_types", converged, "no role has gpuTypes"),
    StepReason.GPU_TYPES_STAY: ("choose_gpu_types", typed, "colocated h100"),
    StepReason.GPU_TYPES_CHANGE: (
        "choose_gpu_types",
        lambda: without_room("h100"),
        "colocated goes on with GPU type a100: pod chat-colocated-",
    ),
    StepReason.NO_GPU_TYPE_HAS_ROOM: (
        "choose_gpu_types",
        lambda: without_room("h100", "a100"),
        "colocated stays on a100: none of its gpuTypes has room",
    ),
    StepReason.ROLE_FLIP_OFF: ("flip_roles", converged, "spec.autoscaling.roleFlip is false"),
    StepReason.NO_FLIP_NEEDED: ("flip_roles", two_and_one, "prefill 2 of 2, decode 1 of 1"),
    StepReason.FLIP_WAITS: ("flip_roles", right_after_a_flip, "the next one may be after 30 s"),
    StepReason.FLIP_DRAINS: ("flip_roles", lambda: a_flip_is_due(0), "is yet to be chosen"),
    StepReason.FLIPPING: ("flip_roles", lambda: a_flip_is_due(2), "is empty and becomes a decode"),
    StepReason.ROLE_CHANGING: ("flip_roles", lambda: a_flip_is_due(4), "finishes to become one"),
    StepReason.NOTHING_TO_RECYCLE: ("recycle_pods", converged, "failing pairs: 0"),
    StepReason.RECYCLE_WAITS: (
        "recycle_pods",
        sick_in_a_role_that_grows,
        "It stays: the number of prefill pods changes",
    ),
    StepReason.RECYCLING: ("recycle_pods", a_pod_is_sick, "for 65 s no KV cache got from it"),
    StepReason.RECYCLE_GIVEN_UP: (
        "recycle_pods",
        lambda: a_pod_is_sick(2, broken=True),
        "1 of 2 other prefill pods serve; chat-prefill-",
    ),
    StepReason.SCALING_DEPLOYMENTS: ("scale_deployments", draining, "drains chat-colocated-"),
    StepReason.DEPLOYMENTS_AT_TARGET: ("scale_deployments", converged, "colocated 1"),
    StepReason.WAITING_FOR_NEW_REVISION: (
        "retire_old_revisions",
        with_a_new_image,
        " serves on",
    ),
    StepReason.RETIRING_OLD_REVISION: (
        "retire_old_revisions",
        with_a_new_image_that_serves,
        "drains chat-colocated-",
    ),
    StepReason.NO_OLD_REVISION: ("retire_old_revisions", converged, "is alone"),
    StepReason.NEW_PODS_START: (
        "roll_out",
        with_a_new_image,
        "waits for 1 colocated pods of the new revision to serve",
    ),
    StepReason.OLD_PODS_LEAVE: (
        "roll_out",
        with_a_new_image_that_serves,
        "waits for 1 colocated old pods to finish their answers",
    ),
    StepReason.SURGE_TOO_SMALL: (
        "roll_out",
        lambda: with_a_new_image(maxSurgeGPUs=0),
        "maxSurgeGPUs: 1 or more",
    ),
    StepReason.ROLLOUT_PAUSED: (
        "roll_out",
        lambda: with_a_new_image(paused=True),
        "waits for spec.rollout.paused: false",
    ),
    StepReason.CANARY_SERVES: ("roll_out", lambda: serving().model, "until the canary is lost"),
    StepReason.CANARY_UNDECIDED: ("roll_out", lambda: undecided().model, "more verdicts: "),
    StepReason.CANARY_LOST: (
        "roll_out",
        lambda: lost(onFailure="Hold").model,
        "the canary is lost",
    ),
    StepReason.NOTHING_FAILED: ("go_back", converged, "no rollout can go back"),
    StepReason.FAILURE_HELD: (
        "go_back",
        lambda: with_a_new_image_that_crashes(onFailure="Hold"),
        "keeps crashing",
    ),
    StepReason.GOING_BACK: ("go_back", with_a_new_image_that_crashes, "takes its place"),
    StepReason.NOTHING_REFUSED: ("heed_refusal", converged, "not set"),
    StepReason.REVISION_REFUSED: ("heed_refusal", refused, ": it is slow"),
    StepReason.REFUSAL_DROPPED: (
        "heed_refusal",
        lambda: refused("00000000"),
        "of revision 00000000 is dropped: the spec asks for another revision now",
    ),
    StepReason.HISTORY_WAITS: ("record_history", with_a_new_image, "the newest revision in it is"),
    StepReason.RECORDING_HISTORY: (
        "record_history",
        with_an_empty_history,
        "Apply ControllerRevision/chat-",
    ),
    StepReason.HISTORY_KEPT: ("record_history", converged, "1 revisions, the newest "),
    StepReason.SETTINGS_IN_USE: ("await_settings", converged, "True of this generation"),
    StepReason.SETTINGS_PENDING: ("await_settings", renamed, "waits for chat-gateway-"),
    StepReason.SETTINGS_REFUSED: (
        "await_settings",
        lambda: renamed("--served-name is missing"),
        ": --served-name is missing",
    ),
    StepReason.WAITING_AFTER_FAILURE: (
        "back_off_failed_actions",
        lambda: after_a_failure(4.0),
        "Apply Service/chat; the next attempt is in 6 s",
    ),
    StepReason.RETRYING_FAILED_ACTIONS: (
        "back_off_failed_actions",
        lambda: after_a_failure(10.0),
        "Apply Service/chat",
    ),
    StepReason.NO_FAILED_ACTION: ("back_off_failed_actions", without_service, "nothing waits"),
    StepReason.WAITING_AFTER_CONFLICT: (
        "back_off_field_conflicts",
        lambda: after_deletions(6),
        "Service chat was gone: 1 s",
    ),
    StepReason.REVERTING_CHANGES: (
        "back_off_field_conflicts",
        lambda: after_deletions(1),
        "Service chat was gone",
    ),
    StepReason.NO_FIELD_CONFLICT: ("back_off_field_conflicts", converged, "nothing is reverted"),
    StepReason.PAUSED: ("skip_if_paused", paused, "left out: Apply Service/chat"),
    StepReason.NOT_PAUSED: ("skip_if_paused", without_service, "to do: Apply Service/chat"),
}
"""For each reason: the step, a world in which the step reports it, and a part of its message."""


@pytest.mark.parametrize("reason", StepReason)
def test_every_reason_is_reported_in_some_world_with_a_message_about_it(
    reason: StepReason,
) -> None:
    name, world, message = WORLDS[reason]
    found = step(world(), name)
    assert found.reason == reason
    assert message in found.message


def test_every_step_has_reasons_for_acting_and_for_not_acting() -> None:
    assert list(REASONS) == [link.__name__ for link in CHAIN]
    assert min(len(reasons) for reasons in REASONS.values()) >= 2
    assert {reason for reasons in REASONS.values() for reason in reasons} == set(StepReason)


@pytest.mark.parametrize("world", [world for _, world, _ in WORLDS.values()])
def test_every_step_reports_once_in_the_order_of_the_chain(world: Callable[[], Model]) -> None:
    reported = [found.name for found in plan(world().snapshot()).draft.steps]
    names = [link.__name__ for link in CHAIN]
    assert reported == names or reported == ["skip_if_deleting"]


def test_a_deleted_fleet_ends_the_chain_at_its_first_step() -> None:
    assert [found.name for found in plan(deleted().snapshot()).draft.steps] == ["skip_if_deleting"]
