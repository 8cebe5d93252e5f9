"""What would change a fleet's number of replicas: the next rates at which the law answers another.

The law itself is asked (`argosy_law.decide`), with the record of the last decision and other
rates of arrival. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from argosy_law.decide import decide
from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.goals import Goals
from argosy_law.observe import Bin, Observations, Signal, Value
from argosy_law.record import from_json
from argosy_law.state import ScalingState

STEP = 1.25
"""Factor between two rates that are tried until the answer changes."""
FURTHEST = 16.0
"""No threshold is looked for beyond so many times the rate of now, or below its part."""
HALVINGS = 8
"""Of the interval in which the threshold lies: a step of 25 % becomes 0.1 %."""
WHAT_TO_CHANGE: dict[Rule, str] = {
    Rule.MAX_REPLICAS: "raise spec.roles.{role}.replicas.max: the load asks for {demanded}",
    Rule.GPU_BUDGET: "raise the GPU budget: the load asks for {demanded}",
    Rule.MIN_REPLICAS: "spec.roles.{role}.replicas.min keeps it: the load asks for {demanded}",
    Rule.HOLD: "it may go down when the hold is over (spec.autoscaling.scaleDown.stabilization)",
    Rule.STEP_LIMIT: "the next decision may go further: the load asks for {demanded}",
    Rule.SLO_UNREACHABLE: "more replicas do not help: loosen spec.slo, or use a faster engine",
    Rule.METRICS_UNAVAILABLE: "metrics must come back first (condition MetricsAvailable)",
    Rule.NO_SLO: "write spec.slo, or spec.roles.{role}.replicas.min",
    Rule.POLICY_NONE: "spec.roles.{role}.replicas.min is the number",
}
"""What a person can do, by the rule that bound the number."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Rates at which one role's number changes, in requests per second; None: none near."""

    target: RoleTarget
    more_at: float | None
    more: int
    """Replicas from `more_at` on."""
    fewer_below: float | None
    fewer: int
    """Replicas below `fewer_below`, once the hold is over."""


def thresholds(record: Mapping[str, Any]) -> tuple[float, tuple[Threshold, ...]]:
    """The rate of the recorded decision, and each role's next thresholds under steady arrivals.

    `record` is `status.autoscaling.lastDecision.record`. Raises ValueError if it cannot be read.
    """
    try:
        state = from_json(ScalingState, record["state"])
        seen = from_json(Observations, record["observations"])
        goals = from_json(Goals, record["goals"])
        now = float(record["now"])
        decided = decide(state, seen, goals, now)[1]
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    rate = decided.numbers.get("arrivals_per_s", 0.0)
    if not decided.active or rate <= 0:
        return rate, tuple(Threshold(target, None, 0, None, 0) for target in decided.targets)
    answers = dict[float, tuple[ScalingState, Decision]]()

    def answer(per_s: float) -> tuple[ScalingState, Decision]:
        if per_s not in answers:
            answers[per_s] = decide(*_steady(state, seen, goals, per_s, rate), goals, now)
        return answers[per_s]

    return rate, tuple(_of_role(target, rate, answer) for target in decided.targets)


def _of_role(
    target: RoleTarget, rate: float, answer: Callable[[float], tuple[ScalingState, Decision]]
) -> Threshold:
    role, has = target.role, target.replicas

    def more(per_s: float) -> int:
        return next(t.demanded for t in answer(per_s)[1].targets if t.role == role)

    def fewer(per_s: float) -> int:
        """What the role could go down to: the newest want of the law's own hold."""
        highs = next(r for r in answer(per_s)[0].roles if r.role == role).holds.highs
        return highs[-1].replicas if highs else has

    up = _edge(rate, STEP, lambda per_s: more(per_s) > has)
    down = _edge(rate, 1 / STEP, lambda per_s: fewer(per_s) < has) if has > 1 else None
    return Threshold(
        target, up, more(up) if up else has, down, fewer(down) if down is not None else has
    )


def _edge(rate: float, step: float, changed: Callable[[float], bool]) -> float | None:
    """The rate next to `rate` from which on `changed` holds; `rate` itself if it does there."""
    if changed(rate):
        return rate
    near, far = rate, rate * step
    while not changed(far):
        near, far = far, far * step
        if not rate / FURTHEST <= far <= rate * FURTHEST:
            return None
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        near, far = (near, middle) if changed(middle) else (middle, far)
    return far


def _steady(
    state: ScalingState, seen: Observations, goals: Goals, per_s: float, rate: float
) -> tuple[ScalingState, Observations]:
    """The same fleet under steady arrivals: no queue, and requests in flight in proportion."""
    scrape_s, metrics = goals.windows.scrape_s, seen.metrics
    count = max(2, ceil(goals.windows.rate_s / scrape_s))
    end = metrics.bins[-1].end if metrics.bins else metrics.at
    bins = tuple(Bin(end - scrape_s * i, per_s * scrape_s) for i in reversed(range(count)))
    roles = tuple(
        replace(
            role,
            running=_scaled(role.running, per_s / rate),
            outstanding_prompt_tokens=_scaled(role.outstanding_prompt_tokens, 0.0),
        )
        for role in metrics.roles
    )
    metrics = replace(metrics, arrivals=Value(per_s, metrics.at), bins=bins, roles=roles)
    demand = replace(state.demand, end=None, counts=(), pending=())
    return replace(state, demand=demand), replace(seen, metrics=metrics)


def _scaled(signal: Signal, factor: float) -> Signal:
    return Value(signal.value * factor, signal.at) if isinstance(signal, Value) else signal


def sentences(record: Mapping[str, Any]) -> list[str]:
    """What `explain` prints of the thresholds; empty if the record cannot be read."""
    try:
        rate, found = thresholds(record)
    except ValueError:
        return []
    lines = ["", "What would change the number" + (f", at {rate:.3g} requests/s" if rate else "")]
    for one in found:
        lines.append(f"  {one.target.role} {one.target.replicas}: {_sentence(one, rate)}")
    return lines


def _sentence(one: Threshold, rate: float) -> str:
    target, parts = one.target, list[str]()
    if (hint := WHAT_TO_CHANGE.get(target.rule)) is not None:
        parts.append(hint.format(role=target.role, demanded=target.demanded))
    if one.more_at is not None and one.more_at > rate:
        count = one.more - target.replicas
        what = f"one more {target.role} pod" if count == 1 else f"{count} more {target.role} pods"
        parts.append(f"{what} at {one.more_at:.3g} requests/s")
    if one.fewer_below is not None:
        below = "already now, after the hold" if one.fewer_below == rate else ""
        below = below or f"below {one.fewer_below:.3g} requests/s"
        parts.append(f"{one.fewer} {below}")
    return "; ".join(parts) or f"{target.rule}; no rate nearby changes it"
