"""Bounds of prefill replicas per decode replica: the role that is too small for the other grows.

`decide` applies it to what holds and steps gave. It never takes a replica, because the other rules
have said that those are needed; whole replicas are rounded up, so the ratio is met as closely as
they allow.
"""

from dataclasses import replace

from argosy_operator.core.scaling.decision import RoleTarget, Rule
from argosy_operator.core.scaling.goals import Goals, Share


def kept(targets: tuple[RoleTarget, ...], goals: Goals) -> tuple[RoleTarget, ...]:
    """The targets with `autoscaling.ratio`, within each role's maximum."""
    asked = {target.role: target.replicas for target in targets}
    if not {"prefill", "decode"} <= asked.keys():
        return targets
    least, most = goals.ratio.min, goals.ratio.max
    needed = {
        "prefill": 0 if least is None else least.prefill_for(asked["decode"]),
        "decode": 0 if most is None else most.decode_for(asked["prefill"]),
    }
    limits = {"prefill": ("least", least), "decode": ("most", most)}
    return tuple(
        _raised(target, needed[target.role], *limits[target.role], goals) for target in targets
    )


def _raised(
    target: RoleTarget, needed: int, word: str, share: Share | None, goals: Goals
) -> RoleTarget:
    replicas = min(needed, goals.role(target.role).max)
    if share is None or replicas <= target.replicas:
        return target
    why = f"at {word} {share.prefill} prefill for {share.decode} decode (spec.autoscaling.ratio)"
    return replace(target, replicas=replicas, rule=Rule.RATIO, message=why)
