"""How many pods each revision has while one replaces another: the rollout's state machine.

`choose` takes what exists now and returns the replicas of every Deployment, with the state that the
rollout is in. It remembers nothing: a round that finds any mixture of pods goes on from there, so
the operator may die between any two writes (designs/0034-rollouts.md has the table of states,
docs/how-to/rollouts.md what users see of it).

A set is one pod of each role of the mode: a prefill and a decode pod, or one colocated pod. Only
pods of one revision work together, so sets change places, and not pods.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal


class RolloutState(StrEnum):
    """What a rollout does. The operator's step `roll_out` reports it as its reason."""

    FETCHING_MODEL = "FetchingModel"
    NEW_PODS_START = "NewPodsStart"
    OLD_PODS_LEAVE = "OldPodsLeave"
    SURGE_TOO_SMALL = "SurgeTooSmall"
    ROLLOUT_PAUSED = "RolloutPaused"
    CANARY_SERVES = "CanaryServes"
    CANARY_UNDECIDED = "CanaryUndecided"
    CANARY_LOST = "CanaryLost"


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a rollout goes, as `spec.rollout` says."""

    name: Literal["Paced", "BlueGreen", "Recreate"] = "Paced"
    surge: int | None = None
    """GPUs that Paced may use beyond those of before; None: those of one set."""
    paused: bool = False
    canary: int | None = None
    """Percent of the pods that the new revision gets for now; None: all of them."""


Counts = Mapping[str, int]
"""Pods by role."""
OldPods = Mapping[tuple[str, str], int]
"""Pods by role and revision."""


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of one role and revision, as they are."""

    role: str
    revision: str
    gpus: int
    """GPUs of one pod. A pod without any counts as one."""
    written: int = 0
    """Replicas of its Deployment; 0 without one."""
    running: int = 0
    """Pods that hold GPUs, those that are being deleted included."""
    serving: int = 0
    failing: int = 0
    """Pods that are not ready and say why: they find no node, or their container does not start."""
    refused: bool = False
    """The revision is not to be run: what of it does not serve leaves at once."""

    @property
    def held(self) -> int:
        """GPUs of its pods, and of replicas that are written but have no pod yet."""
        return self.gpus * max(self.written, self.running)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a rollout is chosen from."""

    wanted: Counts
    """Pods that each role of the spec is to have, as the scaling law or another writer says."""
    new: Mapping[str, Group]
    """The spec's revision, by role."""
    old: Sequence[Group]
    """All other revisions. After several edits in a rollout there is more than one."""
    former: Counts
    """Pods that roles had which the mode does not use any more."""
    startable: bool = True
    """Whether pods of the new revision may be made: not before its model is fetched."""

    @property
    def base(self) -> Counts:
        """Pods that the old revisions have while none of the new serves."""
        roles = {group.role for group in self.old}
        return {role: self.wanted.get(role, self.former.get(role, 0)) for role in sorted(roles)}

    @property
    def steps(self) -> int:
        """In how many steps the new revision comes: the pods of the largest role."""
        return max(self.wanted.values(), default=0)

    @property
    def old_steps(self) -> int:
        """In how many steps the old ones go. Another number only after a change of the mode."""
        return max(self.base.values(), default=0)

    @property
    def served(self) -> int:
        """How many steps of the new revision serve."""
        serving = {role: group.serving for role, group in self.new.items()}
        return _last(range(self.steps + 1), lambda step: _within(self.come(step), serving))

    @property
    def failing(self) -> bool:
        """Whether pods of the new revision do not start."""
        return any(group.failing for group in self.new.values())

    def come(self, step: int) -> Counts:
        """New pods after so many steps: each role by its share, so that the first is a set."""
        return {role: _share(n, step, self.steps) for role, n in self.wanted.items()}

    def stay(self, step: int) -> Counts:
        """Old pods after so many steps: a set is left until the last step."""
        if step >= self.old_steps:
            return dict.fromkeys(self.base, 0)
        return {
            role: min(n, max(1, n - _share(n, step, self.old_steps)))
            for role, n in self.base.items()
        }

    def divide(self, pods: Counts, *, grows: bool) -> OldPods:
        """Spread so many old pods over the old revisions.

        The revision of which the most sets serve keeps its pods first. With `grows` it also gets
        those that are lacking, in roles that the mode still has.
        """
        revisions = sorted({group.revision for group in self.old}, key=self._rank)
        idle = {r for r in revisions if self._refused(r) and not self._sets(r)}
        grows = grows and revisions[0] not in idle
        left, given = dict(pods), dict[tuple[str, str], int]()
        for group in sorted(self.old, key=lambda group: revisions.index(group.revision)):
            most = min(group.written, group.serving) if group.refused else group.written
            number = 0 if group.revision in idle else min(most, left[group.role])
            given[group.role, group.revision] = number
            left[group.role] -= number
        for role, lacking in left.items():
            if grows and role in self.wanted and (role, revisions[0]) in given:
                given[role, revisions[0]] += lacking
        return given

    def _rank(self, revision: str) -> tuple[int, int, int, str]:
        groups = [group for group in self.old if group.revision == revision]
        serving = sum(group.serving for group in groups)
        written = sum(group.written for group in groups)
        return -self._sets(revision), -serving, -written, revision

    def _sets(self, revision: str) -> int:
        """Sets of an old revision that serve."""
        serving = {group.role: group.serving for group in self.old if group.revision == revision}
        return min(serving.get(role, 0) for role in self.base)

    def _refused(self, revision: str) -> bool:
        return any(group.refused for group in self.old if group.revision == revision)

    def of_new(self, pods: Counts) -> int:
        """GPUs of so many new pods."""
        return sum(self.new[role].gpus * n for role, n in pods.items())

    def of_old(self, pods: OldPods) -> int:
        """GPUs of so many old pods."""
        return sum(group.gpus * pods[group.role, group.revision] for group in self.old)

    @property
    def before(self) -> int:
        """GPUs that the fleet may have without a surge: what the wanted pods need, in whichever
        revision they are larger."""
        most = {role: max(g.gpus for g in self.old if g.role == role) for role in self.base}
        return max(self.of_new(self.wanted), sum(most[role] * n for role, n in self.base.items()))


@dataclass(frozen=True, slots=True)
class Split:
    """How a rollout divides the fleet's pods between its revisions, for now."""

    state: RolloutState
    message: str
    """What it waits for; of SURGE_TOO_SMALL, what to write."""
    new: Mapping[str, int]
    """Replicas of the revision that comes, by role."""
    old: Mapping[tuple[str, str], int]
    """Replicas of the others, by role and revision."""


def choose(strategy: Strategy, fleet: Fleet) -> Split:
    """The replicas of each Deployment for now."""
    if not fleet.startable:
        old = fleet.divide(fleet.base, grows=True)
        return Split(RolloutState.FETCHING_MODEL, "the model of the new revision", {}, old)
    if fleet.steps == 0:
        return _say(fleet, fleet.wanted, fleet.divide(fleet.stay(fleet.old_steps), grows=False))
    if strategy.paused:
        return _held(strategy.surge, fleet)
    if strategy.name == "Recreate":
        return _recreate(fleet)
    if strategy.canary is not None:
        return _canary(strategy, strategy.canary, fleet)
    if strategy.name == "BlueGreen":
        return _blue_green(fleet)
    return _paced(strategy.surge, fleet)


def _recreate(fleet: Fleet) -> Split:
    """All old pods leave before one new pod is made. New ones that are there already stay."""
    old = fleet.divide(fleet.stay(fleet.old_steps), grows=False)
    left = any(group.held for group in fleet.old)
    return _say(fleet, _keep(fleet) if left else fleet.wanted, old)


def _blue_green(fleet: Fleet) -> Split:
    """The old pods leave when all new ones serve."""
    ready = fleet.served == fleet.steps
    stay = fleet.stay(fleet.old_steps) if ready else fleet.base
    return _say(fleet, fleet.wanted, fleet.divide(stay, grows=not ready))


def _canary(strategy: Strategy, percent: int, fleet: Fleet) -> Split:
    """Only so many steps of the new revision come. The old ones keep the rest of the number, and
    under BlueGreen all of it."""
    end = _share(fleet.steps, percent, 100)
    whole = strategy.name == "BlueGreen"
    split = _paced(fleet.of_new(fleet.come(end)) if whole else strategy.surge, fleet, end, whole)
    serves = all(group.serving >= split.new.get(role, 0) for role, group in fleet.new.items())
    if split.state == RolloutState.SURGE_TOO_SMALL or fleet.served < end or not serves:
        return split
    message = "the verdict on the new revision"
    return replace(split, state=RolloutState.CANARY_SERVES, message=message)


def _paced(surge: int | None, fleet: Fleet, end: int | None = None, whole: bool = False) -> Split:
    """Sets change places within the GPUs of before and the surge, as far as the step `end`. With
    `whole` no old one leaves for one that comes.

    The old ones keep what the new do not serve yet. As many new ones start as fit beside them; if
    not even the next step does, as many old ones leave as it needs, once the step before serves.
    """
    first = fleet.come(1)
    surge = fleet.of_new(first) if surge is None else surge
    most = fleet.before + surge
    stops, end = end is not None, fleet.steps if end is None else end
    gone = fleet.served * fleet.old_steps // fleet.steps
    if stops:
        gone = 0 if whole else min(gone, fleet.old_steps - 1)
    # The first pods show whether the revision starts at all. Until then the old ones grow.
    proven = fleet.served > 0
    grows = fleet.failing or not proven or stops
    probe = _last(range(1, fleet.steps + 1), lambda step: fleet.of_new(fleet.come(step)) <= surge)
    kept = _keep(fleet)
    if fleet.failing and not proven:
        kept = _least(kept, fleet.come(probe))

    def fits(new: Counts, step: int) -> bool:
        old = fleet.divide(fleet.stay(step), grows=grows)
        return fleet.of_new(new) + fleet.of_old(old) <= most

    top = min(end, (0 if fleet.failing else fleet.steps) if proven else probe)
    beside = _last(range(top + 1), lambda step: fits(_most(kept, fleet.come(step)), gone))
    goal = _most(kept, fleet.come(beside))
    begun = _within(first, kept)
    all_serve = all(fleet.new[role].serving >= n for role, n in kept.items())
    if goal == kept and (all_serve or not begun) and not (begun and fleet.failing):
        at = _last(range(fleet.steps + 1), lambda step: _within(fleet.come(step), kept))
        goal = _most(kept, fleet.come(min(at + 1, end)))
    last = fleet.old_steps if proven and not stops else fleet.old_steps - 1
    leave = next((step for step in range(gone, last + 1) if fits(goal, step)), None)
    if leave is None and not begun:
        least = fleet.of_old(fleet.divide(fleet.stay(last), grows=False))
        return _block(fleet, fleet.of_new(first) + least - fleet.before, most)
    old = fleet.divide(fleet.stay(gone if leave is None else leave), grows=grows)
    return _within_room(fleet, kept, goal if grows else fleet.wanted, old, most)


def _held(surge: int | None, fleet: Fleet) -> Split:
    """The pods of all revisions stay, and those that drain are called back. The old ones grow."""
    most = fleet.before + (fleet.of_new(fleet.come(1)) if surge is None else surge)
    gone = fleet.served * fleet.old_steps // fleet.steps
    there = {
        role: min(n, sum(group.written for group in fleet.old if group.role == role))
        for role, n in fleet.base.items()
    }
    old = fleet.divide(_most(there, fleet.stay(gone)), grows=True)
    kept = _keep(fleet)
    split = _within_room(fleet, kept, kept, old, most)
    return replace(split, state=RolloutState.ROLLOUT_PAUSED, message="spec.rollout.paused: false")


def _keep(fleet: Fleet) -> Counts:
    """Return the new pods that were asked for before, and are still wanted."""
    return {role: min(fleet.new[role].written, n) for role, n in fleet.wanted.items()}


def _within_room(fleet: Fleet, kept: Counts, goal: Counts, old: OldPods, most: int) -> Split:
    """What of it may be written now: pods that drain or end still hold their GPUs."""
    held_new = sum(group.held for group in fleet.new.values())
    held_old = sum(group.held for group in fleet.old)
    reserved = sum(max(g.held, g.gpus * old[g.role, g.revision]) for g in fleet.old)

    def by(step: int) -> Counts:
        return _most(kept, _least(goal, fleet.come(step)))

    def more(pods: Counts) -> int:
        """GPUs that these would add."""
        growth = {role: max(0, n - fleet.new[role].written) for role, n in pods.items()}
        return fleet.of_new(growth)

    steps = range(fleet.steps + 1)
    new = by(_last(steps, lambda step: held_new + more(by(step)) + reserved <= most))
    allowed = _grow_within(fleet, old, most - held_new - more(new) - held_old)
    return _say(fleet, new, allowed)


def _grow_within(fleet: Fleet, old: OldPods, free: int) -> OldPods:
    """Return the old pods with no more new ones among them than so many free GPUs hold."""
    allowed = dict(old)
    for group in fleet.old:
        growth = max(0, old[group.role, group.revision] - group.written)
        given = min(growth, max(0, free // group.gpus))
        allowed[group.role, group.revision] -= growth - given
        free -= group.gpus * given
    return allowed


def _block(fleet: Fleet, need: int, most: int) -> Split:
    """Return that nothing goes on: the last old set waits for a new one, which has no room."""
    message = (
        "the last old pods leave when new ones serve in their place, and both together need "
        f"{need} GPUs more than the fleet has (a pod without GPUs counts as one). Write "
        f"spec.rollout.maxSurgeGPUs: {need} or more; or strategy: Recreate, with which no request "
        "is answered until the new pods serve"
    )
    held = sum(group.held for group in (*fleet.new.values(), *fleet.old))
    old = _grow_within(fleet, fleet.divide(fleet.base, grows=True), most - held)
    return Split(RolloutState.SURGE_TOO_SMALL, message, dict.fromkeys(fleet.wanted, 0), old)


def _say(fleet: Fleet, new: Counts, old: OldPods) -> Split:
    """The split with its state, and what it waits for."""
    leaving, lacking = dict[str, int](), dict[str, int]()
    for group in fleet.old:
        more = max(group.written, group.running) - old[group.role, group.revision]
        if more > 0:
            leaving[group.role] = leaving.get(group.role, 0) + more
    for role, n in new.items():
        if n > fleet.new[role].serving:
            lacking[role] = n - fleet.new[role].serving
    if leaving or not lacking:
        message = f"{_in_words(leaving) or 'no'} old pods to finish their answers"
        return Split(RolloutState.OLD_PODS_LEAVE, message, new, old)
    message = f"{_in_words(lacking)} pods of the new revision to serve"
    return Split(RolloutState.NEW_PODS_START, message, new, old)


def _share(pods: int, step: int, steps: int) -> int:
    """The pods of a role after so many of all steps, rounded up."""
    return -(-pods * step // steps) if steps else 0


def _last(steps: Sequence[int], holds: Callable[[int], bool]) -> int:
    """The last step for which it holds; the first one if it holds for none."""
    return next((step for step in reversed(steps) if holds(step)), steps[0])


def _within(pods: Counts, others: Counts) -> bool:
    return all(n <= others.get(role, 0) for role, n in pods.items())


def _most(one: Counts, other: Counts) -> Counts:
    return {role: max(n, other[role]) for role, n in one.items()}


def _least(one: Counts, other: Counts) -> Counts:
    return {role: min(n, other[role]) for role, n in one.items()}


def _in_words(pods: Counts) -> str:
    return ", ".join(f"{n} {role}" for role, n in pods.items())
