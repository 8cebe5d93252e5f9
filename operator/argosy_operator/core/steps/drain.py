"""How one Deployment reaches its target without cutting an answer off: the drain's state machine.

Fewer pods: choose victims; mark them with an annotation and a deletion cost, which outlive the
operator; order their engines to drain, which is repeated because the order expires; wait until
nothing runs there; then lower replicas by just those pods.
More pods: call back victims first, then raise replicas.
Nothing is remembered between two rounds. The marks on the pods and the replicas of the Deployment
are the state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    AnnotatePod,
    Delete,
    Event,
    EventReason,
    HastenDrain,
    Scale,
    TakeWorkAgain,
    key_of,
)
from argosy_operator.core.snapshot.objects import Object, owner_of_replicas, replicas_of, rfc3339
from argosy_operator.core.snapshot.pods import OUR_COST, Load, Pod, removal_order
from argosy_operator.core.snapshot.snapshot import Snapshot, drain_timeout_s, role_of
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.goals import by_law

DRAIN_LEASE_S = 60.0
"""How long an engine obeys one order to drain. A new leader acts within about 20 s of a crash. An
engine whose order expires only takes work again, and gateways still avoid its marked pod."""
RENEW_BELOW_S = 30.0


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next for one Deployment."""

    replicas: int | None = None
    """The number to write; None: it stays."""
    mark: tuple[Pod, ...] = ()
    """Victims to mark."""
    recall: tuple[Pod, ...] = ()
    """Marked pods that are needed again."""
    hasten: tuple[Pod, ...] = ()
    """Marked victims whose engines do not know yet that they drain, or soon forget it."""
    leaving: tuple[Pod, ...] = ()
    """All victims."""
    ask: bool = False
    """The choice of victims needs to know how busy each pod is."""


def next_step(
    replicas: int,
    target: int,
    pods: Sequence[Pod],
    loads: Mapping[str, Load | None],
    now: float,
    timeout_s: float,
) -> NextStep:
    """The next step from `replicas` to `target`.

    `pods` are those of this Deployment. `loads` are by pod uid, None for an engine that was asked
    and did not answer. `timeout_s` is how long a victim may finish its answers.
    """
    order = removal_order(pods, now)
    # More pods than replicas: the ReplicaSet is about to remove its first ones.
    staying = order[max(0, len(order) - replicas) :]
    called_back = tuple(pod for pod in staying if pod.victim)
    if target >= replicas:
        return NextStep(replicas=target if target > replicas else None, recall=called_back)
    # Fewer pods than replicas: those that do not exist yet need no drain.
    missing = max(0, replicas - len(order))
    unborn = min(replicas - target, missing)
    count = replicas - target - unborn
    victims, ask = _choose(staying, count, loads)
    if ask:
        return NextStep(replicas=replicas - unborn if unborn else None, ask=True)
    gone = {pod.uid for pod in victims if _finished(pod, loads, now, timeout_s)}
    lower = 0
    while lower < len(victims) and staying[lower].uid in gone:
        lower += 1
    chosen = {pod.uid for pod in victims}
    unfinished = [pod for pod in victims if pod.uid not in gone]
    return NextStep(
        replicas=replicas - unborn - lower if unborn + lower else None,
        mark=tuple(pod for pod in unfinished if not _marked(pod)),
        recall=tuple(pod for pod in called_back if pod.uid not in chosen),
        hasten=tuple(pod for pod in unfinished if _marked(pod) and not _knows(loads.get(pod.uid))),
        leaving=tuple(victims),
    )


def _choose(
    staying: Sequence[Pod],
    count: int,
    loads: Mapping[str, Load | None],
) -> tuple[list[Pod], bool]:
    """The victims, and whether the engines must be asked before they are chosen.

    Order: not started (a ReplicaSet removes Pending pods first at any cost, so they displace even
    pods that drain), draining already or being replaced, unready, then without leases, with the
    least in flight, newest. Silent engines leave last.
    """

    def rank(pod: Pod) -> tuple[float, ...]:
        if not pod.started:
            return 0, pod.assigned, -pod.created_at
        if _leaves(pod):
            return 1, not pod.victim, -pod.created_at
        if not pod.ready:
            return 2, -pod.created_at
        load = loads.get(pod.uid)
        if load is None:
            return 3, inf, inf, -pod.created_at
        return 3, load.leases > 0, load.running + load.leases, -pod.created_at

    ranked = sorted(staying, key=rank)
    serving = [pod for pod in staying if pod.started and pod.ready and not _leaves(pod)]
    idle_wanted = count - (len(staying) - len(serving))
    choice = 0 < idle_wanted < len(serving)
    return ranked[:count], choice and any(pod.uid not in loads for pod in serving)


def _finished(pod: Pod, loads: Mapping[str, Load | None], now: float, timeout_s: float) -> bool:
    """Whether nothing is lost with the pod. One that never started needs no mark if the ReplicaSet
    removes it first anyway; all others carry our mark."""
    if not pod.started and pod.phase == "Pending":
        return True
    if not _leaves_first(pod):
        return False
    if not pod.started or (pod.drain_at is not None and now - pod.drain_at >= timeout_s):
        return True
    load = loads.get(pod.uid)
    idle = load is not None and load.running == 0 and load.leases == 0
    return idle and _knows(load)


def emptied(pod: Pod, loads: Mapping[str, Load | None]) -> bool:
    """Whether a marked pod has nothing left to do, and will get nothing."""
    load = loads.get(pod.uid)
    idle = load is not None and load.running == 0 and load.leases == 0
    return pod.victim and idle and _knows(load)


def changes_role(pod: Pod, loads: Mapping[str, Load | None]) -> bool:
    """Whether a marked pod was flipped and its engine is not known to have the new role yet."""
    load = loads.get(pod.uid)
    follows = load is None or load.role != pod.role
    return pod.flipped_at is not None and pod.victim and pod.alive and follows


def _leaves(pod: Pod) -> bool:
    """Whether it drains, or is to be replaced."""
    return pod.draining or pod.recycled_at is not None


def _marked(pod: Pod) -> bool:
    """Whether it carries the mark of a pod that leaves, with a time that can be read."""
    return _leaves_first(pod) and pod.drain_at is not None


def _leaves_first(pod: Pod) -> bool:
    """Whether its cost says that it is to leave. One that was flipped a moment ago is to stay."""
    return pod.victim and pod.cost == int(OUR_COST)


def _knows(load: Load | None) -> bool:
    """Whether the engine drains, and will not forget it soon."""
    if load is None or not load.draining:
        return False
    return load.expires_in_s is None or load.expires_in_s > RENEW_BELOW_S


LOOK_AT_DRAINS_S = 1.0
"""How often to look whether a draining pod has finished. Engines report no event when they do."""


def scale_deployments(snapshot: Snapshot, draft: Draft) -> Draft:
    """Move each role's Deployment of the current revision to its replicas."""
    draft = replace(draft, memory=replace(draft.memory, ask_loads=False))
    moves = list[str]()
    for role in draft.targets:
        deployment = snapshot.deployment(role)
        fetching = draft.split is not None and role not in draft.split.new
        if deployment is None or role in draft.settled or fetching:
            continue
        replicas = draft.replicas(role)
        target = replicas if draft.rolling else draft.held.get(role, replicas)
        number_first = _number_first(snapshot, draft, role)
        draft, move = _toward(snapshot, draft, deployment, target, number_first)
        moves += [move] if move else []
    if moves:
        return draft.step(StepReason.SCALING_DEPLOYMENTS, "; ".join(moves))
    message = ", ".join(f"{role} {target}" for role, target in draft.targets.items())
    return draft.step(StepReason.DEPLOYMENTS_AT_TARGET, message)


def _number_first(snapshot: Snapshot, draft: Draft, role: RoleName) -> str | None:
    """The key of the action that writes the target to the ServingRole, under the scaling law.

    It must succeed first: if the operator died without it, the next round would find the old number
    in the ServingRole and go back to it.
    """
    if not by_law(snapshot.fleet.spec):
        return None
    name = names.serving_role(snapshot.fleet.name, role)
    scales = (a for a in draft.actions if isinstance(a, Scale))
    return next((key_of(a) for a in scales if (a.kind, a.name) == ("ServingRole", name)), None)


def retire_old_revisions(snapshot: Snapshot, draft: Draft) -> Draft:
    """Move the old Deployments to what the rollout leaves them, and delete them when they have no
    pods any more."""
    old, split = snapshot.retired(), draft.split
    if not old or split is None:
        return draft.step(StepReason.NO_OLD_REVISION, f"revision {snapshot.revision} is alone")
    moves = list[str]()
    for deployment in old:
        replicas, pods = replicas_of(deployment), snapshot.pods_of(deployment)
        meta, role = deployment["metadata"], role_of(deployment)
        target = split.old[role, str((meta.get("labels") or {}).get(names.REVISION, ""))]
        if replicas == 0 and target == 0 and not pods:
            event = Event(EventReason.ROLLED_OUT, f"the last pod of {meta['name']} is gone")
            delete = Delete("Deployment", meta["name"], meta["uid"])
            draft, move = draft.event(event).act(delete), f"delete {meta['name']}"
        else:
            grows = (
                next((r for r in draft.targets if r == role), None) if target > replicas else None
            )
            first = None if grows is None else _number_first(snapshot, draft, grows)
            draft, move = _toward(snapshot, draft, deployment, target, first)
        moves += [move] if move else []
    if moves:
        return draft.step(StepReason.RETIRING_OLD_REVISION, "; ".join(moves))
    names_of_old = ", ".join(deployment["metadata"]["name"] for deployment in old)
    return draft.step(StepReason.WAITING_FOR_NEW_REVISION, f"{names_of_old} serves on")


def _toward(
    snapshot: Snapshot, draft: Draft, deployment: Object, target: int, after: str | None = None
) -> tuple[Draft, str]:
    """The draft with the next actions for one Deployment, and what they do in words.

    `after` is the key of an action that must succeed before.
    """
    name, replicas = deployment["metadata"]["name"], replicas_of(deployment)
    timeout_s = drain_timeout_s(snapshot.fleet, deployment)
    pods = snapshot.pods_of(deployment)
    step = next_step(replicas, target, pods, snapshot.loads, snapshot.now, timeout_s)
    changing = tuple(pod for pod in step.recall if changes_role(pod, snapshot.loads))
    if changing:
        step = replace(step, recall=tuple(pod for pod in step.recall if pod not in changing))
        draft = draft.within(LOOK_AT_DRAINS_S)
    who = owner_of_replicas(deployment)
    if replicas != target and who not in (None, names.FIELD_MANAGER):
        message = (
            f"{who} scaled Deployment {name} to {replicas}; it goes back to {target}. "
            f"Scale the ServingRole instead, with spec.autoscaling.policy External"
        )
        key = key_of(Scale("Deployment", name, target))
        after_it = frozenset() if step.replicas is None else frozenset({key})
        draft = draft.event(Event(EventReason.PUT_BACK, message, True, after_it))
    draft = _pods(snapshot, draft, step, role_of(deployment), after)
    if step.replicas is not None:
        # Fewer pods only if nothing was written since the snapshot: the choice of pods rests on it.
        version = deployment["metadata"]["resourceVersion"] if step.replicas < replicas else None
        draft = draft.act(Scale("Deployment", name, step.replicas, version, after))
    if step.ask:
        draft = replace(draft, memory=replace(draft.memory, ask_loads=True)).within(0.0)
    if step.leaving:
        draft = replace(draft, leaving=draft.leaving + step.leaving).within(LOOK_AT_DRAINS_S)
    return draft, _in_words(name, replicas, step)


def _in_words(name: str, replicas: int, step: NextStep) -> str:
    parts = list[str]()
    if step.replicas is not None:
        parts.append(f"{replicas} → {step.replicas}")
    if step.recall:
        parts.append(f"calls back {_names(step.recall)}")
    if step.ask:
        parts.append("asks its engines how busy they are")
    if step.leaving:
        parts.append(f"drains {_names(step.leaving)}")
    return f"{name} {', '.join(parts)}" if parts else ""


def _pods(snapshot: Snapshot, draft: Draft, step: NextStep, role: str, after: str | None) -> Draft:
    """Add what must be done to single pods: mark them, call them back, hasten their engines."""
    for pod in step.recall:
        unmarked = {names.DRAIN: None, names.DELETION_COST: None}
        draft = draft.act(AnnotatePod(pod.name, pod.uid, unmarked, after))
        if pod.ip and pod.admin:
            draft = draft.act(TakeWorkAgain(pod.name, pod.ip, pod.uid))
    for pod in step.mark:
        began = rfc3339(snapshot.now if pod.drain_at is None else pod.drain_at)
        values = {names.DRAIN: began, names.DELETION_COST: OUR_COST}
        draft = draft.act(AnnotatePod(pod.name, pod.uid, values, after))
    for pod in (*step.mark, *step.hasten):
        if pod.ip and pod.admin:
            draft = draft.act(HastenDrain(pod.name, pod.ip, pod.uid))
    if step.recall:
        message = f"{role} pods serve on: {_names(step.recall)}"
        draft = draft.event(Event(EventReason.CALLED_BACK, message, after=_marks(step.recall)))
    if step.mark:
        message = f"{role} pods finish their answers: {_names(step.mark)}"
        draft = draft.event(Event(EventReason.DRAINING, message, after=_marks(step.mark)))
    return draft


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(pod.name for pod in pods)


def _marks(pods: Iterable[Pod]) -> frozenset[str]:
    """Keys of the actions that annotate these pods."""
    return frozenset(key_of(AnnotatePod(pod.name, pod.uid, {})) for pod in pods)
