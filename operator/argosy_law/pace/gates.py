"""What keeps replicas from being removed, added too fast, or lost to a role flip.

`decide` asks `blocked_by` when a role is sized; the first gate that holds names the rule. `explain`
prints its message, `docs/reference/rules.md` is generated from the table. Then `record_wants` adds
what a role wants to its `HoldState`, `apply_holds` turns the wants into a number, and with
`autoscaling.roleFlip` `shift_replicas` gives a replica that is only held to the role that needs
one: a pod changes its role in seconds, and a new one takes a cold start (designs/0013).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor

from argosy_law.decision import MEANING, RoleTarget, Rule
from argosy_law.goals import Inputs, StepLimits, removal_hold_s
from argosy_law.observe import FleetMetrics, RoleName, RoleSupply, Value
from argosy_law.signals import learning, validity
from argosy_law.size.sizing import Size, reach_of
from argosy_law.state import HoldState, RoleState, ScalingState, ShiftState, Want


@dataclass(frozen=True, slots=True)
class RoleView:
    """One role in one decision: what gates and holds look at."""

    role: RoleState
    state: ScalingState
    sizes: Mapping[RoleName, Size]
    """What load alone asks for, per role; empty while the fleet is idle."""
    inputs: Inputs

    @property
    def name(self) -> RoleName:
        return self.role.role

    @property
    def metrics(self) -> FleetMetrics:
        return self.inputs.metrics

    @property
    def size(self) -> Size | None:
        return self.sizes.get(self.name)

    @property
    def supply(self) -> RoleSupply:
        return self.inputs.observations.of(self.name)

    @property
    def hold_s(self) -> float:
        """How long fewer replicas must suffice before one is removed."""
        return removal_hold_s(self.supply, self.inputs.windows)

    @property
    def reachable_goal(self) -> float:
        """The SLO's attainment, or what any number of replicas could give if that is less.

        Attainment that no number of replicas gives is no reason to keep those that are there.
        """
        goal = self.inputs.slo.attainment
        return min(goal, reach_of(size.model for size in self.sizes.values()).both)


@dataclass(frozen=True, slots=True)
class Gate:
    """One reason to keep capacity."""

    rule: Rule
    meaning: str
    """When the gate holds, for the documentation."""
    when: Callable[[RoleView], bool]
    message: Callable[[RoleView], str]
    """What this round shows, for status, Events and `explain`."""
    need_known: bool = False
    """Whether the role's need is known all the same. If it is not, a GPU budget that is too small
    takes no replica from this role for another."""


def _gateways_silent(view: RoleView) -> bool:
    return bool(view.metrics.silent_gateways)


def _say_gateways(view: RoleView) -> str:
    names = ", ".join(view.metrics.silent_gateways)
    return f"Prometheus has no fresh samples of {names}: check that it scrapes these gateway pods"


def _alone(view: RoleView) -> bool:
    return bool(view.metrics.gateways_alone)


def _say_alone(view: RoleView) -> str:
    return f"only gateways say what the load is ({view.metrics.gateways_alone})"


def _just_started(view: RoleView) -> bool:
    since = view.state.valid_since
    return since is None or view.inputs.now - since < view.hold_s


def _say_started(view: RoleView) -> str:
    return f"the metrics have been valid for less than the hold of {view.hold_s:.3g} s"


def _reporting(view: RoleView) -> int:
    return view.metrics.role(view.name).pods_reporting


def _pods_silent(view: RoleView) -> bool:
    return view.supply.ready > 0 and 2 * _reporting(view) <= view.supply.ready


def _say_pods(view: RoleView) -> str:
    counts = f"{_reporting(view)} of {view.supply.ready} ready pods report"
    return f"{counts}: check that Prometheus scrapes the others"


def _unknown(view: RoleView) -> tuple[str, ...]:
    return validity.unknown_signals(view.name, view.metrics)


def _signal_unknown(view: RoleView) -> bool:
    return bool(_unknown(view))


def _say_unknown(view: RoleView) -> str:
    return f"unknown: {', '.join(_unknown(view))}"


def _guessed(view: RoleView) -> bool:
    measured = view.role.estimate.learnt and view.state.lengths.measured
    return view.size is not None and not measured


def _mixed(view: RoleView) -> bool:
    return view.supply.mixed


def _scale_up_pending(view: RoleView) -> bool:
    raised_at, supply = view.role.holds.raised_at, view.supply
    starting = supply.pending > supply.unschedulable and raised_at is not None
    return starting and view.inputs.now - (raised_at or view.inputs.now) < view.hold_s


def _backlog(view: RoleView) -> bool:
    return view.size is not None and view.size.rule is Rule.BACKLOG


def _below_goal(view: RoleView) -> bool:
    """Below by more than one standard error of the measured share, and the role may be why."""
    goal, scored = view.reachable_goal, view.metrics.scored
    measured = view.metrics.attainment
    share = measured.value if isinstance(measured, Value) else 1.0
    error = (goal * (1 - goal) / scored) ** 0.5 if scored else 1.0
    if view.size is None or share + error >= goal:
        return False
    goal = view.inputs.slo.attainment
    return learning.at_fault(view.role, view.metrics, goal, full=view.size.full)


def _always(text: str) -> Callable[[RoleView], str]:
    return lambda _view: text


GATES: tuple[Gate, ...] = (
    Gate(
        Rule.GATEWAYS_ALONE,
        "Prometheus has no metrics, and the gateways themselves say what arrives.",
        _alone,
        _say_alone,
    ),
    Gate(
        Rule.METRICS_UNAVAILABLE,
        "A Ready gateway has no fresh samples: the requests that it gets are not counted.",
        _gateways_silent,
        _say_gateways,
    ),
    Gate(
        Rule.JUST_STARTED,
        "The metrics have been valid for less than one hold: they came back, or the operator "
        "started.",
        _just_started,
        _say_started,
    ),
    Gate(
        Rule.METRICS_UNAVAILABLE,
        "Half of the role's ready pods or more do not report.",
        _pods_silent,
        _say_pods,
    ),
    Gate(
        Rule.METRICS_UNAVAILABLE,
        "A signal that the role's size needs is unknown.",
        _signal_unknown,
        _say_unknown,
    ),
    Gate(
        Rule.ROLLOUT_IN_PROGRESS,
        "In a rollout pods of two revisions serve.",
        _mixed,
        _always("in a rollout pods of two revisions serve"),
    ),
    Gate(
        Rule.CAPACITY_GUESSED,
        "Requests arrive, and their lengths or the capacity of a replica are not measured yet.",
        _guessed,
        _always("lengths or capacity are not measured yet"),
    ),
    Gate(
        Rule.SCALE_UP_PENDING,
        "Replicas of an earlier scale-up are still starting, for at most one hold.",
        _scale_up_pending,
        _always("replicas of an earlier scale-up are still starting"),
    ),
    Gate(
        Rule.BACKLOG,
        "Queued prompts would outlast the start of a new replica.",
        _backlog,
        _always("queued prompts would outlast the start of a new replica"),
        need_known=True,
    ),
    Gate(
        Rule.ATTAINMENT_BELOW_GOAL,
        "Measured attainment is below the goal by more than its standard error, and the role is at "
        "fault: its own limit is missed, or it has no room.",
        _below_goal,
        _always("measured attainment is below the goal"),
        need_known=True,
    ),
)
"""Evaluated from the top. Gates about what is known come first, because the others rely on it. A
rollout makes capacity a guess, so it is named before its consequence."""


def blocked_by(view: RoleView) -> Gate | None:
    """The first gate that forbids to remove capacity of this role now; None if none does."""
    return next((gate for gate in GATES if gate.when(view)), None)


@dataclass(frozen=True, slots=True)
class HoldWindows:
    """How long a want must last before it is applied, in seconds."""

    up_s: float
    down_s: float


def record_wants(
    state: HoldState, up: int, down: int, now: float, windows: HoldWindows
) -> HoldState:
    """Add the wants of now and drop those that have left their windows.

    `up` is needed for the planned load, `down` is enough even for more load (`sizing.HYSTERESIS`).
    """
    highs = (w for w in state.highs if w.replicas > down and w.at > now - windows.down_s)
    lows = (w for w in state.lows if w.replicas < up and w.at > now - windows.up_s)
    return HoldState((*highs, Want(now, down)), (*lows, Want(now, up)), state.raised_at)


def apply_holds(
    state: HoldState, current: int, demanded_by: Rule, blocked_by: Rule | None, limits: StepLimits
) -> tuple[int, Rule]:
    """The number of replicas after holds and step limits, and the rule that bound it.

    `blocked_by` is the rule that forbids a removal now; None if removal is allowed.
    """
    up, down = state.lows[0].replicas, state.highs[0].replicas
    if up > current:
        most = current + max(ceil(current * limits.up_percent / 100), limits.up_pods)
        return (most, Rule.STEP_LIMIT) if up > most else (up, demanded_by)
    if down >= current:
        wanted_now = state.highs[-1].replicas
        return current, demanded_by if wanted_now >= current else Rule.HOLD
    if blocked_by is not None:
        return current, blocked_by
    least = current - max(limits.down_pods, floor(current * (limits.down_percent or 0.0) / 100))
    return (least, Rule.STEP_LIMIT) if down < least else (down, demanded_by)


APART_S = 30.0
"""Least time between two flips of a fleet: the effect of one is measured before the next."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two roles."""

    target: RoleTarget
    needs: int
    """Replicas that are enough now, even for more load: what it has beyond is only held."""
    least: int
    """The user's minimum."""
    gate: Gate | None
    """Why nothing may be removed now; None if removal is allowed."""

    @property
    def grows(self) -> bool:
        return self.target.replicas > self.target.current

    @property
    def held(self) -> int:
        """Replicas that it keeps and does not need."""
        kept = self.target.replicas == self.target.current
        return max(self.target.current - max(self.needs, self.least), 0) if kept else 0


@dataclass(frozen=True, slots=True)
class Span:
    """Durations in seconds."""

    hold_s: float
    """How long fewer replicas must suffice before one is removed."""
    dwell_s: float
    """How long after a flip none goes the other way."""


def shift_replicas(
    state: ShiftState, sides: tuple[Side, Side], span: Span, now: float
) -> tuple[ShiftState, tuple[RoleTarget, ...]]:
    """What both roles are to have.

    Where one role grows and the other only holds a replica, that one is given up: its pod is to be
    the first of the new ones. At most one in `APART_S`, and none back within `dwell_s`. A gate
    keeps it, unless its role's need is known. Otherwise a held replica is removed if both roles
    together have needed fewer for the whole hold.
    """
    state = _record_sum(state, sum(side.needs for side in sides), now, span.hold_s)
    for giver, taker in (sides, sides[::-1]):
        known = giver.gate is None or giver.gate.need_known
        if taker.grows and giver.held and known and _may_go(state, taker, span, now):
            state = replace(state, at=now, to=taker.target.role)
            return state, _take_one(sides, giver)
    return state, _release(state, sides, span, now)


def _record_sum(state: ShiftState, both: int, now: float, hold_s: float) -> ShiftState:
    """Add what both roles need now and drop what has left the hold or is exceeded."""
    highs = (w for w in state.highs if w.replicas > both and w.at > now - hold_s)
    return replace(state, highs=(*highs, Want(now, both)))


def _may_go(state: ShiftState, taker: Side, span: Span, now: float) -> bool:
    """Whether the last flip allows one to this role."""
    if state.at is None:
        return True
    ago_s = now - state.at
    return ago_s >= (APART_S if state.to == taker.target.role else span.dwell_s)


def _release(
    state: ShiftState, sides: tuple[Side, Side], span: Span, now: float
) -> tuple[RoleTarget, ...]:
    """One held replica fewer, of the role that holds more, if both together have too many."""
    targets = tuple(side.target for side in sides)
    if sum(target.replicas for target in targets) <= state.highs[0].replicas:
        return targets
    # A replica that is missed later must be able to come from the other role.
    free = [s for s in sides if s.held and s.gate is None and _may_go(state, s, span, now)]
    if not free or any(side.grows for side in sides):
        return targets
    return _take_one(sides, max(free, key=lambda side: side.held))


def _take_one(sides: tuple[Side, Side], giver: Side) -> tuple[RoleTarget, ...]:
    """The targets with one replica fewer of one role."""
    role: RoleName = giver.target.role
    return tuple(
        replace(
            side.target,
            replicas=side.target.replicas - 1,
            rule=Rule.ROLE_FLIP,
            message=MEANING[Rule.ROLE_FLIP],
        )
        if side.target.role == role
        else side.target
        for side in sides
    )
