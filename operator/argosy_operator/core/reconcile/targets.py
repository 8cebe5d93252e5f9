"""Step: how many pods each role shall have, and who said so.

The number lives in the ServingRole: it outlives the operator, and HPA, KEDA and `kubectl scale`
turn the same knob under policy External. The law (`decide`) runs once per interval, when metrics
were asked for; between two runs the number in the ServingRole stands.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName, ServingDeploymentSpec
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Scale, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.objects import Object, replicas_of
from argosy_operator.core.fleet.ownership import owner_of_replicas
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.decision import Decision, RoleTarget
from argosy_operator.core.scaling.estimate.profiles import prior_of
from argosy_operator.core.scaling.goals import SLO, Goals, RoleGoal, StepLimits, Windows
from argosy_operator.core.scaling.observe import NOT_ASKED, FleetMetrics, Observations, RoleSupply
from argosy_operator.core.scaling.record import to_json
from argosy_operator.core.scaling.state import ScalingState

KEPT_STARTS = 20
REFRESH_S = 30.0
"""Figures of a fleet under traffic move at every tick; status updates them this often."""


def by_law(spec: ServingDeploymentSpec) -> bool:
    """Does the scaling law turn this fleet's replicas?"""
    return spec.autoscaling.policy == "Goodput" and spec.slo is not None


def choose_targets(snapshot: Snapshot, draft: Draft) -> Draft:
    """By the law when it is due; between two of its ticks by the spec's own bounds alone."""
    spec = snapshot.fleet.spec
    draft = replace(draft, rolling=bool(snapshot.retired()), memory=_learn_starts(snapshot, draft))
    standing = {role: _standing(snapshot, role) for role, _ in spec.active_roles()}
    if by_law(spec):
        if snapshot.metrics is not None and not any(
            snapshot.deployment(role) is None for role in standing
        ):
            return _by_law(snapshot, draft, standing, snapshot.metrics)
        # Overdue: paused, or a Deployment is missing whose creation will wake the fleet.
        due_s = snapshot.memory.decide_at - snapshot.monotonic
        draft = draft.within(due_s if due_s > 0 else spec.autoscaling.interval.seconds)
    if spec.autoscaling.policy == "External":
        return _external(snapshot, draft, standing)
    not_asked = FleetMetrics(at=snapshot.now, arrivals=NOT_ASKED)
    draft, _, decision = _decide(snapshot, draft, standing, not_asked)
    targets = {target.role: target.replicas for target in decision.targets}
    return replace(draft, targets=targets, memory=replace(draft.memory, targets=targets))


def scale_roles(snapshot: Snapshot, draft: Draft) -> Draft:
    """Bring the ServingRoles to the targets, where it is us who turn them."""
    if snapshot.fleet.spec.autoscaling.policy == "External":
        return draft
    for role, target in draft.targets.items():
        name = names.serving_role(snapshot.fleet.name, role)
        handle = snapshot.owned("ServingRole").get(name)
        if handle is None or handle["spec"].get("replicas") == target:
            continue
        who = owner_of_replicas(handle)
        if who not in (None, names.FIELD_MANAGER):
            draft = draft.event(_turned(who or "", name, handle, target))
        draft = draft.act(Scale("ServingRole", name, target))
    return draft


def goals_of(spec: ServingDeploymentSpec) -> Goals:
    """What the user wants and allows, in the law's words."""
    scaling, slo = spec.autoscaling, spec.slo
    return Goals(
        mode=spec.mode,
        roles=tuple(
            RoleGoal(name, role.replicas.min, role.replicas.max)
            for name, role in spec.active_roles()
        ),
        slo=None
        if slo is None
        else SLO(slo.ttft.target.seconds, slo.tpot.target.seconds, slo.attainment.fraction),
        windows=Windows(
            scrape_s=spec.metrics.scrape_interval.seconds,
            rate_s=spec.metrics.rate_window_s,
            interval_s=scaling.interval.seconds,
            up_hold_s=scaling.scale_up.stabilization.seconds,
            down_hold_s=scaling.scale_down.stabilization.seconds,
            cold_start_s=scaling.cold_start.seconds,
        ),
        steps=StepLimits(
            up_percent=scaling.scale_up.max_step_percent,
            up_pods=scaling.scale_up.max_step_pods,
            down_pods=scaling.scale_down.max_step_pods,
        ),
        gpu_budget=scaling.gpu_budget.max,
        policy="None" if scaling.policy == "None" else "Goodput",
        prior=prior_of(spec.model.uri),
    )


def supply_of(snapshot: Snapshot, draft: Draft, role: RoleName, desired: int) -> RoleSupply:
    """The role's pods as the law counts them."""
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
        cold_starts_s=tuple(starts[-KEPT_STARTS:]),
        gpus_per_replica=snapshot.fleet.spec.role(role).resources.gpu,
        rolling=draft.rolling,
    )


def _standing(snapshot: Snapshot, role: RoleName) -> int:
    """The number that stands: in the ServingRole, else in the Deployment, else the minimum. An edit
    of the spec may have left it outside the bounds."""
    bounds = snapshot.fleet.spec.role(role).replicas
    handle = snapshot.owned("ServingRole").get(names.serving_role(snapshot.fleet.name, role))
    number = handle["spec"].get("replicas") if handle else None
    remembered = snapshot.memory.targets.get(role)
    foreign = handle is not None and owner_of_replicas(handle) not in (None, names.FIELD_MANAGER)
    ours = snapshot.fleet.spec.autoscaling.policy != "External"
    if ours and foreign and remembered is not None:
        number = remembered  # turned by hand while we own it: what stood before stands
    deployment = snapshot.deployment(role)
    if number is None and deployment is not None:
        number = replicas_of(deployment)  # hold
    return bounds.min if number is None else int(number)


def _external(snapshot: Snapshot, draft: Draft, standing: Mapping[RoleName, int]) -> Draft:
    """Others turn the ServingRoles; a number beyond the spec's bounds is not followed."""
    targets: dict[RoleName, int] = {}
    for role, asked in standing.items():
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
    return replace(draft, targets=targets, memory=replace(draft.memory, targets=targets))


def _by_law(
    snapshot: Snapshot, draft: Draft, standing: Mapping[RoleName, int], metrics: FleetMetrics
) -> Draft:
    """The law's answer to these metrics, and when it is due again."""
    draft, state, decision = _decide(snapshot, draft, standing, metrics)
    next_at = snapshot.metrics_next_at
    if next_at is None:
        next_at = snapshot.monotonic + snapshot.fleet.spec.autoscaling.interval.seconds
    targets = {target.role: target.replicas for target in decision.targets}
    due = snapshot.monotonic - snapshot.memory.figures_at >= REFRESH_S
    memory = replace(
        draft.memory,
        scaling=state,
        decision=decision,
        figures_at=snapshot.monotonic if due else snapshot.memory.figures_at,
        decide_at=next_at,
        targets=targets,
    )
    draft = replace(draft, targets=targets, decision=decision, figures_due=due, memory=memory)
    return draft.within(max(0.0, next_at - snapshot.monotonic))


def _decide(
    snapshot: Snapshot, draft: Draft, standing: Mapping[RoleName, int], metrics: FleetMetrics
) -> tuple[Draft, ScalingState, Decision]:
    """Ask the law. A change of replicas leaves an Event and a record that replays to it."""
    goals = goals_of(snapshot.fleet.spec)
    supply = tuple(supply_of(snapshot, draft, role, desired) for role, desired in standing.items())
    seen = Observations(metrics, supply)
    # The law runs on the clock of its samples; the operator's own may differ from it.
    state, decision = decide(snapshot.memory.scaling, seen, goals, metrics.at)
    moved = [t for t in decision.targets if t.replicas != t.current]
    if not moved:
        return draft, state, decision
    record = {
        "state": to_json(snapshot.memory.scaling),
        "observations": to_json(seen),
        "goals": to_json(goals),
        "now": metrics.at,
        "decision": to_json(decision),
    }
    moves = ", ".join(f"{t.role} {t.current} → {t.replicas}" for t in moved)
    message = f"{moves}: {moved[0].rule}: {decision.message}"
    event = Event(EventReason.SCALED, message, after=_writes(snapshot, moved))
    draft = replace(draft.event(event), decision=decision, record=record, scaled=True)
    return draft, state, decision


def _learn_starts(snapshot: Snapshot, draft: Draft) -> LoopMemory:
    """Measured times from a pod's creation to its first readiness, of pods that were seen before
    it: a pod that was there already may have become ready for the second time."""
    starts, starting = dict(draft.memory.starts), set[str]()
    for pod in sorted(snapshot.pods, key=lambda pod: pod.created_at):
        seen = pod.uid in draft.memory.starting
        if not pod.alive or pod.restarts > 0 or pod.draining:
            continue
        if pod.ready_at is None and (seen or not pod.probed):
            starting.add(pod.uid)
        elif pod.ready_at is not None and seen:
            starts[pod.uid] = (pod.role, max(0.0, pod.ready_at - pod.created_at))
    newest = dict(list(starts.items())[-4 * KEPT_STARTS :])
    return replace(draft.memory, starts=newest, starting=frozenset(starting))


def _writes(snapshot: Snapshot, moved: Iterable[RoleTarget]) -> frozenset[str]:
    """Keys of the orders that write the changes down; none where ServingRoles are missing."""
    handles = (names.serving_role(snapshot.fleet.name, target.role) for target in moved)
    there = snapshot.owned("ServingRole")
    return frozenset(key_of(Scale("ServingRole", name, 0)) for name in handles if name in there)


def _turned(who: str, name: str, live: Object, target: int) -> Event:
    message = (
        f"{who} scaled ServingRole {name} to {replicas_of(live)}; it was put back to {target}. "
        f"Set spec.autoscaling.policy to External to scale ServingRoles yourself"
    )
    order = key_of(Scale("ServingRole", name, target))
    return Event(EventReason.PUT_BACK, message, True, frozenset({order}))
