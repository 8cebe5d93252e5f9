"""Step: a Job fetches the model before the engines start (designs/0029-model-sources.md)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from argosy_law.record import parse_json
from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.status import ModelStatus
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Create, Delete
from argosy_operator.core.snapshot.objects import ChildKey, Object
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.failures import LOOK_AT_TAKEN_NAMES_S


def as_fetched(fleet: ServingDeployment, children: Mapping[ChildKey, Object]) -> ServingDeployment:
    """The fleet without the model in its status, if the claim is not the one that has it."""
    known = fleet.status.model
    claim = children.get(("PersistentVolumeClaim", fleet.model_claim or ""))
    if known is None or (claim is not None and claim["metadata"].get("uid") == known.claim_uid):
        return fleet
    status = fleet.status.model_copy(update={"model": None})
    return fleet.model_copy(update={"status": status})


def may_have_job(fleet: ServingDeployment) -> bool:
    """Whether a Job is to be looked for: the model is fetched, or the one before was."""
    fetched = (c.reason for c in fleet.status.conditions if c.type == ConditionType.MODEL_FETCHED)
    return fleet.spec.model.fetch is not None or any(r != Reason.AS_SPECIFIED for r in fetched)


def live_job(snapshot: Snapshot) -> Object | None:
    """The Job as it exists, if it is ours."""
    job = snapshot.children.get(("Job", names.fetch_job(snapshot.fleet.name)))
    return job if job is not None and snapshot.is_ours(job) else None


def pods_of(snapshot: Snapshot, job: Object) -> tuple[Pod, ...]:
    """The pods of the Job that count."""
    uid = job["metadata"]["uid"]
    return tuple(pod for pod in snapshot.fetch_pods if pod.owner == uid and not pod.terminating)


def result_of(snapshot: Snapshot, pods: Iterable[Pod]) -> Object | None:
    """The model that one of these pods has fetched, as status writes it; None if none has.

    What a pod says is no result if status could not hold it.
    """
    claim = snapshot.children.get(("PersistentVolumeClaim", snapshot.fleet.model_claim or ""))
    if claim is None:
        return None
    meta = claim["metadata"]
    for pod in pods:
        try:
            said = parse_json(pod.said)
            found = {
                "uri": snapshot.fleet.spec.model.uri,
                "commit": said["commit"],
                "path": said["path"],
                "bytes": said["bytes"],
                "claimName": meta["name"],
                "claimUid": meta["uid"],
            }
            ModelStatus.model_validate(found, strict=True)
        except (ValueError, KeyError, TypeError):
            continue
        return found
    return None


def has_ended(job: Object) -> bool:
    """Whether the Job makes no more pods."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def suspension(job: Object) -> Object | None:
    """The condition that says that the Job is suspended; None if it is not."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    found = (c for c in conditions if c["type"] == "Suspended" and c["status"] == "True")
    return next(found, None)


def had_no_pod(job: Object) -> bool:
    """Whether no pod of the Job was ever counted. One that lost its pod makes another by itself,
    after a pause."""
    status = job.get("status") or {}
    return not any(status.get(count) for count in ("active", "failed", "succeeded", "terminating"))


LOOK_AT_PROGRESS_S = 10.0
"""How often to ask a pod that fetches how far it is: no event says so."""
LOOK_AT_PODS_S = 2.0
"""How soon to look whether the pods of an earlier Job are gone."""


def fetch_model(snapshot: Snapshot, draft: Draft) -> Draft:
    """Make the Job, and read what it came to. Engines are rendered once status has the commit."""
    wanted, live = snapshot.fetch_job, live_job(snapshot)
    if wanted is None:
        if live is not None:
            draft = _delete(draft, live)
        return draft.step(StepReason.MODEL_IN_PLACE, snapshot.fleet.spec.model.uri)
    if (claim := ("PersistentVolumeClaim", snapshot.fleet.model_claim)) in draft.foreign:
        draft = draft if live is None else _delete(draft, live)
        return draft.step(StepReason.NAME_TAKEN, f"{claim[0]} {claim[1]}: it is not written to")
    if (known := snapshot.fleet.fetched_model) is not None:
        return draft.step(StepReason.MODEL_FETCHED, f"commit {known.commit} in {known.claim_name}")
    name = wanted["metadata"]["name"]
    if live is None:
        return _make(snapshot, draft, wanted)
    pods = pods_of(snapshot, live)
    model = result_of(snapshot, pods)
    at_work = model is not None or any(pod.started and pod.running for pod in pods)
    if not (_rendered_as(live, wanted) or (at_work and _asked_as(live, wanted))):
        return _delete(draft, live).step(StepReason.MAKING_JOB, f"Job {name} is of before")
    if model is not None:
        found = replace(draft, model=model).within(0.0)
        return found.step(StepReason.MODEL_FETCHED, f"commit {model['commit']}")
    if has_ended(live):
        message = f"Job {name} ended, and no pod says what it fetched"
        return _delete(draft, live).step(StepReason.MAKING_JOB, message)
    of_pods = ", ".join(pod.name for pod in pods) or "no pod yet"
    if any(pod.running for pod in pods):
        draft = draft.within(LOOK_AT_PROGRESS_S)
    return draft.step(StepReason.FETCHING_MODEL, f"Job {name}: {of_pods}")


def _make(snapshot: Snapshot, draft: Draft, wanted: Object) -> Draft:
    name = wanted["metadata"]["name"]
    if ("Job", name) in snapshot.children:
        taken = replace(draft, foreign=(*draft.foreign, ("Job", name)))
        return taken.within(LOOK_AT_TAKEN_NAMES_S).step(StepReason.NAME_TAKEN, f"Job {name}")
    if left := [pod.name for pod in snapshot.fetch_pods if pod.running]:
        waits = draft.within(LOOK_AT_PODS_S)
        return waits.step(StepReason.MAKING_JOB, f"after the end of {', '.join(left)}")
    return draft.act(Create(wanted)).step(StepReason.MAKING_JOB, f"Job {name}")


def _delete(draft: Draft, live: Object) -> Draft:
    meta = live["metadata"]
    if "deletionTimestamp" in meta:
        return draft.within(LOOK_AT_PODS_S)
    return draft.act(Delete("Job", meta["name"], meta["uid"])).within(LOOK_AT_PODS_S)


def _rendered_as(live: Object, wanted: Object) -> bool:
    return _note(live, names.FETCHES) == _note(wanted, names.FETCHES)


def _asked_as(live: Object, wanted: Object) -> bool:
    """Whether the Job does what the fleet asks for now. One from before there was a note of that
    says it by its arguments."""
    note = _note(live, names.INPUTS)
    return _args(live) == _args(wanted) if note is None else note == _note(wanted, names.INPUTS)


def _args(job: Object) -> Any:
    return job["spec"]["template"]["spec"]["containers"][0]["args"]


def _note(job: Object, name: str) -> str | None:
    return (job["metadata"].get("annotations") or {}).get(name)
