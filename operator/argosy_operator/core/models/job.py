"""What the Job that fetches a model has come to, read from its pods."""

from collections.abc import Iterable, Mapping

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.conditions.reasons import Reason
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.status import ModelStatus
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import ChildKey, Object
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.scaling.text.record import parse_json


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
    return fleet.spec.model.fetch is not None or any(r != Reason.IN_PLACE for r in fetched)


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
