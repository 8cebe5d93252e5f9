"""The messages of conditions: what is true of this fleet, and what to do about it.

A reason that is not here has a general message, `Reason.meaning`.
"""

from argosy_operator.api.conditions import Reason
from argosy_operator.core.reconcile import contests
from argosy_operator.core.status.decided import lacks_metrics, messages_of_decision
from argosy_operator.core.status.findings import Findings

_NOT_REACHABLE = (
    "the replicas carry the load, and more would not help. Raise the target, or serve on faster "
    "GPUs"
)
_BUDGET = "more replicas are needed than spec.autoscaling.gpuBudget.max allows"

FIXED: dict[Reason, str] = {
    Reason.PAUSED: "spec.paused is true: nothing is written but status",
    Reason.EXTERNAL_OWNER: "replicas follow the ServingRoles, which others turn",
    Reason.POLICY_NONE: "spec.autoscaling.policy is None: replicas stay at their minimum",
    Reason.GATEWAY_NOT_READY: "no gateway pod is ready",
    Reason.GPU_BUDGET: _BUDGET,
    Reason.BUDGET_BOUND: _BUDGET,
    Reason.MAX_REPLICAS_BOUND: "more replicas are needed than the roles' replicas.max allows",
    Reason.TTFT_FLOOR_ABOVE_TARGET: "a prompt alone takes longer than spec.slo.ttft.target: "
    + _NOT_REACHABLE,
    Reason.TPOT_FLOOR_ABOVE_TARGET: "a lone answer takes longer per token than "
    "spec.slo.tpot.target: " + _NOT_REACHABLE,
}
"""Messages that do not depend on the fleet."""


def messages_of(findings: Findings) -> dict[Reason, str]:
    """A message per reason that this round can be specific about."""
    messages = {problem.reason: problem.message for problem in findings.problems}
    messages |= FIXED | _of_fleet(findings) | messages_of_decision(findings.decision)
    problem = findings.metrics_problem
    if problem is not None and lacks_metrics(findings.decision):
        messages[problem] = messages[Reason.METRICS_UNAVAILABLE]
    return {reason: text for reason, text in messages.items() if text}


def _of_fleet(findings: Findings) -> dict[Reason, str]:
    snapshot, draft = findings.snapshot, findings.draft
    spec = snapshot.fleet.spec
    external = spec.autoscaling.policy == "External"
    messages = {
        Reason.FOREIGN_OBJECT: f"{', '.join(findings.conflicts)}: there already, and somebody "
        "else's; left untouched. Delete what is in the way, or rename the fleet",
        Reason.PUT_BACK_AGAIN: f"{'; '.join(contests.shown(draft.memory.contests))}: again and "
        "again, and Argosy puts it back more and more slowly. Stop the other side, or change the "
        "ServingDeployment",
        Reason.PODS_LEAVING: "pods finish their answers and then leave: "
        + ", ".join(sorted(pod.name for pod in draft.leaving)),
        Reason.NO_SLO: "spec.slo is not set"
        + ("" if external else ": replicas stay at their minimum"),
        Reason.ROLLING_OUT: f"revision {snapshot.revision} comes up; older pods leave when it "
        "serves",
    }
    if missing := ", ".join(f"{n} {role}" for role, n in findings.missing.items() if n):
        waiting = f"waiting for pods to become ready: {missing}"
        messages |= dict.fromkeys((Reason.STARTING, Reason.PODS_NOT_READY), waiting)
    attained = (findings.goodput or {}).get("attainment")
    if attained is not None and spec.slo is not None:
        share = f"{attained} of requests, goal {spec.slo.attainment}"
        messages |= dict.fromkeys((Reason.TARGETS_MET, Reason.TARGETS_MISSED), share)
    return messages
