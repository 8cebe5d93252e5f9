"""Step: a rollout that has failed goes back by itself.

It only writes the mark `status.refused`; `refusals.py` has what follows from it. A rollout has
failed when its canary is lost, or a pod of the revision that comes keeps crashing, or is not ready
in time. All of it is read from the pods and from status, so nothing has to be kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from argosy_law.rollout import RolloutState
from argosy_operator.api.conditions import LARGEST_MESSAGE
from argosy_operator.core.snapshot.actions import Event, EventReason, Refuse, key_of
from argosy_operator.core.snapshot.history import Past
from argosy_operator.core.snapshot.objects import rfc3339, seconds
from argosy_operator.core.snapshot.pod_problems import (
    problem_of_pod,
    problem_of_refusal,
    refusal_of_pods,
)
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason

CRASHES = 3
"""Restarts of a pod that is not ready, after which it is given up."""
SLOW_START = 3
"""A pod may take this many times the median start of its role, where that is longer than
`spec.progressDeadline`: a model that is ready after 8 minutes gets 24, since a node that must come,
an image that is not on it, or another model easily takes twice as long."""
_NOT_JUDGED = (
    RolloutState.FETCHING_MODEL,
    RolloutState.ROLLOUT_PAUSED,
    RolloutState.SURGE_TOO_SMALL,
)
"""States in which no new pods are asked for, or a person holds them."""


@dataclass(frozen=True, slots=True)
class RolloutFailure:
    """Why a rollout has failed."""

    reason: str
    """One word that scripts can match."""
    message: str


def go_back(snapshot: Snapshot, draft: Draft) -> Draft:
    """Refuse the revision that comes if its rollout has failed."""
    past = _revision_of_before(snapshot)
    if past is None or (draft.split is not None and draft.split.state in _NOT_JUDGED):
        return draft.step(StepReason.NOTHING_FAILED, "no rollout can go back, or none has failed")
    found, wait_s = _failure(snapshot, draft)
    if found is None:
        draft = draft.within(wait_s) if wait_s < inf else draft
        return draft.step(StepReason.NOTHING_FAILED, f"revision {snapshot.revision} comes")
    message = f"revision {snapshot.revision} has failed: {found.message}"
    if snapshot.fleet.spec.rollout.on_failure == "Hold":
        return draft.step(StepReason.FAILURE_HELD, message)
    mark = {
        "revision": snapshot.revision,
        "reason": found.reason,
        "message": found.message[:LARGEST_MESSAGE],
        "since": rfc3339(snapshot.now),
        "runs": past.revision,
    }
    meta = snapshot.fleet.metadata
    refuse = Refuse(snapshot.fleet.name, meta.uid, meta.resource_version, mark)
    said = f"revision {past.revision} takes its place: {message}"
    event = Event(EventReason.GOING_BACK, said, warning=True, after=frozenset({key_of(refuse)}))
    return draft.event(event).act(refuse).within(0.0).step(StepReason.GOING_BACK, said)


def _revision_of_before(snapshot: Snapshot) -> Past | None:
    """Return what a rollout can go back to; None without a rollout to a revision that is not yet
    the newest of the history. It never goes back from going back."""
    if snapshot.refusal is not None and snapshot.refusal.runs is not None:
        return None
    history = snapshot.history
    if not history or history[0].revision == snapshot.revision:
        return None
    others = (past for past in history if past.revision != snapshot.revision)
    return next((past for past in others if past.spec is not None), None)


def _failure(snapshot: Snapshot, draft: Draft) -> tuple[RolloutFailure | None, float]:
    """Return why the rollout has failed, or in how many seconds it may have."""
    if draft.split is not None and draft.split.state == RolloutState.CANARY_LOST:
        assert draft.trial is not None
        new, old = draft.trial.new, draft.trial.old
        return RolloutFailure(
            "CanaryLost",
            f"{new.met:.0f} of {new.count:.0f} requests of it met the SLO, and {old.met:.0f} of "
            f"{old.count:.0f} of the old revision in the same time",
        ), 0.0
    pods = [pod for role in snapshot.engines for pod in snapshot.current(role) if pod.alive]
    for pod in pods:
        if pod.crashes and pod.restarts >= CRASHES:
            return RolloutFailure("Crashing", _why(pod, snapshot)), 0.0
    wait_s = inf
    for what, since, patience_s in (*_late_pods(snapshot, pods), *_refused_pods(snapshot)):
        left_s = since + patience_s - snapshot.now
        if left_s <= 0:
            late = f"{patience_s:g} s after a pod was asked for, {what}"
            return RolloutFailure("ProgressDeadline", late), 0.0
        wait_s = min(wait_s, left_s)
    return None, wait_s


def _late_pods(snapshot: Snapshot, pods: list[Pod]) -> Iterator[tuple[str, float, float]]:
    """Yield pods that are not ready: what is wrong, since when, and how long that may last."""
    spec = snapshot.fleet.spec
    for pod in pods:
        if pod.ready or pod.draining or pod.terminating:
            continue
        patience_s = _patience_s(snapshot, pod.role)
        if pod.unschedulable is not None and len(spec.gpu_types) > 1:
            # Its role may go to another GPU type first.
            patience_s += spec.autoscaling.gpu_type_fallback.seconds
        yield _why(pod, snapshot), max(pod.created_at, pod.waits_since), patience_s


def _why(pod: Pod, snapshot: Snapshot) -> str:
    """Return what is wrong with a pod that is not ready."""
    problem = problem_of_pod(pod, snapshot.fleet)
    return f"pod {pod.name} is not ready" if problem is None else problem.message


def _patience_s(snapshot: Snapshot, role: str) -> float:
    """Return how long a pod of the role may take to be ready."""
    before = getattr(snapshot.fleet.status.roles, role, None)
    measured_s = 0.0 if before is None else before.ready_in_s
    return max(snapshot.fleet.spec.progress_deadline.seconds, SLOW_START * measured_s)


def _refused_pods(snapshot: Snapshot) -> Iterator[tuple[str, float, float]]:
    """Yield Deployments whose pods the API server refuses, by a quota or a policy."""
    for role in snapshot.engines:
        deployment = snapshot.deployment(role) or {}
        refusal = refusal_of_pods(deployment)
        if refusal is not None:
            what = problem_of_refusal(deployment["metadata"]["name"], refusal).message
            since = seconds(refusal.get("lastTransitionTime"))
            since = snapshot.now if since is None else since
            yield what, since, snapshot.fleet.spec.progress_deadline.seconds
