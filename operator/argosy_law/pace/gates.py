"""Why capacity may not be removed: one table, which the law, its messages and the docs share.

`decide` asks `blocked_by` when a role is sized; the first gate that holds names the rule. `explain`
prints its message, `docs/reference/rules.md` is generated from the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from argosy_law.decision import Rule
from argosy_law.goals import Inputs, removal_hold_s
from argosy_law.observe import FleetMetrics, RoleName, RoleSupply, Value
from argosy_law.signals import validity
from argosy_law.size.joint import reach_of
from argosy_law.size.sizing import Size
from argosy_law.state import RoleState, ScalingState


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


def _rolling(view: RoleView) -> bool:
    return view.supply.rolling


def _scale_up_pending(view: RoleView) -> bool:
    raised_at, supply = view.role.holds.raised_at, view.supply
    starting = supply.pending > supply.unschedulable and raised_at is not None
    return starting and view.inputs.now - (raised_at or view.inputs.now) < view.hold_s


def _backlog(view: RoleView) -> bool:
    return view.size is not None and view.size.rule is Rule.BACKLOG


def _below_goal(view: RoleView) -> bool:
    """Below by more than one standard error of the measured share."""
    goal, scored = view.reachable_goal, view.metrics.scored
    measured = view.metrics.attainment
    share = measured.value if isinstance(measured, Value) else 1.0
    error = (goal * (1 - goal) / scored) ** 0.5 if scored else 1.0
    return view.size is not None and share + error < goal


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
        "A rollout of this role is in progress.",
        _rolling,
        _always("a rollout of this role is in progress"),
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
        "Measured attainment is below the goal by more than its standard error.",
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
