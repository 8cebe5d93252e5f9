"""Ask the scaling law, keep what it has learnt, and record a change so that it can be repeated."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Scale, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.targets.spec import goals_of, offers_of, windows_of
from argosy_operator.core.reconcile.targets.supply import front, supply_of
from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.decision import Decision, RoleTarget
from argosy_operator.core.scaling.goals import Goals, Inputs
from argosy_operator.core.scaling.observe import FleetMetrics, Observations
from argosy_operator.core.scaling.pace import schedules
from argosy_operator.core.scaling.prices import EVERY_S, costs, with_costs
from argosy_operator.core.scaling.state import ScalingState
from argosy_operator.core.scaling.text.record import to_json
from argosy_operator.core.slo.errors import taken

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
