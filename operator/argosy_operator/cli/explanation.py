"""The text of `kubectl argosy explain`: the last decision that changed replicas, for people.

Reads `status.autoscaling` and the conditions of a ServingDeployment as the API server returns it.
Pure; `cli/explain.py` fetches the object and prints the text.
"""

import json

from argosy_operator.core.fleet.objects import Object
from argosy_operator.core.scaling.decision import MEANING, Rule

WELL_WHEN_FALSE = (
    "Reconciling",
    "Progressing",
    "Stalled",
    "CapacityLimited",
    "Draining",
    "NameConflict",
    "FieldConflict",
)
UNITS = (("_per_s", "/s"), ("_replicas", " replicas"), ("_tokens", " tokens"), ("_s", " s"))


def explanation(fleet: Object, output: str = "text") -> str:
    """What `explain` prints for the fleet object; `output` is "text" or "json" (the raw status)."""
    if output == "json":
        return json.dumps(fleet.get("status", {}).get("autoscaling", {}), indent=2, sort_keys=True)
    if output != "text":
        raise ValueError(f"output is {output!r}: write text or json")
    return _text(fleet)


def _text(fleet: Object) -> str:
    """Decision, numbers, candidates, why not fewer and why not more, history, conditions."""
    status = fleet.get("status", {})
    scaling = status.get("autoscaling", {})
    name = fleet.get("metadata", {}).get("name", "?")
    lines = [f"Fleet {name}"]
    last = scaling.get("lastDecision")
    if last is None:
        lines.append(
            "No decision yet has changed replicas; under policy Goodput with spec.slo the operator "
            "decides once per spec.autoscaling.interval."
        )
    else:
        lines += _decision(last)
    history = [d for d in scaling.get("history", []) if d["time"] != (last or {}).get("time")]
    if history:
        lines += ["", "Before that"]
        lines += [f"  {d['time']}  {_moves(d)}  {d.get('reason', '')}" for d in history]
    conditions = [c for c in status.get("conditions", []) if _speaks(c)]
    if conditions:
        lines += ["", "Conditions"]
        lines += [
            f"  {c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in conditions
        ]
    return "\n".join(lines)


def _speaks(condition: Object) -> bool:
    """Conditions that explain replicas: those of scaling, and all that are not well."""
    good = "False" if condition["type"] in WELL_WHEN_FALSE else "True"
    return "Scaling" in condition["type"] or condition["status"] != good


def _moves(decision: Object) -> str:
    before, after = decision.get("from", {}), decision.get("to", {})
    return ", ".join(
        f"{role} {before[role]} → {n}" if before.get(role, n) != n else f"{role} {n}"
        for role, n in after.items()
    )


def _decision(last: Object) -> list[str]:
    lines = [f"Decided at {last['time']}: {_moves(last)}"]
    reason = str(last.get("boundBy") or last.get("reason", ""))
    lines.append(f"Rule     {reason}: {meaning(reason)}")
    decision = (last.get("record") or {}).get("decision")
    if decision is None:
        return [*lines, *([last["message"]] if last.get("message") else [])]
    for target in decision["targets"]:
        lines.append(
            f"  {target['role']:<10} {target['current']} → {target['replicas']}"
            f"  load asks for {target['demanded']}; bound by {target['rule']}"
        )
    if decision["numbers"]:
        lines += ["", "Numbers"]
        lines += [f"  {with_unit(k, v)}" for k, v in decision["numbers"].items()]
    if decision["candidates"]:
        goal = ((last["record"].get("goals") or {}).get("slo") or {}).get("attainment")
        lines += ["", "Candidates"]
        for target in decision["targets"]:
            lines += _candidates(target, decision["candidates"], goal)
    return lines


def _candidates(target: Object, candidates: list[Object], goal: float | None) -> list[str]:
    """What fewer and more replicas of a role would do, and why they were not taken."""
    lines, role, taken = [], target["role"], target["replicas"]
    for c in (c for c in candidates if c["role"] == role):
        n, share = c["replicas"], c["attainment"]
        if n == taken:
            why = f"taken: {target['rule']}"
        elif n < taken and goal is not None and share < goal:
            why = f"why not fewer: below the goal of {goal:.0%}"
        elif n < taken:
            why = f"why not fewer: {meaning(target['rule'])}"
        elif n <= target["demanded"]:
            why = f"why not more: {meaning(target['rule'])}"
        else:
            why = "why not more: fewer suffice"
        lines.append(f"  {role:<10} {n:>3}  {share:>6.1%} predicted  {c['gpus']:>3} GPUs  {why}")
    return lines


def meaning(rule: str) -> str:
    """The rule in words; an unknown one (of a newer operator) as it is."""
    return MEANING[Rule(rule)] if rule in set(Rule) else rule


def with_unit(name: str, value: float) -> str:
    for ending, unit in UNITS:
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')}: {value:.4g}{unit}"
    return f"{name.replace('_', ' ')}: {value:.4g}"
