"""Steps: how many pods each role is to have, and the replicas of ServingRoles.

`choose_targets` asks the scaling law when it is due, and keeps the spec's numbers otherwise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_law.decide import decide
from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.goals import Goals, Inputs
from argosy_law.observe import (
    NOT_ASKED,
    FleetMetrics,
    Front,
    Observations,
    RoleSupply,
)
from argosy_law.pace import schedules
from argosy_law.prices import EVERY_S, costs, with_costs
from argosy_law.record import to_json
from argosy_law.slo import taken
from argosy_law.state import ScalingState
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Event, EventReason, Scale, key_of
from argosy_operator.core.snapshot.objects import Object, replicas_of
from argosy_operator.core.snapshot.ownership import owner_of_replicas
from argosy_operator.core.snapshot.pods import front_of, gateways_to_ask, unheard
from argosy_operator.core.snapshot.snapshot import LoopMemory, Snapshot, role_of
from argosy_operator.core.steps.draft import LOOK_AGAIN_S, Draft, StepReason
from argosy_operator.core.steps.goals import by_law, goals_of, offers_of, windows_of

MEASURED_STARTS = 20
"""How many measured starts of a role the scaling law sees, the newest ones."""


def supply_of(snapshot: Snapshot, draft: Draft, role: RoleName, desired: int) -> RoleSupply:
    """The role's pods as the scaling law counts them."""
    pods = [pod for pod in snapshot.current(role) if pod.alive]
    ready = sum(pod.serving for pod in pods)
    starts = [seconds for of, seconds in draft.memory.starts.values() if of == role]
    return RoleSupply(
        role=role,
        desired=desired,
        ready=ready,
        pending=max(0, desired - ready),
        unschedulable=sum(pod.unschedulable is not None for pod in pods),
        draining=sum(pod.draining for pod in pods),
        cold_starts_s=tuple(starts[-MEASURED_STARTS:]),
        gpus_per_replica=snapshot.fleet.spec.role(role).resources.gpu,
        rolling=draft.rolling,
    )


def current_target(snapshot: Snapshot, role: RoleName) -> int:
    """The role's target before this round: from the ServingRole, else from its Deployments, else
    replicas.min. After an edit of the spec it may be outside the bounds."""
    bounds = snapshot.fleet.spec.role(role).replicas
    live = snapshot.owned("ServingRole").get(names.serving_role(snapshot.fleet.name, role))
    number = live["spec"].get("replicas") if live else None
    remembered = snapshot.memory.targets.get(role)
    by_hand = live is not None and owner_of_replicas(live) not in (None, names.FIELD_MANAGER)
    ours = not snapshot.fleet.spec.autoscaling.is_by_others
    if ours and by_hand and remembered is not None:
        number = remembered  # another writer scaled a ServingRole that the operator scales
    if number is None:
        # In a rollout whose new Deployment does not exist yet, the role has the pods of old ones.
        current = snapshot.deployment(role)
        old = (child for child in snapshot.retired() if role_of(child) == role)
        having = [current] if current is not None else old
        number = max(map(replicas_of, having), default=bounds.min)
    return int(number)


def front(snapshot: Snapshot, draft: Draft) -> Front:
    """What the gateways say, as the scaling law reads it."""
    since = draft.memory.unheard_since
    unheard_s = 0.0 if since is None else snapshot.monotonic - since
    return front_of(snapshot.pods, snapshot.gateway_loads, unheard_s)


def learn_starts(snapshot: Snapshot, draft: Draft) -> LoopMemory:
    """Measure the time from a pod's creation to its first readiness.

    Only of pods that were seen before it: one that is ready when it is first seen may have become
    ready for the second time.
    """
    starts, starting = dict(draft.memory.starts), set[str]()
    for pod in sorted(snapshot.pods, key=lambda pod: pod.created_at):
        seen = pod.uid in draft.memory.starting
        if not pod.alive or pod.restarts > 0 or pod.draining:
            continue
        if pod.ready_at is None and (seen or not pod.probed):
            starting.add(pod.uid)
        elif pod.ready_at is not None and seen:
            starts[pod.uid] = (pod.role, max(0.0, pod.ready_at - pod.created_at))
    newest = dict(list(starts.items())[-4 * MEASURED_STARTS :])
    return replace(draft.memory, starts=newest, starting=frozenset(starting))


REFRESH_S = 30.0
"""How often status updates the figures of a fleet under traffic, which move at every decision."""


def ask_law(
    snapshot: Snapshot, draft: Draft, current: Mapping[RoleName, int], metrics: FleetMetrics
) -> tuple[Draft, ScalingState, Decision]:
    """Ask the scaling law. A change of replicas adds an event, and the record to repeat it from."""
    goals = goals_of(snapshot.fleet.spec)
    if snapshot.gpu_cap is not None:
        cap = snapshot.gpu_cap
        goals = replace(goals, gpu_cap=cap.gpus, gpu_cap_of=cap.whose)
    supply = tuple(supply_of(snapshot, draft, role, desired) for role, desired in current.items())
    windows = windows_of(snapshot.fleet.spec)
    ahead = schedules.ahead(supply, goals.windows)
    goals = schedules.in_force(goals, windows, snapshot.now, ahead)
    if schedules.keeps_pods(windows, snapshot.now, ahead):
        goals = replace(goals, zero_after_s=None)
    if (change_s := schedules.next_change_s(windows, snapshot.now, ahead)) is not None:
        draft = draft.within(max(change_s, 1.0))
    seen = Observations(metrics, supply, front(snapshot, draft))
    # The scaling law runs on the clock of its samples, which may differ from the operator's.
    state, decision = decide(draft.memory.scaling, seen, goals, metrics.at)
    draft = _price(snapshot, draft, state, seen, goals, decision)
    moved = [t for t in decision.targets if t.replicas != t.current]
    if not moved:
        return draft, state, decision
    record = {
        "state": to_json(draft.memory.scaling),
        # Verdicts are for status: the law does not read them.
        "observations": to_json(replace(seen, metrics=replace(metrics, verdicts=(), misses=()))),
        "goals": to_json(goals),
        "now": metrics.at,
        "decision": to_json(decision),
    }
    moves = ", ".join(f"{t.role} {t.current} → {t.replicas}" for t in moved)
    message = f"{moves}: {moved[0].rule}: {decision.message}"
    event = Event(EventReason.SCALED, message, after=_writes(snapshot, moved))
    draft = replace(draft.event(event), decision=decision, record=record, scaled=True)
    return draft, state, decision


def _writes(snapshot: Snapshot, moved: Iterable[RoleTarget]) -> frozenset[str]:
    """Keys of the actions that write these targets; none where ServingRoles are missing."""
    wanted = (names.serving_role(snapshot.fleet.name, target.role) for target in moved)
    live = snapshot.owned("ServingRole")
    return frozenset(key_of(Scale("ServingRole", name, 0)) for name in wanted if name in live)


def remembered(
    snapshot: Snapshot,
    draft: Draft,
    metrics: FleetMetrics,
    state: ScalingState,
    decision: Decision,
) -> Draft:
    """The draft with what the scaling law has learnt and decided, and when it is due again."""
    next_at = snapshot.metrics_next_at
    if next_at is None:
        next_at = snapshot.monotonic + snapshot.fleet.spec.autoscaling.interval.seconds
    due = snapshot.monotonic - snapshot.memory.figures_at >= REFRESH_S
    memory = replace(
        draft.memory,
        scaling=state,
        errors=taken(
            draft.memory.errors, metrics.verdicts, goals_of(snapshot.fleet.spec).windows.scrape_s
        ),
        decision=decision,
        figures_at=snapshot.monotonic if due else snapshot.memory.figures_at,
        decide_at=next_at,
    )
    draft = replace(draft, decision=decision, figures_due=due, memory=memory)
    return draft.within(max(0.0, next_at - snapshot.monotonic))


def _price(
    snapshot: Snapshot,
    draft: Draft,
    state: ScalingState,
    seen: Observations,
    goals: Goals,
    decision: Decision,
) -> Draft:
    """Return the draft that knows what the fleet would cost on each of its GPU types."""
    offers, prices = offers_of(snapshot.fleet.spec), draft.memory.prices
    due = prices.at is None or abs(decision.at - prices.at) >= EVERY_S
    if not (offers and due and decision.active and goals.slo is not None):
        return draft
    numbers = decision.numbers
    rate = numbers.get("forecast_per_s", 0.0) * numbers.get("margin", 1.0)
    found = costs(state, Inputs(seen, goals, goals.slo, decision.at), offers, rate)
    prices = with_costs(prices, found, decision.at)
    return replace(draft, memory=replace(draft.memory, prices=prices))


UNHEARD_LOOK_S = 5.0
"""How soon to look again at a fleet at zero while a Ready gateway does not answer."""


def choose_targets(snapshot: Snapshot, draft: Draft) -> Draft:
    """Ask the scaling law when it is due; between two decisions only the spec's bounds apply."""
    spec = snapshot.fleet.spec
    memory = replace(learn_starts(snapshot, draft), heard=snapshot.heard)
    draft = replace(draft, rolling=bool(snapshot.retired()), memory=memory)
    current = {role: current_target(snapshot, role) for role, _ in spec.active_roles()}
    if spec.autoscaling.is_by_others:
        return _external(snapshot, _advised(snapshot, draft, current), current)
    draft = _heard(snapshot, draft)
    missing = any(snapshot.deployment(role) is None for role in current)
    if by_law(spec) and snapshot.metrics is not None and not missing:
        return _by_law(snapshot, draft, current, snapshot.metrics)
    not_asked = FleetMetrics(at=snapshot.now, arrivals=NOT_ASKED)
    draft, _, decision = ask_law(snapshot, draft, current, not_asked)
    draft = _with_targets(snapshot, draft, decision)
    draft = draft.within(_look_again_s(snapshot, draft, decision))
    if decision.rule in _ZERO:
        return draft.step(_ZERO[decision.rule], decision.message)
    reason = StepReason.BETWEEN_DECISIONS if by_law(spec) else StepReason.AT_MINIMUM
    return draft.step(reason, _in_words(draft.targets))


_ZERO = {Rule.SCALED_TO_ZERO: StepReason.AT_ZERO, Rule.WAKING: StepReason.WAKING}
"""Rules of a fleet at zero, and what the step reports."""


def _external(snapshot: Snapshot, draft: Draft, current: Mapping[RoleName, int]) -> Draft:
    """The targets are what others wrote to the ServingRoles, limited to the spec's bounds."""
    targets: dict[RoleName, int] = {}
    for role, asked in current.items():
        bounds = snapshot.fleet.spec.role(role).replicas
        targets[role] = given = min(max(asked, bounds.min), bounds.max)
        if given != asked:
            which = "max" if asked > given else "min"
            name = names.serving_role(snapshot.fleet.name, role)
            message = (
                f"ServingRole {name} asks for {asked} replicas and gets {given}: "
                f"spec.roles.{role}.replicas.{which} is {given}"
            )
            draft = draft.event(Event(EventReason.OUT_OF_BOUNDS, message, warning=True))
    draft = replace(draft, targets=targets, memory=replace(draft.memory, targets=targets))
    return draft.step(StepReason.EXTERNAL_OWNER, _in_words(targets))


def _by_law(
    snapshot: Snapshot, draft: Draft, current: Mapping[RoleName, int], metrics: FleetMetrics
) -> Draft:
    """The targets are what the scaling law decides from these metrics; it is due again when metrics
    are asked for again."""
    draft, state, decision = ask_law(snapshot, draft, current, metrics)
    draft = remembered(snapshot, draft, metrics, state, decision)
    draft = _with_targets(snapshot, draft, decision)
    return draft.step(_ZERO.get(decision.rule, StepReason.DECIDED), decision.message)


def _advised(snapshot: Snapshot, draft: Draft, current: Mapping[RoleName, int]) -> Draft:
    """The draft that knows what the scaling law would do, without its Event and its record, as
    nobody does it."""
    spec, metrics = snapshot.fleet.spec, snapshot.metrics
    if not by_law(spec):
        return draft
    if metrics is None or any(snapshot.deployment(role) is None for role in current):
        due_s = snapshot.memory.decide_at - snapshot.monotonic
        return draft.within(due_s if due_s > 0 else spec.autoscaling.interval.seconds)
    decided, state, decision = ask_law(snapshot, draft, current, metrics)
    draft = replace(draft, memory=decided.memory).within(decided.wake_s)
    return remembered(snapshot, draft, metrics, state, decision)


def _heard(snapshot: Snapshot, draft: Draft) -> Draft:
    """The draft that knows for how long a Ready gateway has not answered."""
    silent = snapshot.fleet.spec.goes_to_zero and unheard(snapshot.pods, snapshot.gateway_loads)
    since = draft.memory.unheard_since
    since = (snapshot.monotonic if since is None else since) if silent else None
    return replace(draft, memory=replace(draft.memory, unheard_since=since))


def _with_targets(snapshot: Snapshot, draft: Draft, decision: Decision) -> Draft:
    """The draft with the decision's targets. What was measured before a fleet went to zero says
    nothing about it now; its gateways are asked for requests until the next round."""
    targets = {target.role: target.replicas for target in decision.targets}
    memory = replace(draft.memory, targets=targets, listen=())
    if decision.rule in _ZERO:
        memory = replace(memory, decision=None)
    if decision.rule is Rule.SCALED_TO_ZERO:
        asked = gateways_to_ask(snapshot.pods)
        memory = replace(memory, listen=tuple((pod.name, pod.ip or "") for pod in asked))
    return replace(draft, targets=targets, memory=memory)


def _look_again_s(snapshot: Snapshot, draft: Draft, decision: Decision) -> float:
    """When a round must come that no event announces, in seconds."""
    scaling = snapshot.fleet.spec.autoscaling
    if decision.rule is Rule.SCALED_TO_ZERO:
        return LOOK_AGAIN_S if draft.memory.unheard_since is None else UNHEARD_LOOK_S
    if by_law(snapshot.fleet.spec):
        # Overdue: paused, or a Deployment is missing whose creation will wake the fleet.
        due_s = snapshot.memory.decide_at - snapshot.monotonic
        return due_s if due_s > 0 else scaling.interval.seconds
    if not snapshot.fleet.spec.goes_to_zero or scaling.scale_to_zero is None:
        return LOOK_AGAIN_S
    idle_s = front(snapshot, draft).idle_s or 0.0
    return max(scaling.scale_to_zero.after.seconds - idle_s, scaling.interval.seconds)


def scale_roles(snapshot: Snapshot, draft: Draft) -> Draft:
    """Write the targets to the ServingRoles, unless others scale them."""
    if snapshot.fleet.spec.autoscaling.is_by_others:
        return draft.step(StepReason.EXTERNAL_OWNER, "others write ServingRoles")
    moves = list[str]()
    for role, target in draft.targets.items():
        name = names.serving_role(snapshot.fleet.name, role)
        live = snapshot.owned("ServingRole").get(name)
        if live is None or live["spec"].get("replicas") == target:
            continue
        who = owner_of_replicas(live)
        if who not in (None, names.FIELD_MANAGER):
            draft = draft.event(_scaled_by_hand(who or "", name, live, target))
        draft = draft.act(Scale("ServingRole", name, target))
        moves.append(f"{name} {replicas_of(live)} → {target}")
    if moves:
        return draft.step(StepReason.SCALING_ROLES, ", ".join(moves))
    return draft.step(StepReason.ROLES_AT_TARGET, _in_words(draft.targets))


def _scaled_by_hand(who: str, name: str, live: Object, target: int) -> Event:
    message = (
        f"{who} scaled ServingRole {name} to {replicas_of(live)}; it was put back to {target}. "
        f"Set spec.autoscaling.policy to External to scale ServingRoles yourself"
    )
    key = key_of(Scale("ServingRole", name, target))
    return Event(EventReason.PUT_BACK, message, True, frozenset({key}))


def _in_words(targets: Mapping[RoleName, int]) -> str:
    return ", ".join(f"{role} {replicas}" for role, replicas in targets.items())
