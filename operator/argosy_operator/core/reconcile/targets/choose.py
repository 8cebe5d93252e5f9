"""Steps: how many pods each role is to have, and who decides it.

The number is stored in the ServingRole: it outlives the operator there, and HPA, KEDA and `kubectl
scale` write the same field under policy External. The scaling law (`decide`) runs once per
interval, when metrics were fetched. Between two runs the number in the ServingRole stays.
"""

from collections.abc import Mapping
from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Scale, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.objects import Object, replicas_of
from argosy_operator.core.fleet.ownership import owner_of_replicas
from argosy_operator.core.fleet.pods import gateways_to_ask, unheard
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import LOOK_AGAIN_S, Draft
from argosy_operator.core.reconcile.steps import StepReason
from argosy_operator.core.reconcile.targets.ask import ask_law, remembered
from argosy_operator.core.reconcile.targets.spec import by_law
from argosy_operator.core.reconcile.targets.supply import current_target, front, learn_starts
from argosy_operator.core.scaling.decision import Decision, Rule
from argosy_operator.core.scaling.observe import NOT_ASKED, FleetMetrics

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
