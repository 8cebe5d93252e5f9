"""Why a pod is not ready, or is not made at all: a reason, its cause, and what to do.

It is read from the pod, and from the Deployment whose pods the API server refuses. The conditions
of a fleet say it (core/status/problems.py), and a rollout that goes back for it
(core/steps/failed_rollouts.py).
"""

import re
from dataclasses import dataclass

from argosy_law.record import parse_json
from argosy_operator.api.conditions import Reason
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, rfc3339, seconds
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Snapshot

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

CRASH_OUTPUT = 300
"""Last characters of a crashed container's output that its message shows."""

# Reasons that the kubelet gives while a container waits.
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_NO_PULL = ("InvalidImageName", "ErrImageNeverPull")
"""Of these, those after which the kubelet does not try again with more success."""
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")

REPAIR_WEBHOOK = "Repair that webhook, or exclude this namespace in its configuration"
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


def problem_of_pod(pod: Pod, fleet: ServingDeployment) -> Problem | None:
    """Return why the pod does not run. The engine's own termination message comes first."""
    failure = _load_failure(pod)
    # A pod that fetches is ready whenever it tries again.
    if failure is not None and (not pod.ready or pod.role == names.FETCH_ROLE):
        return failure
    if pod.unschedulable is not None:
        return _unschedulable(pod, pod.unschedulable, fleet)
    reason, message = pod.waiting or ("", "")
    message = quote(message)
    if reason in _PULL:
        return _image_pull(pod, reason, message, fleet.model_image)
    if reason in _CONFIG:
        return Problem(
            Reason.CONTAINER_CRASHING,
            f"the container of pod {pod.name} cannot start ({reason}): {message}. See kubectl "
            f"describe pod {pod.name}",
            pod.waits_since,
        )
    if reason == "CrashLoopBackOff" or pod.crashes:
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
        why = quote(pod.unplaced) if pod.unplaced else _NO_SCHEDULER
        state = f"has no node {since}: {why}"
    elif pod.creating:
        why = _INITIALIZES if pod.creating == "PodInitializing" else _CREATES[pod.set_up]
        state = f"is {pod.creating} {since}: {why}"
    else:
        state = f"is Pending on node {pod.node} {since}: its kubelet says nothing of it"
    message = f"pod {pod.name} {state}. See kubectl describe pod {pod.name}"
    return Problem(Reason.POD_NOT_STARTED, message, pod.waits_since, usual=not pod.unplaced)


def refusal_of_pods(deployment: Object) -> Object | None:
    """Return the condition of a Deployment that the API server refuses its pods; None if it does
    not."""
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            found: Object = condition
            return found
    return None


def problem_of_refusal(deployment: str, refusal: Object) -> Problem:
    """Return why pods are refused. An object may be on its way, and a webhook may start."""
    why, since = quote(refusal.get("message", "")), seconds(refusal.get("lastTransitionTime"))
    since = since or 0.0
    if "exceeded quota" in why:
        return Problem(Reason.QUOTA_EXCEEDED, exceeded_quota(why), since)
    remedy, again = _NAMESPACE_FORBIDS, "Kubernetes tries again by itself"
    if "failed calling webhook" in why:
        remedy = f"{REPAIR_WEBHOOK}. {again}"
    elif _SCC in why:
        remedy = (
            "Let the platform choose user ids in spec.template, or let their ServiceAccount use "
            "another security context constraint"
        )
    for kind, (said, field, where) in _MISSING.items():
        if (found := said.search(why)) is not None:
            why = f"there is no {kind} {found[1]}{where}"
            remedy = f"Create it, or correct {field} in the template. {again}"
    message = f"pods of {deployment} cannot be created: {why}. {remedy}"
    return Problem(Reason.FORBIDDEN, message, None if _LASTING.search(why) else since)


def _image_pull(pod: Pod, waiting: str, message: str, model_image: str | None) -> Problem:
    """The kubelet alternates between an error and `Back-off pulling image …: ErrImagePull:` with
    the same error behind it. Both give the same message, so that status does not change."""
    error = quote(message.rpartition("ErrImagePull: ")[2])
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
    return Problem(reason, f"{quote(why)}. {reason.action}", since)


def _unschedulable(pod: Pod, said: str, fleet: ServingDeployment) -> Problem:
    message = quote(said)
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
            f"pod {pod.name} waits for a claim that is not bound: {quote(said)}. The claim's "
            "storageClassName must be a class that exists and makes volumes of its accessModes. "
            "See kubectl describe pvc"
        )
    kind = "The cluster's default storage class"
    if fetch.storage_class_name is not None:
        kind = f"Its storage class {fetch.storage_class_name}"
    return (
        f"pod {pod.name} waits for claim {fleet.model_claim}, which is not bound: {quote(said)}. "
        f"{kind} must exist and make volumes that are {fetch.access_mode}. Correct "
        "spec.model.fetch.storageClassName or accessMode, and delete the claim: the operator makes "
        f"it again. See kubectl describe pvc {fleet.model_claim}"
    )


def quote(text: str) -> str:
    """What another program said, to stand in a sentence of ours."""
    return text.strip().rstrip(". ,:") or "no reason was given"


def unreadable_limit(pod: Pod, text: str) -> Problem:
    return Problem(
        Reason.UNREADABLE_NUMBER,
        f"pod {pod.name} has a limit that is not a number, {text}, so its GPUs are not counted. "
        "Find the webhook or controller that changes the fleet's pods",
    )


def exceeded_quota(message: str) -> str:
    return f"{message}. Raise the quota, or lower the roles' replicas or resources"
