"""Problems that keep a fleet from its spec: each has a reason, its cause, and what to do.

They are those of its pods (core/snapshot/pod_problems.py), of the Job that fetches its model, of
its templates, and of writes that failed. table.py decides which conditions a problem sets.
"""

from collections.abc import Iterable, Mapping

from argosy_operator.api.conditions import Reason
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.actions import ErrorKind, Outcome, target
from argosy_operator.core.snapshot.objects import path, rfc3339, seconds
from argosy_operator.core.snapshot.pod_problems import (
    REPAIR_WEBHOOK,
    Problem,
    exceeded_quota,
    problem_of_pod,
    problem_of_refusal,
    quote,
    refusal_of_pods,
    unreadable_limit,
)
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Failure, Snapshot
from argosy_operator.core.snapshot.template import refusals
from argosy_operator.core.steps.draft import Draft
from argosy_operator.core.steps.failures import list_failures
from argosy_operator.core.steps.models import had_no_pod, live_job, pods_of, suspension

CAPACITY = (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)
"""Problems of a cluster that has too little room."""

MOST_NAMED = 4
"""Objects that one message names; it counts the rest."""

_REJECTIONS = (ErrorKind.FORBIDDEN, ErrorKind.QUOTA, ErrorKind.TERMINATING, ErrorKind.INVALID)
"""Errors of a write that have a reason of their own; all others are WriteFailed."""


def problems_of(snapshot: Snapshot, failed: Mapping[str, Failure]) -> tuple[Problem, ...]:
    """Problems of writes, Deployments, Jobs and pods; the oldest of each reason."""
    found = _oldest(snapshot, failed)
    return tuple(p for p in found if not p.usual or p.overdue_in_s(snapshot) <= 0)


def _oldest(snapshot: Snapshot, failed: Mapping[str, Failure]) -> Iterable[Problem]:
    """Of each reason; what is usual at first is included."""
    found = [*_of_writes(snapshot, failed), *_of_templates(snapshot.fleet)]
    found += [*_of_deployments(snapshot), *_of_job(snapshot)]
    found += [unreadable_limit(pod, pod.unreadable) for pod in snapshot.pods if pod.unreadable]
    for pod in (*snapshot.pods, *_fetching(snapshot)):
        problem = problem_of_pod(pod, snapshot.fleet) if pod.alive else None
        if problem is not None:
            found.append(problem)
    oldest: dict[Reason, Problem] = {}
    for problem in found:
        known = oldest.setdefault(problem.reason, problem)
        if (problem.since or 0.0) < (known.since or 0.0):
            oldest[problem.reason] = problem
    return oldest.values()


def next_overdue_s(snapshot: Snapshot, failed: Mapping[str, Failure]) -> float:
    """Seconds until a problem becomes one that a person must solve; infinite if none does."""
    waits = (problem.overdue_in_s(snapshot) for problem in _oldest(snapshot, failed))
    return min((wait_s for wait_s in waits if wait_s > 0), default=float("inf"))


def conflicts_of(draft: Draft, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Objects with another owner whose names the fleet needs, as Deployment/chat-gateway."""
    met = [target(o.action) for o in outcomes if o.error is ErrorKind.FOREIGN]
    return tuple(sorted({*(f"{kind}/{name}" for kind, name in draft.foreign), *met}))


def failed_writes(failed: Mapping[str, Failure]) -> tuple[Failure, ...]:
    """Writes that fail for a reason without a `Problem` of its own, such as a broken webhook."""
    return tuple(f for f in list_failures(failed) if f.error not in _REJECTIONS)


def _of_writes(snapshot: Snapshot, failed: Mapping[str, Failure]) -> Iterable[Problem]:
    for failure in list_failures(failed):
        what, why = failure.what, quote(failure.message)
        match failure.error:
            case ErrorKind.FORBIDDEN:
                message = f"the API server forbids {what}: {why}. {_remedy(why)}"
                yield Problem(Reason.FORBIDDEN, message)
            case ErrorKind.QUOTA:
                since = snapshot.now - (snapshot.monotonic - failure.since)
                yield Problem(Reason.QUOTA_EXCEEDED, exceeded_quota(why), since)
            case ErrorKind.TERMINATING:
                message = "the namespace is being deleted, so nothing is created in it"
                yield Problem(Reason.DELETING, message)
            case ErrorKind.INVALID:
                message = f"the API server rejects {what}: {why}. Correct the spec"
                yield Problem(Reason.INVALID_SPEC, message)
    failures = failed_writes(failed)
    if failures:
        yield Problem(Reason.WRITE_FAILED, _cannot_write(failures))


def _of_templates(fleet: ServingDeployment) -> Iterable[Problem]:
    """What a template asks for and Argosy does not do; the pods have all the rest of it."""
    found = list(refusals(fleet.spec))
    if found:
        more = f". kubectl argosy lint shows {len(found) - 1} more" if len(found) > 1 else ""
        message = f"{path(found[0].place)} is not used: {found[0].sentence}{more}"
        yield Problem(Reason.INVALID_SPEC, message)


def _cannot_write(failures: tuple[Failure, ...]) -> str:
    """Objects and cause. They usually fail for the same reason, so only the oldest is quoted."""
    named = list(dict.fromkeys(failure.what for failure in failures))
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    why = quote(failures[0].message)
    remedy = "See the operator's log"
    if "webhook" in why:
        remedy = REPAIR_WEBHOOK
    return f"{', '.join(named[:MOST_NAMED])}{more} cannot be written: {why}. {remedy}"


def _remedy(message: str) -> str:
    """Only RBAC names the user that it refuses; webhooks and policies name themselves."""
    if 'user "' in message.lower():
        return "Add the missing rule to the operator's role"
    return "Change the fleet so that the policy allows it, or change the policy"


def _of_deployments(snapshot: Snapshot) -> Iterable[Problem]:
    for name, deployment in snapshot.owned("Deployment").items():
        refusal = refusal_of_pods(deployment)
        if refusal is not None:
            yield problem_of_refusal(name, refusal)


def _fetching(snapshot: Snapshot) -> Iterable[Pod]:
    """Pods that are to fetch the model, while it is not there."""
    job = live_job(snapshot)
    if job is None or snapshot.fleet.fetched_model is not None:
        return ()
    return pods_of(snapshot, job)


def _of_job(snapshot: Snapshot) -> Iterable[Problem]:
    """A Job whose pod is refused has no condition that says so, and no pod that could."""
    job, fetch = live_job(snapshot), snapshot.fleet.spec.model.fetch
    if job is None or snapshot.fleet.fetched_model is not None or pods_of(snapshot, job):
        return
    name, made_at = job["metadata"]["name"], seconds(job["metadata"].get("creationTimestamp"))
    since, look = made_at or snapshot.now, f"See kubectl describe job {name}"
    account = None if fetch is None else fetch.service_account_name
    if account is not None and ("ServiceAccount", account) not in snapshot.children:
        yield Problem(
            Reason.ACCOUNT_NOT_FOUND,
            f"Job {name} makes no pod: there is no ServiceAccount {account} in the namespace. "
            f"{Reason.ACCOUNT_NOT_FOUND.action}",
            since,
        )
    elif (pause := suspension(job)) is not None:
        since = seconds(pause.get("lastTransitionTime")) or since
        yield Problem(
            Reason.POD_NOT_STARTED,
            f"Job {name} has been suspended since {rfc3339(since)}: "
            f"{quote(pause.get('message', ''))}. Resume it, or wait for the queue that "
            f"suspended it. {look}",
            since,
        )
    elif had_no_pod(job):
        yield Problem(
            Reason.POD_NOT_STARTED,
            f"Job {name} has had no pod since {rfc3339(since)}: a quota, a LimitRange or a policy "
            f"of the namespace may refuse it. {look}",
            since,
            usual=True,
        )
