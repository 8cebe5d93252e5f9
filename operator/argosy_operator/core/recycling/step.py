"""Step: a pod whose handovers fail is replaced, by the way of all other removals.

The pod is marked; its Deployment gets one replica more; once the others are as many as the role is
to have, the pod drains and the replica is taken back (`core/reconcile/drain.py`). The marks in the
cluster are the state, so a new operator goes on from them. When the last replacement was is noted
on the ServingRole: a network that is broken for long costs fewer and fewer pods.
"""

import re
from dataclasses import dataclass, replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import AnnotatePod, AnnotateRole, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.objects import Object, replicas_of, rfc3339, seconds
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.steps import StepReason
from argosy_operator.core.recycling.verdict import Poisoned, poisoned

_NUMBER = re.compile("[1-9][0-9]{0,99}")
PAUSE_S = 300.0
"""Least time between two such replacements in a fleet; doubled with each one in a row."""
LONGEST_PAUSE_S = 86_400.0
GIVE_UP_S = 600.0
"""How long a replacement may take to serve, or twice `coldStart` if that is longer. After that its
pod is taken back: there may be no GPU for it."""
LOOK_AT_PAIRS_S = 15.0
"""How soon to ask the gateways again while pairs fail. They report no event."""


@dataclass(frozen=True, slots=True)
class Last:
    """The last replacement of the fleet."""

    at: float
    """Seconds since the epoch."""
    in_a_row: int

    @property
    def pause_s(self) -> float:
        """How long after it there is none."""
        return min(PAUSE_S * 2.0 ** (self.in_a_row - 1), LONGEST_PAUSE_S)

    def next(self, now: float) -> "Last":
        """The one that begins now. It is the first of a row if the fleet was well for as long as
        the pause."""
        goes_on = now < self.at + 2 * self.pause_s
        return Last(now, self.in_a_row + 1 if goes_on else 1)


def recycle_pods(snapshot: Snapshot, draft: Draft) -> Draft:
    """Replace a pod that hands over with none, while its partners do with others."""
    if (pod := _marked(snapshot, draft)) is not None:
        return _go_on(snapshot, draft, pod)
    if snapshot.handovers.failing:
        draft = draft.within(LOOK_AT_PAIRS_S)
    current = (pod for role in draft.targets for pod in snapshot.current(role))
    blamed = poisoned(current, snapshot.handovers)
    if not blamed:
        count = len(snapshot.handovers.failing)
        return draft.step(StepReason.NOTHING_TO_RECYCLE, f"failing pairs: {count}")
    hindrances = [_hindrance(snapshot, draft, one.pod) for one in blamed]
    last = _last(snapshot)
    if last is not None and snapshot.now < (over := last.at + last.pause_s):
        message = f"{blamed[0]}. The next replacement may be in {over - snapshot.now:.0f} s"
        return draft.step(StepReason.RECYCLE_WAITS, message)
    for one, hindrance in zip(blamed, hindrances, strict=True):
        if hindrance is None:
            return _begin(snapshot, draft, one, last)
    return draft.step(StepReason.RECYCLE_WAITS, f"{blamed[0]}. It stays: {hindrances[0]}")


def _begin(snapshot: Snapshot, draft: Draft, one: Poisoned, last: Last | None) -> Draft:
    """Note the time where it outlives the pod, then mark the pod."""
    now, role = snapshot.now, _serving_role(snapshot, one.pod)
    assert role is not None, "without its ServingRole a pod is not replaced"
    record = Last(now, 1) if last is None else last.next(now)
    noted = {names.RECYCLED: f"{rfc3339(now)} {record.in_a_row}"}
    note = AnnotateRole(role["metadata"]["name"], role["metadata"]["uid"], noted)
    chosen = {names.RECYCLE: rfc3339(now)}
    mark = AnnotatePod(one.pod.name, one.pod.uid, chosen, after=key_of(note))
    event = Event(EventReason.RECYCLED, f"{one}. It is replaced", True, frozenset({key_of(mark)}))
    return draft.act(note, mark).event(event).step(StepReason.RECYCLING, str(one))


def _go_on(snapshot: Snapshot, draft: Draft, pod: Pod) -> Draft:
    """Until the other pods are as many as wanted, one more is; then the pod is one too many."""
    role, began_at = _role(draft, pod), pod.recycled_at
    assert began_at is not None, "the pod is marked"
    wanted, others = draft.targets[role], _others(snapshot, pod)
    if role in draft.settled:
        return draft.step(StepReason.RECYCLE_WAITS, f"{pod.name} stays: a pod changes its role")
    if others >= wanted:
        message = f"{others} other {role} pods serve; {pod.name} goes"
        return draft.step(StepReason.RECYCLING, message)
    left_s = began_at + _give_up_s(snapshot) - snapshot.now
    if left_s <= 0:
        # The replacement leaves in the next round, when the pod is not marked any more.
        unmark = AnnotatePod(pod.name, pod.uid, {names.RECYCLE: None})
        draft = replace(draft, settled=draft.settled | {role}).act(unmark).within(0.0)
        message = f"{others} of {wanted} other {role} pods serve; {pod.name} stays"
        return draft.step(StepReason.RECYCLE_GIVEN_UP, message)
    draft = replace(draft, held={**draft.held, role: wanted + 1}).within(left_s)
    message = f"{others} of {wanted} other {role} pods serve; then {pod.name} goes"
    return draft.step(StepReason.RECYCLING, message)


def _marked(snapshot: Snapshot, draft: Draft) -> Pod | None:
    """The pod that is being replaced; of several marked ones the first."""
    current = (pod for role in draft.targets for pod in snapshot.current(role))
    marked = [pod for pod in current if pod.alive and pod.recycled_at is not None]
    return min(marked, key=lambda pod: (pod.recycled_at or 0.0, pod.name), default=None)


def _hindrance(snapshot: Snapshot, draft: Draft, pod: Pod) -> str | None:
    """Why this pod may not be replaced now. Only a fleet at rest replaces one."""
    role = _role(draft, pod)
    deployment, others = snapshot.deployment(role), _others(snapshot, pod)
    if draft.rolling:
        return "a rollout is in progress"
    if draft.settled or draft.held:
        return "a pod changes its role"
    if any(other.draining and other.alive for other in snapshot.pods):
        return "another pod drains"
    if deployment is None or replicas_of(deployment) != draft.targets[role]:
        return f"the number of {role} pods changes"
    if others < max(1, draft.targets[role] - 1):
        return f"the other {role} pods do not all serve"
    if _serving_role(snapshot, pod) is None:
        return f"ServingRole {names.serving_role(snapshot.fleet.name, role)} does not exist"
    return None


def _last(snapshot: Snapshot) -> Last | None:
    """The last replacement in any role, as the ServingRoles say."""
    found = (_parsed(role) for role in snapshot.owned("ServingRole").values())
    return max((last for last in found if last is not None), key=lambda last: last.at, default=None)


def _parsed(serving_role: Object) -> Last | None:
    text = (serving_role["metadata"].get("annotations") or {}).get(names.RECYCLED, "")
    time, _, number = text.partition(" ")
    at = seconds(time)
    if at is None or not _NUMBER.fullmatch(number):
        return None
    return Last(at, min(int(number), 99))


def _serving_role(snapshot: Snapshot, pod: Pod) -> Object | None:
    for role, _ in snapshot.fleet.spec.active_roles():
        if role == pod.role:
            return snapshot.owned("ServingRole").get(names.serving_role(snapshot.fleet.name, role))
    return None


def _others(snapshot: Snapshot, pod: Pod) -> int:
    """Serving pods of its role and revision beside it."""
    same = (p for p in snapshot.pods if (p.role, p.revision) == (pod.role, pod.revision))
    return sum(other.serving and other.uid != pod.uid for other in same)


def _role(draft: Draft, pod: Pod) -> RoleName:
    return next(role for role in draft.targets if role == pod.role)


def _give_up_s(snapshot: Snapshot) -> float:
    return max(GIVE_UP_S, 2 * snapshot.fleet.spec.autoscaling.cold_start.seconds)
