"""The text of `kubectl argosy explain`: the last decision that changed replicas, for people.

Reads `status.autoscaling` and the conditions of a ServingDeployment as the API server returns it.
Pure; `kubectl/explain.py` fetches the object and prints the text."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from argosy_law.decide import decide
from argosy_law.decision import MEANING, Decision, RoleTarget, Rule
from argosy_law.goals import Goals
from argosy_law.observe import Bin, Observations, Signal, Value
from argosy_law.record import from_json, to_json
from argosy_law.slo import in_words
from argosy_law.state import ScalingState
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.status.numbers import number


def replayed(record: Mapping[str, Any]) -> Decision:
    """Decide again from the record's inputs. Raises ValueError if they are not readable."""
    try:
        state = from_json(ScalingState, record["state"])
        seen = from_json(Observations, record["observations"])
        goals = from_json(Goals, record["goals"])
        return decide(state, seen, goals, float(record["now"]))[1]
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def difference(last: Mapping[str, Any]) -> str | None:
    """Where the decision and its record disagree, as a sentence; None if they agree.

    `last` is `status.autoscaling.lastDecision`. It disagrees after an edit by hand, and when
    another version of the law made it.
    """
    record = last.get("record")
    if not record:
        return None
    try:
        again = replayed(record)
    except ValueError as error:
        return f"the record's inputs cannot be read ({error})"
    moved = {target.role: target.replicas for target in again.targets}
    if moved != dict(last.get("to", {})):
        said = ", ".join(f"{role} {count}" for role, count in moved.items())
        return f"deciding again from the record gives {said}"
    if to_json(again) != record.get("decision"):
        return "deciding again from the record gives other numbers"
    return None


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


WELL_WHEN_FALSE = (
    "Reconciling",
    "Progressing",
    "Stalled",
    "CapacityLimited",
    "Draining",
    "NameConflict",
    "FieldConflict",
)
UNITS = (
    ("cost_per_million_tokens", "{:.4g}"),
    ("attainment", "{:.1%}"),
    ("_share", "{:.1%}"),
    ("_per_s", "{:.4g} requests/s"),
    ("_replicas", "{:.4g} replicas"),
    ("holds_first_tokens", "{:g}"),
    ("_tokens", "{:.4g} tokens"),
    ("_backlog_s", "{:.4g} replica-seconds"),
    ("_s", "{:.4g} s"),
)
"""End of a number's name → how it is printed."""

LABELS = {
    "arrivals_per_s": "arriving",
    "arrivals_error_per_s": "standard error of that",
    "forecast_per_s": "forecast for when a new replica is ready",
    "season_per_s": "the same by past days at this time, which counts",
    "margin": "factor on the forecast",
    "longer_prompts": "factor by which prompts will be longer then",
    "longer_answers": "factor by which answers will be longer then",
    "dispersion": "burstiness of arrivals (1: Poisson)",
    "bins": "scrape intervals in the mean",
    "prompt_tokens": "mean prompt",
    "cached_share": "of its tokens in prefix caches",
    "output_tokens": "mean output",
    "context_tokens": "mean context in a decode step",
    "at_once_gpus": "GPUs for the load with first tokens at once, by their prices",
    "held_gpus": "GPUs for the load with first tokens held, by their prices",
    "holds_first_tokens": "1: they are held (spec.slo.firstToken: Auto)",
    "gpus_missing": "GPUs that are wanted and not in the GPU budget",
    "cost_per_hour": "cost per hour of the chosen replicas",
    "cost_per_million_tokens": "cost per million generated tokens",
    "cost_per_thousand_good": "cost per thousand requests within the SLO",
    "attainment": "requests within the SLO",
    "ttft_attainment": "requests within spec.slo.ttft.target",
    "tpot_attainment": "requests within spec.slo.tpot.target",
    "ttft_reachable": "prompts that meet spec.slo.ttft.target alone in the fleet",
    "tpot_reachable": "answers that meet spec.slo.tpot.target alone in the fleet",
    "planned_per_s": "to provide for",
    "load_replicas": "busy at that rate",
    "service_s": "prefill time of a mean prompt",
    "backlog_s": "queued prefill work",
    "batch_limit": "sequences per replica within spec.slo.tpot.target",
    "step_base_s": "time of a decode step, smallest batch",
}
"""What the numbers of a decision are (argosy_law/explain.py); the role's name comes before some.
"""


def explanation(fleet: Object, output: str = "text") -> str:
    """What `explain` prints for the fleet object; `output` is "text" or "json" (the raw status)."""
    if output == "json":
        return json.dumps(fleet.get("status", {}).get("autoscaling", {}), indent=2, sort_keys=True)
    if output != "text":
        raise ValueError(f"output is {output!r}: write text or json")
    return _text(fleet)


def _text(fleet: Object) -> str:
    """The last decision with its numbers and candidates, earlier changes, conditions."""
    status = fleet.get("status", {})
    scaling = status.get("autoscaling", {})
    name = fleet.get("metadata", {}).get("name", "?")
    lines = [f"ServingDeployment {name}"]
    last = scaling.get("lastDecision")
    if last is None:
        lines.append(
            "No decision has changed replicas yet. Under spec.autoscaling.policy Goodput with "
            "spec.slo the operator decides once per spec.autoscaling.interval."
        )
    else:
        lines += _decision(last)
    lines += _gpu_types(status.get("roles") or {})
    if (advice := scaling.get("advice")) is not None:
        lines += ["", f"Advised at {advice['time']}, and left to others: {_moves(advice)}"]
        lines += [advice["message"]] if advice.get("message") else []
    history = [d for d in scaling.get("history", []) if d["time"] != (last or {}).get("time")]
    if history:
        lines += ["", "Earlier changes"]
        lines += [f"  {d['time']}  {_moves(d)}  {d.get('reason', '')}" for d in history]
    lines += _misses(status.get("goodput") or {})
    conditions = [c for c in status.get("conditions", []) if _matters(c)]
    if conditions:
        lines += ["", "Conditions"]
        lines += [
            f"  {c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in conditions
        ]
    return "\n".join(lines)


def _misses(goodput: Object) -> list[str]:
    """Of requests that missed the SLO, what took most of their time; the largest share first."""
    shares = {reason: number(text) or 0.0 for reason, text in (goodput.get("misses") or {}).items()}
    if not shares:
        return []
    lines = ["", "Requests that missed the SLO lately"]
    for reason in sorted(shares, key=lambda reason: -shares[reason]):
        lines.append(f"  {reason:<10} {in_words(reason, shares[reason])}")
    return lines


def _matters(condition: Object) -> bool:
    """Conditions that explain replicas: those of scaling, and all that are not well.

    TransportSecured is False in every fleet that names no certificate, and changes no replicas;
    GatewayScalingActive is about gateways. Why an error budget is not known, SLOMet says.
    """
    if condition["type"] in ("TransportSecured", "GatewayScalingActive"):
        return False
    if condition["type"] == "ErrorBudgetBurning":
        return bool(condition["status"] == "True")
    good = "False" if condition["type"] in WELL_WHEN_FALSE else "True"
    return "Scaling" in condition["type"] or condition["status"] != good


def _moves(decision: Object) -> str:
    before, after = decision.get("from", {}), decision.get("to", {})
    return ", ".join(
        f"{role} {before[role]} → {n}" if before.get(role, n) != n else f"{role} {n}"
        for role, n in after.items()
    )


def _gpu_types(roles: Object) -> list[str]:
    """Which GPU type each role runs on; nothing for a fleet without gpuTypes."""
    lines = list[str]()
    for name, role in roles.items():
        if role.get("gpuType"):
            left = role.get("gpuTypesWithoutRoom") or {}
            full = "".join(f"; no room with {of} at {at}" for of, at in left.items())
            cost = role.get("gpuCostPerHour", "?")
            lines.append(f"  {name} on {role['gpuType']}, {cost} per GPU and hour{full}")
    return ["", "GPU types", *lines] if lines else []


def _decision(last: Object) -> list[str]:
    lines = [f"Decided at {last['time']}: {_moves(last)}"]
    reason = str(last.get("boundBy") or last.get("reason", ""))
    lines.append(f"Rule {reason}: {meaning(reason)}")
    decision = (last.get("record") or {}).get("decision")
    if decision is None:
        return [*lines, *([last["message"]] if last.get("message") else [])]
    if (why := difference(last)) is not None:
        lines.append(
            f"This record does not replay: {why}. It was edited by hand, or another version of the "
            "operator made it."
        )
    lines += ["", f"  {'role':<10} {'replicas':>10} {'for the load':>13}  rule"]
    for target in decision["targets"]:
        before, after = target["current"], target["replicas"]
        change = f"{before} → {after}" if before != after else str(after)
        lines.append(
            f"  {target['role']:<10} {change:>10} {target['demanded']:>13}  {target['rule']}"
        )
    if decision["numbers"]:
        lines += ["", "Numbers"]
        lines += [labelled(name, value) for name, value in decision["numbers"].items()]
    if decision["candidates"]:
        goal = ((last["record"].get("goals") or {}).get("slo") or {}).get("attainment")
        lines += ["", "Candidates, with the predicted share of requests within the SLO"]
        lines.append(f"  {'role':<10} {'replicas':>8} {'in SLO':>8} {'GPUs':>5}")
        for target in decision["targets"]:
            others = [other for other in decision["targets"] if other is not target]
            met = prod(_share_of(other, decision["candidates"]) for other in others)
            lines += _candidates(target, decision["candidates"], met, goal)
    return lines


def _share_of(target: Object, candidates: list[Object]) -> float:
    """What a role attains with the replicas that its load asks for; 1 if none was weighed."""
    wanted = (target["role"], target["demanded"])
    return next((c["attainment"] for c in candidates if (c["role"], c["replicas"]) == wanted), 1.0)


def _candidates(
    target: Object, candidates: list[Object], others: float, goal: float | None
) -> list[str]:
    """What fewer and more replicas of a role would give, and why they were not chosen.

    `others`: the share that the other roles attain; a request must meet both limits.
    """
    lines, role, chosen = [], target["role"], target["replicas"]
    for c in (c for c in candidates if c["role"] == role):
        n, share = c["replicas"], c["attainment"]
        if n == chosen:
            why = f"chosen: {target['rule']}"
        elif n < chosen and goal is not None and share * others < goal:
            why = f"why not fewer: below the goal of {goal:.0%}"
        elif n < chosen:
            why = f"why not fewer: {meaning(target['rule'])}"
        elif n <= target["demanded"]:
            why = f"why not more: {meaning(target['rule'])}"
        else:
            why = "why not more: fewer suffice"
        lines.append(f"  {role:<10} {n:>8} {share:>8.1%} {c['gpus']:>5}  {why}")
    return lines


def meaning(rule: str) -> str:
    """The rule in words; the rule itself if a newer operator made it."""
    return MEANING[Rule(rule)] if rule in set(Rule) else rule


def labelled(name: str, value: float) -> str:
    """A line for one number of a decision: what it is, value, unit."""
    label = label_of(name) or name.replace("_", " ")
    text = next((form for end, form in UNITS if name.endswith(end)), "{:.4g}").format(value)
    return f"  {label:<58} {text}"


def label_of(name: str) -> str | None:
    """None for a number of a newer operator."""
    if name in LABELS:
        return LABELS[name]
    role, _, rest = name.partition("_")
    return f"{role}: {LABELS[rest]}" if rest in LABELS else None
