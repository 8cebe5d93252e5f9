"""How one Deployment reaches its target without cutting an answer off: the drain's state machine.

Fewer pods: choose victims; mark them with an annotation and a deletion cost, which outlive the
operator; order their engines to drain, which is repeated because the order expires; wait until
nothing runs there; then lower replicas by just those pods.
More pods: call back victims first, then raise replicas.
Nothing is remembered between two rounds. The marks on the pods and the replicas of the Deployment
are the state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from argosy_operator.api.v1alpha1.routing import Drain, VictimRule
from argosy_operator.core.fleet.pods import OUR_COST, Load, Pod, removal_order

DRAIN_LEASE_S = 60.0
"""How long an engine obeys one order to drain. A new leader acts within about 20 s of a crash. An
engine whose order expires only takes work again, and gateways still avoid its marked pod."""
RENEW_BELOW_S = 30.0
_OF_LOAD: frozenset[VictimRule] = frozenset(("withoutLeases", "fewestInFlight"))


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
    rules: Sequence[VictimRule] = Drain().victim_order,
) -> NextStep:
    """The next step from `replicas` to `target`.

    `pods` are those of this Deployment. `loads` are by pod uid, None for an engine that was asked
    and did not answer. `timeout_s` is how long a victim may finish its answers. `rules` order the
    serving pods.
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
    victims, ask = _choose(staying, count, loads, rules)
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
    rules: Sequence[VictimRule],
) -> tuple[list[Pod], bool]:
    """The victims, and whether the engines must be asked before they are chosen.

    Order: not started (a ReplicaSet removes Pending pods first at any cost, so they displace even
    pods that drain), draining already or being replaced, unready, then by `rules`, newest.
    """

    def rank(pod: Pod) -> tuple[float, ...]:
        if not pod.started:
            return 0, pod.assigned, -pod.created_at
        if _leaves(pod):
            return 1, not pod.victim, -pod.created_at
        if not pod.ready:
            return 2, -pod.created_at
        places = (_place(rule, pod, loads.get(pod.uid)) for rule in rules)
        return 3, *places, -pod.created_at

    ranked = sorted(staying, key=rank)
    serving = [pod for pod in staying if pod.started and pod.ready and not _leaves(pod)]
    idle_wanted = count - (len(staying) - len(serving))
    choice = 0 < idle_wanted < len(serving) and not _OF_LOAD.isdisjoint(rules)
    return ranked[:count], choice and any(pod.uid not in loads for pod in serving)


def _place(rule: VictimRule, pod: Pod, load: Load | None) -> float:
    """Where the rule has a serving pod; the lowest leaves first, a silent engine last."""
    match rule:
        case "withoutLeases":
            return inf if load is None else float(load.leases > 0)
        case "fewestInFlight":
            return inf if load is None else load.running + load.leases
        case "newest":
            return -pod.created_at
        case "oldest":
            return pod.created_at


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
