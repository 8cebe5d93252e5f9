"""The text of `kubectl argosy explain`: the last decision that changed replicas, for people.

Reads `status.autoscaling` and the conditions of a ServingDeployment as the API server returns it.
Pure; `kubectl/explain.py` fetches the object and prints the text.
"""

import json
from math import prod

from argosy_law.decision import MEANING, Rule
from argosy_law.slo import in_words
from argosy_operator.cli.replay import difference
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.status.numbers import number

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
    "dispersion": "burstiness of arrivals (1: Poisson)",
    "bins": "scrape intervals in the mean",
    "prompt_tokens": "mean prompt",
    "cached_share": "of its tokens in prefix caches",
    "output_tokens": "mean output",
    "context_tokens": "mean context in a decode step",
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
