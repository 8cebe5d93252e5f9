"""What keeps a fleet from its spec, in words that say what to do.

Read from pods (why they do not start), from Deployments (why no pods are created) and from orders
that failed. A Problem has a reason of the conditions' vocabulary; `status.py` decides which
condition it goes to.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from argosy_operator.api.conditions import Reason
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import ErrorKind, Failure, Outcome, target
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.failures import shown

CAPACITY = (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)

# What the engine says in its termination message, and what helps.
LOAD_FAILURES: dict[Reason, str] = {
    Reason.MODEL_NOT_FOUND: "put the weights on the volume, or correct spec.model.uri",
    Reason.WEIGHTS_INVALID: "write the weights anew as safetensors, or correct spec.model.uri",
    Reason.UNSUPPORTED_ARCHITECTURE: "choose a model whose architecture the engine knows",
    Reason.OUT_OF_MEMORY: "raise the role's resources, or lower spec.engine.maxModelLen",
    Reason.BAD_ARGUMENT: "correct spec.engine",
}
MOST_NAMED = 4
_REFUSALS = (ErrorKind.FORBIDDEN, ErrorKind.QUOTA, ErrorKind.TERMINATING, ErrorKind.INVALID)
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True, slots=True)
class Problem:
    """`reason` of the vocabulary, `message` with cause and next step, most serious first."""

    reason: Reason
    message: str


def problems_of(snapshot: Snapshot, failed: Mapping[str, Failure]) -> tuple[Problem, ...]:
    """All problems, each once: of the API, of names, of pods."""
    found = [*_of_orders(failed), *_of_deployments(snapshot)]
    found += [_unreadable(pod, pod.unreadable) for pod in snapshot.pods if pod.unreadable]
    for pod in snapshot.pods:
        problem = _of_pod(pod) if pod.alive else None
        if problem is not None:
            found.append(problem)
    first: dict[Reason, Problem] = {}
    for problem in found:
        first.setdefault(problem.reason, problem)
    return tuple(first.values())


def conflicts_of(draft: Draft, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Objects of others that hold one of our names: Deployment/chat-gateway."""
    met = [target(o.action) for o in outcomes if o.error is ErrorKind.FOREIGN]
    return tuple(sorted({*(f"{kind}/{name}" for kind, name in draft.foreign), *met}))


def failed_writes(failed: Mapping[str, Failure]) -> tuple[Failure, ...]:
    """Orders that fail for a reason that has no word of its own, such as a broken webhook."""
    return tuple(f for f in shown(failed) if f.error not in _REFUSALS)


def _of_orders(failed: Mapping[str, Failure]) -> Iterable[Problem]:
    for failure in shown(failed):
        what, why = failure.what, failure.message
        match failure.error:
            case ErrorKind.FORBIDDEN:
                message = f"the API server forbids {what}: {why}. {_who_forbids(why)}"
                yield Problem(Reason.FORBIDDEN, message)
            case ErrorKind.QUOTA:
                yield Problem(Reason.QUOTA_EXCEEDED, _quota(why))
            case ErrorKind.TERMINATING:
                yield Problem(Reason.DELETING, "the namespace is being deleted; nothing is created")
            case ErrorKind.INVALID:
                yield Problem(Reason.INVALID_SPEC, f"the API server refuses {what}: {why}")
    failures = failed_writes(failed)
    if failures:
        yield Problem(Reason.WRITE_FAILED, _failing(failures))


def _failing(failures: tuple[Failure, ...]) -> str:
    """Objects and cause. All of them mostly fail for the same reason; the oldest one is quoted."""
    named = list(dict.fromkeys(failure.what for failure in failures))
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    why = failures[0].message.rstrip(".")
    helps = "the log of the operator says more"
    if "webhook" in why:
        helps = "fix that webhook, or exclude this namespace in its configuration"
    return f"{', '.join(named[:MOST_NAMED])}{more} cannot be written: {why}. What helps: {helps}"


def _who_forbids(message: str) -> str:
    """What helps: only RBAC names the user; webhooks and policies name themselves."""
    if 'user "' in message.lower():
        return "Add the missing rule to the operator's role"
    return "Ask for what the cluster allows, or have that policy changed"


def _of_deployments(snapshot: Snapshot) -> Iterable[Problem]:
    """A Deployment whose pods cannot even be created says so in ReplicaFailure."""
    for name, deployment in snapshot.owned("Deployment").items():
        for condition in deployment.get("status", {}).get("conditions") or ():
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                message = condition.get("message", "")
                if "exceeded quota" in message:
                    yield Problem(Reason.QUOTA_EXCEEDED, _quota(message))
                else:
                    yield Problem(
                        Reason.FORBIDDEN,
                        f"pods of {name} cannot be created: {message}. Ask for what the "
                        "namespace allows, or have its policy changed",
                    )


def _of_pod(pod: Pod) -> Problem | None:
    """Why the pod does not run, the engine's own words first."""
    said = _engine_said(pod)
    if said is not None and not pod.ready:
        return said
    if pod.unschedulable is not None:
        return _unschedulable(pod, pod.unschedulable)
    reason, message = pod.trouble or ("", "")
    if reason in _PULL:
        field = "spec.engine.image"
        if pod.role == names.GATEWAY_ROLE:
            field = "images.gateway in the values of the operator's chart"
        return Problem(
            Reason.IMAGE_PULL_FAILED,
            f"the image of pod {pod.name} cannot be fetched: {_pull_error(message)}. Correct "
            f"{field}, or mirror the image",
        )
    if reason in _CONFIG:
        return Problem(
            Reason.CONTAINER_CRASHING,
            f"the container of pod {pod.name} cannot be started ({reason}): {message}",
        )
    if reason == "CrashLoopBackOff" or _crashes_again(pod):
        last = f": {pod.ended[1].strip()[-300:]}" if pod.ended else ""
        return Problem(
            Reason.CONTAINER_CRASHING,
            f"pod {pod.name} ends again and again{last}. See kubectl logs {pod.name} -p",
        )
    return None


def _pull_error(message: str) -> str:
    """The kubelet takes turns between an error and `Back-off pulling image …: ErrImagePull:` with
    the same error behind it; told as one, so that a fleet that cannot start writes nothing."""
    return message.rpartition("ErrImagePull: ")[2]


def _crashes_again(pod: Pod) -> bool:
    """Between two crashes the container runs for a moment; that is no recovery before it is
    ready."""
    return pod.ended is not None and pod.restarts > 0 and not pod.ready


def _engine_said(pod: Pod) -> Problem | None:
    """The typed termination message of the engine (designs/0001-seams.md §3)."""
    if pod.ended is None or pod.role == names.GATEWAY_ROLE:
        return None
    ended, text = pod.ended
    try:
        message = json.loads(text)
        reason, why = Reason(message["reason"]), str(message["message"])
    except (ValueError, KeyError, TypeError):
        if ended == "OOMKilled":
            return Problem(
                Reason.OUT_OF_MEMORY,
                f"pod {pod.name} was ended for using too much memory: "
                f"{LOAD_FAILURES[Reason.OUT_OF_MEMORY]}",
            )
        return None
    if reason not in LOAD_FAILURES:
        return None
    return Problem(reason, f"{why.rstrip('.')}. What helps: {LOAD_FAILURES[reason]}")


def _unschedulable(pod: Pod, message: str) -> Problem:
    if "persistentvolumeclaim" in message and "not found" in message:
        return Problem(
            Reason.CLAIM_NOT_FOUND,
            f"pod {pod.name}: {message}. Create the claim, or correct spec.model.uri",
        )
    what = f"{pod.gpus} GPUs" if pod.gpus else "room"
    return Problem(
        Reason.UNSCHEDULABLE,
        f"no node has {what} for a {pod.role} pod: {message}. Add nodes, or lower the role's "
        "replicas or resources",
    )


def _unreadable(pod: Pod, text: str) -> Problem:
    return Problem(
        Reason.UNREADABLE_NUMBER,
        f"Pod/{pod.name} has a limit that is not a number, {text}: its GPUs are not counted. Find "
        "out who changes the fleet's pods (a webhook?)",
    )


def _quota(message: str) -> str:
    return f"{message}. Have the quota raised, or lower the roles' replicas or resources"
