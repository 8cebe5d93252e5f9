"""Steps: how many pods each role is to have, and the replicas of ServingRoles.

`choose_targets` asks the scaling law when it is due, and keeps the spec's numbers otherwise. What
the law has learnt is kept in the ConfigMap `<fleet>-learnt`. It is read once, by the operator that
has just started or begun to lead, and written about once in half a hold while requests come
(designs/0019-restart.md). `bid_of` is what the fleet asks of the GPU budget that fleets share.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_law.decide import decide
from argosy_law.decision import Decision, RoleTarget, Rule, lacks_metrics
from argosy_law.goals import Goals, Inputs, Windows, removal_hold_s
from argosy_law.observe import (
    NOT_ASKED,
    FleetMetrics,
    Front,
    Observations,
    RoleSupply,
)
from argosy_law.pace import schedules
from argosy_law.prices import EVERY_S, costs, with_costs
from argosy_law.record import (
    VERSION,
    Kept,
    UnusableError,
    kept_of,
    resumed,
    text_of,
    to_json,
)
from argosy_law.signals.validity import why_unavailable
from argosy_law.slo import taken
from argosy_law.state import FirstTokens, ScalingState
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.core.budgets import Bid
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    Apply,
    Event,
    EventReason,
    Outcome,
    Scale,
    key_of,
    target,
)
from argosy_operator.core.snapshot.objects import Object, owner_of_replicas, replicas_of
from argosy_operator.core.snapshot.pods import Start, front_of, gateways_to_ask, unheard
from argosy_operator.core.snapshot.snapshot import LoopMemory, Snapshot, role_of
from argosy_operator.core.steps.draft import LOOK_AGAIN_S, Draft, StepReason
from argosy_operator.core.steps.goals import by_law, goals_of, offers_of, windows_of

MEASURED_STARTS = 20
"""How many measured starts of a role the scaling law sees, the newest ones."""


def supply_of(snapshot: Snapshot, draft: Draft, role: RoleName, desired: int) -> RoleSupply:
    """The role's pods as the scaling law counts them, of all revisions: all of them serve."""
    pods = [pod for pod in snapshot.pods if pod.role == role and pod.alive]
    revisions = _revisions_that_serve(snapshot)
    learnt = snapshot.revision if snapshot.revision in revisions else next(iter(revisions), "")
    ready = sum(pod.serving for pod in pods)
    starts = tuple(start.seconds for start in draft.memory.starts_of(role, learnt))
    return RoleSupply(
        role=role,
        desired=desired,
        ready=ready,
        pending=max(0, desired - ready),
        unschedulable=sum(pod.unschedulable is not None for pod in pods),
        draining=sum(pod.draining for pod in pods),
        cold_starts_s=starts[-MEASURED_STARTS:],
        gpus_per_replica=snapshot.fleet.spec.role(role).resources.gpu,
        rolling=draft.rolling,
        mixed=draft.rolling and (len(revisions) > 1 or learnt == snapshot.revision),
        revision=learnt,
        old_pods=tuple(
            pod.name for pod in snapshot.pods if pod.role == role and pod.revision != learnt
        ),
    )


def _revisions_that_serve(snapshot: Snapshot) -> list[str]:
    """Return the revisions of which a set serves, the one with the most pods first."""
    roles = {role for role, _ in snapshot.fleet.spec.active_roles()}
    serving = [pod for pod in snapshot.pods if pod.serving and pod.role in roles]
    pods = Counter(pod.revision for pod in serving)
    found = {(pod.revision, pod.role) for pod in serving}
    whole = [one for one in pods if all((one, role) in found for role in roles)]
    return sorted(whole, key=lambda one: (-pods[one], one))


def current_target(snapshot: Snapshot, role: RoleName) -> int:
    """The role's target before this round: from the ServingRole; else, in a rollout, from the round
    before; else from its Deployment; else replicas.min. After an edit of the spec it may be outside
    the bounds."""
    bounds = snapshot.fleet.spec.role(role).replicas
    live = snapshot.owned("ServingRole").get(names.serving_role(snapshot.fleet.name, role))
    number = live["spec"].get("replicas") if live else None
    remembered = snapshot.memory.targets.get(role)
    by_hand = live is not None and owner_of_replicas(live) not in (None, names.FIELD_MANAGER)
    ours = not snapshot.fleet.spec.autoscaling.is_by_others
    if ours and by_hand and remembered is not None:
        number = remembered  # another writer scaled a ServingRole that the operator scales
    current = snapshot.deployment(role)
    old = [child for child in snapshot.retired() if role_of(child) == role]
    if number is None and old:
        # Its pods are divided between revisions: none of the Deployments has the number.
        before = getattr(snapshot.fleet.status.roles, role)
        number = remembered if remembered is not None or before is None else before.desired
    if number is None:
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
            took_s = max(0.0, pod.ready_at - pod.created_at)
            starts[pod.uid] = Start(pod.role, took_s, pod.revision, pod.phases)
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
    """Return the draft with what the scaling law would do. It has no Event and no record, because
    the replicas do not change."""
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
    for role, wanted in draft.targets.items():
        name = names.serving_role(snapshot.fleet.name, role)
        live = snapshot.owned("ServingRole").get(name)
        if live is None or live["spec"].get("replicas") == wanted:
            continue
        who = owner_of_replicas(live)
        if who not in (None, names.FIELD_MANAGER):
            draft = draft.event(_scaled_by_hand(who or "", name, live, wanted))
        draft = draft.act(Scale("ServingRole", name, wanted))
        moves.append(f"{name} {replicas_of(live)} → {wanted}")
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


def bid_of(snapshot: Snapshot, draft: Draft) -> Bid:
    """The fleet's bid after its round was planned. A fleet that the scaling law does not size wants
    what its spec or its ServingRoles say; a fleet that is being deleted wants nothing."""
    spec = snapshot.fleet.spec
    held = gpus_held(snapshot, {role: draft.replicas(role) for role in draft.targets})
    if snapshot.fleet.metadata.deletion_timestamp is not None:
        return Bid(least=0, wanted=0, held=held)
    gpus = {role: settings.resources.gpu for role, settings in spec.active_roles()}
    least = sum(gpus[role] * settings.replicas.min for role, settings in spec.active_roles())
    runs = sum(gpus[role] * n for role, n in draft.targets.items() if role in gpus)
    unit = min((number for number in gpus.values() if number > 0), default=1)
    decision = draft.memory.decision
    follows = by_law(spec) and not spec.autoscaling.advisory
    if not follows or lacks_metrics(decision):
        # No cap moves these replicas: what they hold is not there for others.
        return Bid(max(least, runs), max(least, runs), held, unit)
    wants: Mapping[RoleName, int] = draft.targets
    worth: tuple[tuple[int, float], ...] = ()
    if decision is not None and {t.role for t in decision.targets} == gpus.keys():
        # An old decision, such as of before policy External, is no reason to want less than it has.
        wants = {t.role: max(t.wanted, draft.targets.get(t.role, 0)) for t in decision.targets}
        worth = decision.worth
    wanted = sum(gpus[role] * replicas for role, replicas in wants.items() if role in gpus)
    own = spec.autoscaling.gpu_budget
    if own.max is not None:
        wanted = min(wanted, own.max)
    hold_s = _hold_s(snapshot, draft)
    return Bid(least, max(least, wanted), held, unit, worth, float(own.weight), hold_s)


def _hold_s(snapshot: Snapshot, draft: Draft) -> float:
    """How long GPUs that were given to the fleet stay with it: the longest hold of its roles."""
    windows = goals_of(snapshot.fleet.spec).windows
    return max(
        removal_hold_s(supply_of(snapshot, draft, role, replicas), windows)
        for role, replicas in draft.targets.items()
    )


def gpus_targeted(snapshot: Snapshot) -> int:
    """GPUs of the fleet's targets before this round. With this cap it neither grows nor shrinks.

    Not the GPUs that it holds: a target that was written just before the operator died has no pods
    yet, and pods of an old revision or that drain are no room to grow into."""
    return sum(
        current_target(snapshot, role) * settings.resources.gpu
        for role, settings in snapshot.fleet.spec.active_roles()
    )


def gpus_held(snapshot: Snapshot, replicas: Mapping[RoleName, int] | None = None) -> int:
    """GPUs of the fleet's engine pods, and of replicas of the current revision that are written, or
    are now, but have no pod yet.

    A replica counts as many as the spec says, so that the number agrees with the scaling law; a pod
    of another revision counts what it requests if that is more.
    """
    spec = snapshot.fleet.spec
    per_replica: dict[str, int] = {
        role: settings.resources.gpu for role, settings in spec.active_roles()
    }
    missing: dict[str, int] = {}
    for role, _ in spec.active_roles():
        deployment = snapshot.deployment(role)
        written = replicas_of(deployment) if deployment is not None else 0
        missing[role] = max(written, (replicas or {}).get(role, 0))
    held = 0
    for pod in snapshot.pods:
        if pod.role == names.GATEWAY_ROLE or pod.phase in ("Succeeded", "Failed"):
            continue
        held += max(pod.gpus, per_replica.get(pod.role, 0))
        if pod.revision == snapshot.revision and missing.get(pod.role, 0) > 0:
            missing[pod.role] -= 1
    return held + sum(per_replica[role] * missing[role] for role in per_replica)


FILE = "learnt.json"
"""Key in the ConfigMap's data."""
LEAST_S = 30.0
"""The ConfigMap is not written more often, whatever the windows of the spec are."""


def read_learnt(snapshot: Snapshot, draft: Draft) -> Draft:
    """Go on with what an operator kept before, in the first round that has metrics."""
    metrics, windows = snapshot.metrics, goals_of(snapshot.fleet.spec).windows
    wanted = by_law(snapshot.fleet.spec) and not snapshot.memory.learnt_read
    if not wanted or metrics is None or why_unavailable(metrics, windows) is not None:
        return draft.step(StepReason.NOTHING_TO_READ, "the law remembers, or is not due")
    # Not written at once, so that operators that restart in turns do not write in every round.
    memory = replace(draft.memory, learnt_read=True, learnt_at=snapshot.monotonic)
    scaling = _as_told(snapshot, memory.scaling)
    draft = replace(draft, memory=replace(memory, scaling=scaling))
    name = names.learnt(snapshot.fleet.name)
    live = snapshot.owned("ConfigMap").get(name)
    if live is None:
        return draft.step(StepReason.NOTHING_TO_READ, f"there is no ConfigMap {name} of this fleet")
    try:
        kept = kept_of(str((live.get("data") or {}).get(FILE, "")))
    except UnusableError as error:
        message = f"ConfigMap {name} is not used: {error}. What replicas can do is measured again"
        draft = draft.event(Event(EventReason.LEARNT_UNREADABLE, message, warning=True))
        return draft.step(StepReason.LEARNT_UNREADABLE, message)
    state = resumed(kept, snapshot.revision, windows, _hold_of(kept, windows), metrics.at)
    state = _as_told(snapshot, state)
    starts = {f"kept-{i}": Start(*of, kept.revision) for i, of in enumerate(kept.starts)}
    starts |= draft.memory.starts
    memory = replace(draft.memory, scaling=state, errors=kept.errors, starts=starts)
    draft = replace(draft, memory=memory)
    return draft.step(StepReason.LEARNT_READ, f"from ConfigMap {name}")


def holds_first_tokens(
    fleet: ServingDeployment, settings: Object | None, memory: LoopMemory
) -> bool:
    """Whether gateways have first tokens held where `slo.firstToken` is Auto: as the law has
    chosen; before it remembers, as their `settings` have it."""
    if not by_law(fleet.spec) or fleet.spec.autoscaling.is_by_others:
        return False
    if memory.learnt_read:
        return memory.scaling.first_tokens.holds
    return "--first-token" in str(((settings or {}).get("data") or {}).get(names.SETTINGS_KEY, ""))


def _as_told(snapshot: Snapshot, state: ScalingState) -> ScalingState:
    """Return the state with the choice of first tokens that the gateways have. The ConfigMap of
    what was learnt may be older than that."""
    settings = snapshot.owned("ConfigMap").get(names.settings(snapshot.fleet.name))
    told = holds_first_tokens(snapshot.fleet, settings, snapshot.memory)
    if told == state.first_tokens.holds:
        return state
    return replace(state, first_tokens=FirstTokens(told))


def write_learnt(snapshot: Snapshot, draft: Draft) -> Draft:
    """Keep what was learnt, once in half a hold while requests come, and when replicas change."""
    if snapshot.learnt is None or not by_law(snapshot.fleet.spec) or not draft.memory.learnt_read:
        return draft.step(StepReason.LEARNT_KEPT, "there is nothing to keep")
    state, windows = draft.memory.scaling, goals_of(snapshot.fleet.spec).windows
    every_s = max(LEAST_S, windows.down_hold_s / 2)
    since_s = snapshot.monotonic - draft.memory.learnt_at
    # At rest nothing is learnt: a fleet without requests writes nothing.
    busy = state.busy_at is not None and state.busy_at == state.last_valid_at
    due = (since_s >= every_s and busy) or (since_s >= LEAST_S and draft.scaled)
    if draft.decision is None or not draft.decision.active or not due:
        message = f"written {since_s:.0f} s ago, or read then"
        return draft.step(StepReason.LEARNT_KEPT, message)
    starts = _starts(draft.memory, snapshot.revision)
    kept = Kept(VERSION, snapshot.revision, state, starts, draft.memory.errors)
    apply = Apply({**snapshot.learnt, "data": {FILE: text_of(kept)}})
    return draft.act(apply).step(StepReason.WRITING_LEARNT, key_of(apply))


def learn_written(
    snapshot: Snapshot, memory: LoopMemory, outcomes: Iterable[Outcome]
) -> LoopMemory:
    """Note that the ConfigMap was written; until then each decision tries again."""
    name = f"ConfigMap/{names.learnt(snapshot.fleet.name)}"
    if any(target(o.action) == name and o.error is None for o in outcomes):
        return replace(memory, learnt_at=snapshot.monotonic)
    return memory


def _hold_of(kept: Kept, windows: Windows) -> float:
    """The hold before a removal, of the role that starts slowest."""
    cold_s = max((seconds for _, seconds in kept.starts), default=windows.cold_start_s)
    return max(windows.down_hold_s, cold_s)


def _starts(memory: LoopMemory, revision: str) -> tuple[tuple[str, float], ...]:
    """The newest measured starts of each role, of the revision if it has any."""
    return tuple(
        (role, start.seconds)
        for role in sorted({start.role for start in memory.starts.values()})
        for start in memory.starts_of(role, revision)[-MEASURED_STARTS:]
    )
