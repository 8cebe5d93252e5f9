"""From the number that a rival's rule gives to the `Decision` that the protocol wants.

Every rival ends with these two functions, so that bounds and messages are the same for all.
"""

from collections.abc import Iterable

from argosy_operator.core.scaling.decision import Decision, RoleTarget, Rule, bounded, why_bounded
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import RoleSupply


def target(
    supply: RoleSupply,
    goals: Goals,
    why: str,
    replicas: int,
    rule: Rule = Rule.DEMAND,
    *,
    wanted: int | None = None,
) -> RoleTarget:
    """One role's answer, within its bounds. `wanted`: before windows and steps, if it differs."""
    role = supply.role
    goal = goals.role(role)
    kept, rule = bounded(replicas, rule, goal)
    message = why if rule is Rule.DEMAND else f"{why}; {why_bounded(rule, goal, kept)}"
    demanded = replicas if wanted is None else wanted
    return RoleTarget(role, supply.desired, kept, demanded, rule, message)


def unknown(supply: RoleSupply, goals: Goals, what: str) -> RoleTarget:
    """A role that stays as it is, because `what` is not known."""
    return target(supply, goals, f"{what} is unknown", supply.desired, Rule.METRICS_UNAVAILABLE)


def apart_only(supply: RoleSupply, goals: Goals) -> RoleTarget:
    """A colocated role under a law that knows prefill and decode apart only."""
    why = "this law sizes prefill and decode apart: colocated replicas stay"
    return target(supply, goals, why, supply.desired)


def decision(now: float, targets: Iterable[RoleTarget], **numbers: float) -> Decision:
    """The answer for all roles. `numbers`: what it was made from, by name with unit."""
    of_roles = tuple(targets)
    moving = next((t for t in of_roles if t.replicas != t.current), of_roles[0])
    return Decision(
        at=now,
        targets=of_roles,
        rule=moving.rule,
        message="; ".join(f"{t.role} {t.current} → {t.replicas} ({t.message})" for t in of_roles),
        active=True,
        reachable=True,
        numbers=numbers,
    )
