"""Problems that keep a fleet from its spec: each has a reason, its cause, and what to do.

They are read from pods (why one does not start), from Deployments (why no pod is created) and from
writes that failed. table.py decides which conditions a problem sets.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from argosy_law.record import parse_json
from argosy_operator.api.conditions import Reason
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import ErrorKind, Outcome, target
from argosy_operator.core.snapshot.objects import path, rfc3339, seconds
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Failure, Snapshot
from argosy_operator.core.snapshot.template import refusals
from argosy_operator.core.steps.draft import Draft
from argosy_operator.core.steps.failures import list_failures
from argosy_operator.core.steps.models import had_no_pod, live_job, pods_of, suspension

CAPACITY = (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)
"""Problems of a cluster that has too little room."""

LOAD_FAILURES = (
    Reason.MODEL_NOT_FOUND,
    Reason.WEIGHTS_INVALID,
    Reason.UNSUPPORTED_ARCHITECTURE,
    Reason.OUT_OF_MEMORY,
    Reason.BAD_ARGUMENT,
)
"""Reasons that an engine gives in its termination message."""

FETCH_FAILURES = (
    Reason.SOURCE_FORBIDDEN,
    Reason.SOURCE_NOT_FOUND,
    Reason.ONLY_PICKLES,
    Reason.VOLUME_FULL,
    Reason.VOLUME_NOT_WRITABLE,
    Reason.FILES_INCOMPLETE,
    Reason.SOURCE_UNREACHABLE,
    Reason.ACCOUNT_NOT_FOUND,
)
"""Why a model is not fetched, beside some reasons of an engine. The Job gives all but the last."""
_FETCH_AGAIN = (Reason.FILES_INCOMPLETE, Reason.SOURCE_UNREACHABLE)
"""Of these, those that the Job's next try may solve."""

_IMAGE_VALUES = {
    names.FETCH_ROLE: "images.fetch",
    names.GATEWAY_ROLE: "images.gateway",
}
"""By role: the chart's value with the image of pods whose image the spec does not name."""

MOST_NAMED = 4
"""Objects that one message names; it counts the rest."""

CRASH_OUTPUT = 300
"""Last characters of a crashed container's output that its message shows."""

_REJECTIONS = (ErrorKind.FORBIDDEN, ErrorKind.QUOTA, ErrorKind.TERMINATING, ErrorKind.INVALID)
"""Errors of a write that have a reason of their own; all others are WriteFailed."""

# Reasons that the kubelet gives while a container waits.
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_NO_PULL = ("InvalidImageName", "ErrImageNeverPull")
"""Of these, those after which the kubelet does not try again with more success."""
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


_REPAIR_WEBHOOK = "Repair that webhook, or exclude this namespace in its configuration"
_NAMESPACE_FORBIDS = (
    "Change the fleet so that the namespace allows its pods, or change the namespace's policy"
)

# Why the API server refuses pods that a controller creates, in the words of its admission plug-ins.
_SCC = "security context constraint"
_LASTING = re.compile(rf"violates PodSecurity|{_SCC}|(?:usage|ratio) per (?:Container|Pod) is")
"""Pod Security, OpenShift and LimitRanges look at the pod alone: the same pod is refused again."""
_MISSING = {
    "ServiceAccount": (
        re.compile(r"error looking up service account [^ /]+/([^ :]+): .*not found"),
        "serviceAccountName",
        " in the namespace",
    ),
    "PriorityClass": (
        re.compile(r"no PriorityClass with name (\S+) was found"),
        "priorityClassName",
        "",
    ),
    "RuntimeClass": (re.compile(r'RuntimeClass "([^"]+)" not found'), "runtimeClassName", ""),
}
"""By kind of an object that pods name: how its absence is said, the field, and where it lies."""


_UNBOUND = re.compile(
    "unbound (immediate )?PersistentVolumeClaim|available persistent volumes to bind|"
    "binding volumes"
)
"""What the scheduler says of a pod whose claim has no volume."""
_CREATES = {
    False: "its volumes are not mounted, or it has no network. A Secret, a ConfigMap or a claim of "
    "its volumes may be missing, or a driver of its node fails",
    True: "its volumes and its network are there, so the node still pulls an image, or its runtime "
    "hangs",
    None: "it waits for its volumes, its network or its image",
}
"""What a container that is not made waits for, by `Pod.set_up`."""
_INITIALIZES = "an init container, which a webhook has added, has not ended"
_NO_SCHEDULER = (
    "no scheduler says why. Correct schedulerName in the template if there is no such scheduler, "
    "or see kubectl describe pvc if a claim of it has no volume"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a fleet is not as specified."""

    reason: Reason
    message: str
    """Cause, then what to do."""
    since: float | None = None
    """For one that often ends by itself: since when it lasts, in seconds since the epoch. None:
    waiting does not solve it."""
    usual: bool = False
    """Every pod is so at first: it is a problem only once it is overdue."""

    def overdue_in_s(self, snapshot: Snapshot) -> float:
        """Seconds until a person must act; at most 0 from then on."""
        if self.since is None:
            return 0.0
        return self.since + snapshot.fleet.spec.progress_deadline.seconds - snapshot.now


def problems_of(snapshot: Snapshot, failed: Mapping[str, Failure]) -> tuple[Problem, ...]:
    """Problems of writes, Deployments, Jobs and pods; the oldest of each reason."""
    found = _oldest(snapshot, failed)
    return tuple(p for p in found if not p.usual or p.overdue_in_s(snapshot) <= 0)


def _oldest(snapshot: Snapshot, failed: Mapping[str, Failure]) -> Iterable[Problem]:
    """Of each reason; what is usual at first is included."""
    found = [*_of_writes(snapshot, failed), *_of_templates(snapshot.fleet)]
    found += [*_of_deployments(snapshot), *_of_job(snapshot)]
    found += [_unreadable(pod, pod.unreadable) for pod in snapshot.pods if pod.unreadable]
    for pod in (*snapshot.pods, *_fetching(snapshot)):
        problem = _of_pod(pod, snapshot.fleet) if pod.alive else None
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
        what, why = failure.what, _said(failure.message)
        match failure.error:
            case ErrorKind.FORBIDDEN:
                message = f"the API server forbids {what}: {why}. {_remedy(why)}"
                yield Problem(Reason.FORBIDDEN, message)
            case ErrorKind.QUOTA:
                since = snapshot.now - (snapshot.monotonic - failure.since)
                yield Problem(Reason.QUOTA_EXCEEDED, _quota(why), since)
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
    why = _said(failures[0].message)
    remedy = "See the operator's log"
    if "webhook" in why:
        remedy = _REPAIR_WEBHOOK
    return f"{', '.join(named[:MOST_NAMED])}{more} cannot be written: {why}. {remedy}"


def _remedy(message: str) -> str:
    """Only RBAC names the user that it refuses; webhooks and policies name themselves."""
    if 'user "' in message.lower():
        return "Add the missing rule to the operator's role"
    return "Change the fleet so that the policy allows it, or change the policy"


def _of_deployments(snapshot: Snapshot) -> Iterable[Problem]:
    """A Deployment whose pods cannot be created has the condition ReplicaFailure."""
    for name, deployment in snapshot.owned("Deployment").items():
        for condition in deployment.get("status", {}).get("conditions") or ():
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                since = seconds(condition.get("lastTransitionTime")) or 0.0
                yield _not_created(name, _said(condition.get("message", "")), since)


def _not_created(name: str, why: str, since: float) -> Problem:
    """Why a Deployment has no pods. An object may be on its way, and a webhook may start."""
    if "exceeded quota" in why:
        return Problem(Reason.QUOTA_EXCEEDED, _quota(why), since)
    remedy, again = _NAMESPACE_FORBIDS, "Kubernetes tries again by itself"
    if "failed calling webhook" in why:
        remedy = f"{_REPAIR_WEBHOOK}. {again}"
    elif _SCC in why:
        remedy = (
            "Let the platform choose user ids in spec.template, or let their ServiceAccount use "
            "another security context constraint"
        )
    for kind, (said, field, where) in _MISSING.items():
        if (found := said.search(why)) is not None:
            why = f"there is no {kind} {found[1]}{where}"
            remedy = f"Create it, or correct {field} in the template. {again}"
    message = f"pods of {name} cannot be created: {why}. {remedy}"
    return Problem(Reason.FORBIDDEN, message, None if _LASTING.search(why) else since)


def _of_pod(pod: Pod, fleet: ServingDeployment) -> Problem | None:
    """Why the pod does not run. The engine's own termination message comes first."""
    failure = _load_failure(pod)
    # A pod that fetches is ready whenever it tries again.
    if failure is not None and (not pod.ready or pod.role == names.FETCH_ROLE):
        return failure
    if pod.unschedulable is not None:
        return _unschedulable(pod, pod.unschedulable, fleet)
    reason, message = pod.waiting or ("", "")
    message = _said(message)
    if reason in _PULL:
        return _image_pull(pod, reason, message, fleet.model_image)
    if reason in _CONFIG:
        return Problem(
            Reason.CONTAINER_CRASHING,
            f"the container of pod {pod.name} cannot start ({reason}): {message}. See kubectl "
            f"describe pod {pod.name}",
            pod.waits_since,
        )
    if reason == "CrashLoopBackOff" or _crashes_again(pod):
        last = pod.terminated[1].strip().rstrip(".")[-CRASH_OUTPUT:] if pod.terminated else ""
        output = f": {last}" if last else ""
        return Problem(
            Reason.CONTAINER_CRASHING,
            f"pod {pod.name} keeps crashing{output}. See kubectl logs {pod.name} --previous",
            pod.waits_since,
        )
    return _not_started(pod, fleet)


def _not_started(pod: Pod, fleet: ServingDeployment) -> Problem | None:
    """A pod that waits and does not say for what: the events of the pod do, which the operator does
    not read."""
    if pod.ready or (pod.phase != "Pending" and not pod.creating):
        return None
    since = f"since {rfc3339(pod.waits_since)}"
    if _UNBOUND.search(pod.unplaced):
        return Problem(Reason.POD_NOT_STARTED, _unbound(pod, fleet, pod.unplaced), pod.waits_since)
    if not pod.assigned:
        why = _said(pod.unplaced) if pod.unplaced else _NO_SCHEDULER
        state = f"has no node {since}: {why}"
    elif pod.creating:
        why = _INITIALIZES if pod.creating == "PodInitializing" else _CREATES[pod.set_up]
        state = f"is {pod.creating} {since}: {why}"
    else:
        state = f"is Pending on node {pod.node} {since}: its kubelet says nothing of it"
    message = f"pod {pod.name} {state}. See kubectl describe pod {pod.name}"
    return Problem(Reason.POD_NOT_STARTED, message, pod.waits_since, usual=not pod.unplaced)


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
            f"{_said(pause.get('message', ''))}. Resume it, or wait for the queue that "
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


def _image_pull(pod: Pod, waiting: str, message: str, model_image: str | None) -> Problem:
    """The kubelet alternates between an error and `Back-off pulling image …: ErrImagePull:` with
    the same error behind it. Both give the same message, so that status does not change."""
    error = _said(message.rpartition("ErrImagePull: ")[2])
    value = _IMAGE_VALUES.get(pod.role)
    field = f"{value} in the values of the operator's chart" if value else "spec.engine.image"
    what, remedy = "its image", "copy the image to where the nodes can pull it"
    # The kubelet gives both images the same reason; runtimes name the one that they pulled.
    if value is None and model_image is not None and model_image in message:
        what, field = "the model", "spec.model.uri"
        remedy = "name a pull secret of its registry in imagePullSecrets of spec.template.spec"
    return Problem(
        Reason.IMAGE_PULL_FAILED,
        f"pod {pod.name} cannot pull {what}: {error}. Correct {field}, or {remedy}",
        None if waiting in _NO_PULL else pod.waits_since,
    )


def _crashes_again(pod: Pod) -> bool:
    """Between two crashes the container runs for a moment, but it is not ready then."""
    return pod.terminated is not None and pod.restarts > 0 and not pod.ready


def _load_failure(pod: Pod) -> Problem | None:
    """From the engine's typed termination message (designs/0001-seams.md §3)."""
    if pod.terminated is None or pod.role == names.GATEWAY_ROLE:
        return None
    ended, text = pod.terminated
    since = None
    try:
        message = parse_json(text)
        reason, why = Reason(message["reason"]), str(message["message"])
    except (ValueError, KeyError, TypeError):
        if ended != "OOMKilled":
            return None
        reason, why = Reason.OUT_OF_MEMORY, f"pod {pod.name} was killed: it used too much memory"
        since = pod.waits_since
    if pod.role == names.FETCH_ROLE:
        since = pod.waits_since if reason in _FETCH_AGAIN else None
    if reason not in (*LOAD_FAILURES, *FETCH_FAILURES):
        return None
    return Problem(reason, f"{_said(why)}. {reason.action}", since)


def _unschedulable(pod: Pod, said: str, fleet: ServingDeployment) -> Problem:
    message = _said(said)
    if "persistentvolumeclaim" in message and "not found" in message:
        return Problem(
            Reason.CLAIM_NOT_FOUND,
            f"pod {pod.name}: {message}. Create the claim, or correct spec.model.uri",
        )
    if _UNBOUND.search(message):
        return Problem(Reason.UNSCHEDULABLE, _unbound(pod, fleet, message), pod.waits_since)
    what = f"{pod.gpus} GPUs" if pod.gpus else "room"
    return Problem(
        Reason.UNSCHEDULABLE,
        f"no node has {what} for a {pod.role} pod: {message}. Add nodes, or lower the role's "
        "replicas or resources",
        pod.waits_since,
    )


def _unbound(pod: Pod, fleet: ServingDeployment, said: str) -> str:
    """More nodes do not help a pod whose claim has no volume. Which claim it is the scheduler does
    not say; a pod that fetches has one."""
    fetch = fleet.spec.model.fetch
    if pod.role != names.FETCH_ROLE or fetch is None or fetch.size is None:
        return (
            f"pod {pod.name} waits for a claim that is not bound: {_said(said)}. The claim's "
            "storageClassName must be a class that exists and makes volumes of its accessModes. "
            "See kubectl describe pvc"
        )
    kind = "The cluster's default storage class"
    if fetch.storage_class_name is not None:
        kind = f"Its storage class {fetch.storage_class_name}"
    return (
        f"pod {pod.name} waits for claim {fleet.model_claim}, which is not bound: {_said(said)}. "
        f"{kind} must exist and make volumes that are {fetch.access_mode}. Correct "
        "spec.model.fetch.storageClassName or accessMode, and delete the claim: the operator makes "
        f"it again. See kubectl describe pvc {fleet.model_claim}"
    )


def _said(text: str) -> str:
    """What another program said, to stand in a sentence of ours."""
    return text.strip().rstrip(". ,:") or "no reason was given"


def _unreadable(pod: Pod, text: str) -> Problem:
    return Problem(
        Reason.UNREADABLE_NUMBER,
        f"pod {pod.name} has a limit that is not a number, {text}, so its GPUs are not counted. "
        "Find the webhook or controller that changes the fleet's pods",
    )


def _quota(message: str) -> str:
    return f"{message}. Raise the quota, or lower the roles' replicas or resources"
