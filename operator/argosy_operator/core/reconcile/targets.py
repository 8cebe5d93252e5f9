"""Steps: how many pods each role is to have, and who decides it.

The number is stored in the ServingRole: it outlives the operator there, and HPA, KEDA and `kubectl
scale` write the same field under policy External. The scaling law (`decide`) runs once per
interval, when metrics were fetched. Between two runs the number in the ServingRole stays.
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
from argosy_operator.core.fleet.snapshot import Snapshot, role_of
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.steps import StepReason
from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.decision import Decision, RoleTarget
from argosy_operator.core.scaling.estimate.profiles import prior_of
from argosy_operator.core.scaling.goals import SLO, Goals, RoleGoal, Serving, StepLimits, Windows
from argosy_operator.core.scaling.observe import NOT_ASKED, FleetMetrics, Observations, RoleSupply
from argosy_operator.core.scaling.record import to_json
from argosy_operator.core.scaling.state import ScalingState

MEASURED_STARTS = 20
"""How many measured starts of a role the scaling law sees, the newest ones."""
STEP_TOKENS, SEQUENCES = 2048, 256
"""The engine's defaults of `engine.maxNumBatchedTokens` and `engine.maxNumSeqs`."""
REFRESH_S = 30.0
"""How often status updates the figures of a fleet under traffic, which move at every decision."""


def by_law(spec: ServingDeploymentSpec) -> bool:
    """Whether the scaling law sets this fleet's replicas."""
    return spec.autoscaling.policy == "Goodput" and spec.slo is not None


def choose_targets(snapshot: Snapshot, draft: Draft) -> Draft:
    """Ask the scaling law when it is due; between two decisions only the spec's bounds apply."""
    spec = snapshot.fleet.spec
    memory = _learn_starts(snapshot, draft)
    draft = replace(draft, rolling=bool(snapshot.retired()), memory=memory)
    current = {role: current_target(snapshot, role) for role, _ in spec.active_roles()}
    if by_law(spec):
        missing = any(snapshot.deployment(role) is None for role in current)
        if snapshot.metrics is not None and not missing:
            return _by_law(snapshot, draft, current, snapshot.metrics)
        # Overdue: paused, or a Deployment is missing whose creation will wake the fleet.
        due_s = snapshot.memory.decide_at - snapshot.monotonic
        draft = draft.within(due_s if due_s > 0 else spec.autoscaling.interval.seconds)
    if spec.autoscaling.policy == "External":
        return _external(snapshot, draft, current)
    not_asked = FleetMetrics(at=snapshot.now, arrivals=NOT_ASKED)
    draft, _, decision = _decide(snapshot, draft, current, not_asked)
    targets = {target.role: target.replicas for target in decision.targets}
    draft = replace(draft, targets=targets, memory=replace(draft.memory, targets=targets))
    reason = StepReason.BETWEEN_DECISIONS if by_law(spec) else StepReason.AT_MINIMUM
    return draft.step(reason, _in_words(targets))


def scale_roles(snapshot: Snapshot, draft: Draft) -> Draft:
    """Write the targets to the ServingRoles, unless others scale them."""
    if snapshot.fleet.spec.autoscaling.policy == "External":
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


def _in_words(targets: Mapping[RoleName, int]) -> str:
    return ", ".join(f"{role} {replicas}" for role, replicas in targets.items())


def goals_of(spec: ServingDeploymentSpec) -> Goals:
    """What the user wants and allows, as the scaling law reads it."""
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
        serving=_serving(spec),
    )


def _serving(spec: ServingDeploymentSpec) -> Serving:
    """How the fleet serves. What the spec leaves to the engine is the engine's default."""
    ordered = spec.routing.queue == "deadline" and spec.slo is not None
    return Serving(
        order="deadline" if ordered else "fifo",
        step_tokens=spec.engine.max_num_batched_tokens or STEP_TOKENS,
        sequences=spec.engine.max_num_seqs or SEQUENCES,
    )


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
    ours = snapshot.fleet.spec.autoscaling.policy != "External"
    if ours and by_hand and remembered is not None:
        number = remembered  # another writer scaled a ServingRole that the operator scales
    if number is None:
        # In a rollout whose new Deployment does not exist yet, the role has the pods of old ones.
        current = snapshot.deployment(role)
        old = (child for child in snapshot.retired() if role_of(child) == role)
        having = [current] if current is not None else old
        number = max(map(replicas_of, having), default=bounds.min)
    return int(number)


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
    draft, state, decision = _decide(snapshot, draft, current, metrics)
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
    draft = draft.within(max(0.0, next_at - snapshot.monotonic))
    return draft.step(StepReason.DECIDED, decision.message)


def _decide(
    snapshot: Snapshot, draft: Draft, current: Mapping[RoleName, int], metrics: FleetMetrics
) -> tuple[Draft, ScalingState, Decision]:
    """Ask the scaling law. A change of replicas adds an event, and the record to repeat it from."""
    goals = replace(goals_of(snapshot.fleet.spec), gpu_cap=snapshot.gpu_cap)
    supply = tuple(supply_of(snapshot, draft, role, desired) for role, desired in current.items())
    seen = Observations(metrics, supply)
    # The scaling law runs on the clock of its samples, which may differ from the operator's.
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


def _writes(snapshot: Snapshot, moved: Iterable[RoleTarget]) -> frozenset[str]:
    """Keys of the actions that write these targets; none where ServingRoles are missing."""
    wanted = (names.serving_role(snapshot.fleet.name, target.role) for target in moved)
    live = snapshot.owned("ServingRole")
    return frozenset(key_of(Scale("ServingRole", name, 0)) for name in wanted if name in live)


def _scaled_by_hand(who: str, name: str, live: Object, target: int) -> Event:
    message = (
        f"{who} scaled ServingRole {name} to {replicas_of(live)}; it was put back to {target}. "
        f"Set spec.autoscaling.policy to External to scale ServingRoles yourself"
    )
    key = key_of(Scale("ServingRole", name, target))
    return Event(EventReason.PUT_BACK, message, True, frozenset({key}))
