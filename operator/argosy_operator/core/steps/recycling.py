"""Step: a pod whose handovers fail with partners that are in order is replaced.

A gateway says which pairs failed, since when, and when a pod had its last whole handover
(`/pairs`, designs/0011). A pod is to blame if at least two partners fail with it for a minute, hand
over with other pods meanwhile, and it hands over with none. A network that is cut between two
halves of the cluster blames no pod: each pod hands over within its half. Where nothing is handed
over at all, no partner is in order.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    AnnotatePod,
    AnnotateRole,
    Event,
    EventReason,
    key_of,
)
from argosy_operator.core.snapshot.objects import Object, replicas_of, rfc3339, seconds
from argosy_operator.core.snapshot.pods import FailingPair, Handovers, Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason

HOLD_S = 60.0
"""Least time from the first to the last failure without a success. As long as the longest pause of
the gateways between two attempts with a pod, so it takes several."""
FRESH_S = 120.0
"""What was longer ago says nothing about now: while requests come, gateways try a pod at least each
minute."""
WORKS_S = 30.0
"""A partner is in order if it has handed over so lately. Half of the hold: where nothing is handed
over any more, no partner is in order when the hold is over."""
PARTNERS = 2
"""With one partner, that one may be the reason, or the network between them."""
FAILURES_BESIDE = 2
"""Beside those with the partner that failed most: one may be bad luck, as pods that end break what
they hand over."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A pod with which handovers fail, and the partners that show it."""

    pod: Pod
    partners: tuple[tuple[str, str], ...]
    """Name of each, and the last reason."""
    fails_s: float
    """Between its first and its last failure."""

    def __str__(self) -> str:
        way = "from" if self.pod.role == "prefill" else "to"
        named = ", ".join(f"{name} ({reason})" for name, reason in self.partners)
        return (
            f"{self.pod.role} pod {self.pod.name}: for {self.fails_s:.0f} s no KV cache got {way} "
            f"it. Partners that have handed over with other pods since: {named}"
        )


def poisoned(pods: Iterable[Pod], handovers: Handovers) -> list[Poisoned]:
    """The pods to blame, those with the most partners first. `pods` may all pair with each other;
    only those that serve count."""
    serving = {pod.name: pod for pod in pods if pod.serving}
    rows = _by_pair(handovers.failing, serving)
    found = [_judge(pod, rows, handovers.whole_s) for pod in serving.values()]
    blamed = [one for one in found if one is not None]
    return sorted(blamed, key=lambda one: (-len(one.partners), -one.fails_s, one.pod.name))


def _by_pair(rows: Iterable[FailingPair], serving: Mapping[str, Pod]) -> list[FailingPair]:
    """One row for each pair of serving pods: what all gateways saw of it."""
    pairs = dict[tuple[str, str], FailingPair]()
    for row in sorted(rows, key=lambda row: -row.last_s):
        ends = (serving.get(row.prefill), serving.get(row.decode))
        if [end and end.role for end in ends] != ["prefill", "decode"]:
            continue
        before = pairs.get((row.prefill, row.decode), replace(row, failures=0))
        pairs[row.prefill, row.decode] = replace(
            row,
            since_s=max(row.since_s, before.since_s),
            failures=row.failures + before.failures,
        )
    return list(pairs.values())


def _judge(pod: Pod, rows: Iterable[FailingPair], whole_s: Mapping[str, float]) -> Poisoned | None:
    """A pod that hands over with anyone is not to blame before it has failed for the hold again."""
    last_whole_s = whole_s.get(pod.name, inf)
    own = [
        (row.decode if pod.role == "prefill" else row.prefill, row)
        for row in rows
        if pod.name in (row.prefill, row.decode) and row.last_s < last_whole_s
    ]
    # The partner has handed over since it failed here first, so with another pod.
    sound = [
        (name, row) for name, row in own if whole_s.get(name, inf) <= min(row.since_s, WORKS_S)
    ]
    failures = sorted(row.failures for _, row in sound)
    if len(sound) < PARTNERS or sum(failures[:-1]) < FAILURES_BESIDE:
        return None
    # A failure with a partner that is not in order may be that one's.
    last_s = min(row.last_s for _, row in sound)
    fails_s = min(last_whole_s, max(row.since_s for _, row in sound)) - last_s
    if last_s > FRESH_S or fails_s < HOLD_S:
        return None
    return Poisoned(pod, tuple(sorted((name, row.reason) for name, row in sound)), fails_s)


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
