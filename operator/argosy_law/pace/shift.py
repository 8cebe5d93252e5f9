"""Role flips in the law: a replica that is only held goes to the other role, which needs one.

A pod changes its role in seconds, and a new one takes a cold start (designs/0013). So with
`autoscaling.roleFlip` a hold is one on what both roles need together. `decide` calls `shifted` with
what holds and steps gave to each role; `core.steps.flips` and the simulator carry it out.
"""

from dataclasses import dataclass, replace

from argosy_law.decision import MEANING, RoleTarget, Rule
from argosy_law.observe import RoleName
from argosy_law.pace.gates import Gate
from argosy_law.state import ShiftState, Want

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


def shifted(
    state: ShiftState, sides: tuple[Side, Side], span: Span, now: float
) -> tuple[ShiftState, tuple[RoleTarget, ...]]:
    """What both roles are to have.

    Where one role grows and the other only holds a replica, that one is given up: its pod is to be
    the first of the new ones. At most one in `APART_S`, and none back within `dwell_s`. A gate
    keeps it, unless its role's need is known. Otherwise a held replica is removed if both roles
    together have needed fewer for the whole hold.
    """
    state = _recorded(state, sum(side.needs for side in sides), now, span.hold_s)
    for giver, taker in (sides, sides[::-1]):
        known = giver.gate is None or giver.gate.need_known
        if taker.grows and giver.held and known and _may_go(state, taker, span, now):
            state = replace(state, at=now, to=taker.target.role)
            return state, _less(sides, giver)
    return state, _released(state, sides, span, now)


def _recorded(state: ShiftState, both: int, now: float, hold_s: float) -> ShiftState:
    """Add what both roles need now and drop what has left the hold or is exceeded."""
    highs = (w for w in state.highs if w.replicas > both and w.at > now - hold_s)
    return replace(state, highs=(*highs, Want(now, both)))


def _may_go(state: ShiftState, taker: Side, span: Span, now: float) -> bool:
    """Whether the last flip allows one to this role."""
    if state.at is None:
        return True
    ago_s = now - state.at
    return ago_s >= (APART_S if state.to == taker.target.role else span.dwell_s)


def _released(
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
    return _less(sides, max(free, key=lambda side: side.held))


def _less(sides: tuple[Side, Side], giver: Side) -> tuple[RoleTarget, ...]:
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
