"""Step: a Job fetches the model, once per commit, before a pod asks for a GPU.

The Job is never changed: one that was rendered otherwise is deleted, and made again once its pods
are gone, so that two do not write to one folder. While it fetches what the fleet asks for, another
rendering does not count: it comes from another version of the operator or of the chart's values.
"""

from dataclasses import replace
from typing import Any

from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Create, Delete
from argosy_operator.core.fleet.objects import Object
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.models.job import has_ended, live_job, pods_of, result_of
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.failures import LOOK_AT_TAKEN_NAMES_S
from argosy_operator.core.reconcile.steps import StepReason

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
