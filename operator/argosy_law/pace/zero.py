"""Whether a fleet that nobody uses has no engine pods at all.

`decide` asks first, before it sizes anything: the answer rests on what the gateways say themselves
(`observe.Front`), so it needs neither an SLO nor Prometheus. A fleet is at zero if each role is
asked for 0 replicas; that is written in the cluster and outlives the operator.
"""

from dataclasses import dataclass

from argosy_law.decision import Rule
from argosy_law.goals import Goals
from argosy_law.observe import Observations

UNHEARD_S = 30.0
"""So long a Ready gateway may be silent while the fleet is at zero. After that the fleet starts,
because requests that nobody sees may wait there. Long enough for a gateway that restarts."""


@dataclass(frozen=True, slots=True)
class Zero:
    """The answer for all roles: none, or the fewest that serve."""

    rule: Rule
    why: str


def verdict(seen: Observations, goals: Goals) -> Zero | None:
    """Zero replicas, or the start from there; None: the law sizes the roles as ever."""
    after_s = goals.zero_after_s
    if after_s is None:
        return None
    schedule = next((goal.min_schedule for goal in goals.roles if goal.min_schedule), None)
    if not any(supply.desired for supply in seen.supply):
        if schedule is not None:
            return Zero(Rule.WAKING, f"schedule {schedule} asks for replicas")
        return _at_zero(seen)
    front = seen.front
    if schedule is not None:
        return None
    # A fleet that does not serve yet, or is being replaced, has not had its chance to be used.
    steady = all(supply.ready > 0 and not supply.rolling for supply in seen.supply)
    if not steady or front.in_flight or front.idle_s is None or front.idle_s < after_s:
        return None
    why = f"no gateway has had a request for {after_s:g} s (spec.autoscaling.scaleToZero.after)"
    return Zero(Rule.SCALED_TO_ZERO, why)


def _at_zero(seen: Observations) -> Zero:
    front = seen.front
    if front.in_flight:
        return Zero(Rule.WAKING, "requests wait in the gateways")
    if front.unheard_s > UNHEARD_S:
        why = f"a ready gateway has not answered the operator for more than {UNHEARD_S:g} s"
        return Zero(Rule.WAKING, f"{why}, and requests may wait there")
    return Zero(Rule.SCALED_TO_ZERO, "no request waits in the gateways")
