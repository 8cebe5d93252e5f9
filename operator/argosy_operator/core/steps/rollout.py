"""Step: how many pods each revision has while one replaces another.

`argosy_law/rollout.py` chooses; this step reads what exists, and `drain.py` carries it out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_law.rollout import Fleet, Group, RolloutState, Strategy, choose
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, replicas_of
from argosy_operator.core.snapshot.pods import gpus_of_template
from argosy_operator.core.snapshot.snapshot import Snapshot, role_of
from argosy_operator.core.steps.canary import canary_of, judge
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.goals import goals_of


def roll_out(snapshot: Snapshot, draft: Draft) -> Draft:
    """Divide the targets between the revisions, while pods of an old one are there."""
    old = snapshot.retired()
    if not old:
        return draft.step(StepReason.NO_OLD_REVISION, f"revision {snapshot.revision} is alone")
    split = choose(strategy_of(snapshot), fleet_of(snapshot, draft.targets))
    canary = canary_of(snapshot.fleet, snapshot.revision)
    if canary is not None:
        split, trial = judge(snapshot, canary, split)
        draft = replace(draft, trial=trial).within(goals_of(snapshot.fleet.spec).windows.interval_s)
    message = split.message
    if split.state != RolloutState.SURGE_TOO_SMALL:
        message = f"waits for {message}"
    return replace(draft, split=split).step(StepReason(split.state), message)


def strategy_of(snapshot: Snapshot) -> Strategy:
    """How the rollout goes, as the spec says."""
    rollout, canary = snapshot.fleet.spec.rollout, canary_of(snapshot.fleet, snapshot.revision)
    percent = None if canary is None else canary.percent
    return Strategy(rollout.strategy, rollout.max_surge_gpus, rollout.paused, percent)


def fleet_of(snapshot: Snapshot, targets: Mapping[RoleName, int]) -> Fleet:
    """What a rollout is chosen from, as this snapshot has it."""
    old = snapshot.retired()
    new: dict[str, Group] = {
        role: _group(snapshot, wanted, snapshot.deployment(role), wanted)
        for role, wanted in snapshot.engines.items()
    }
    roles = {role_of(child) for child in old}.difference(targets)
    former = {role: _former(snapshot, role, old) for role in roles}
    groups = tuple(_group(snapshot, child, child, child) for child in old)
    wanted: dict[str, int] = {role: targets[role] for role in targets}
    return Fleet(wanted, new, groups, former, startable=new.keys() >= targets.keys())


def _group(snapshot: Snapshot, of: Object, live: Object | None, sized: Object) -> Group:
    pods = [pod for pod in snapshot.pods_of(of) if pod.running]
    revision = str((of["metadata"].get("labels") or {}).get(names.REVISION, ""))
    return Group(
        role=role_of(of),
        revision=revision,
        gpus=max(1, gpus_of_template(sized["spec"].get("template") or {})),
        written=0 if live is None else replicas_of(live),
        running=len(pods),
        serving=sum(pod.serving for pod in pods),
        failing=sum(pod.fails for pod in pods),
        refused=revision == snapshot.asked != snapshot.revision,
    )


def _former(snapshot: Snapshot, role: str, old: Iterable[Object]) -> int:
    """How many pods a role had before the mode changed. Its ServingRole stays while it has any."""
    live = snapshot.owned("ServingRole").get(f"{snapshot.fleet.name}-{role}")
    written = sum(replicas_of(child) for child in old if role_of(child) == role)
    number = live["spec"].get("replicas") if live else None
    return written if number is None else int(number)
