"""What the scaling law's last decision adds to status: facts, messages, and why metrics are
unavailable.

The decision is in the loop's memory, so it is also known in the rounds between two decisions. Two
facts come from the metrics themselves, which only the round of a decision has; the other rounds
read them back from the MetricsAvailable condition.
"""

from argosy_law.decision import Decision, Rule, lacks_metrics
from argosy_law.explain import alone_sentence, relearning_sentence
from argosy_law.goals import Whose
from argosy_law.observe import Idle
from argosy_law.signals.validity import why_unavailable
from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.status.table import METRICS_PROBLEMS, Fact
from argosy_operator.core.steps.goals import goals_of

CLOCK_STEPS = (
    (86_400.0, "1 day"),
    (3600.0, "1 hour"),
    (600.0, "10 minutes"),
    (120.0, "2 minutes"),
    (30.0, "30 seconds"),
)
"""Differences between two clocks that a message names, s. Few, so that a lasting difference gives
the same message each round. The last is well above the timeout of a query."""

PROBLEM_OF_CODE = {
    "NoPrometheus": Reason.NO_PROMETHEUS,
    "PrometheusNotAllowed": Reason.PROMETHEUS_NOT_ALLOWED,
    "PrometheusAway": Reason.PROMETHEUS_UNREACHABLE,
    "PrometheusTimeout": Reason.PROMETHEUS_UNREACHABLE,
    "NoGatewayTarget": Reason.NO_TARGETS,
    "GatewayDown": Reason.NO_TARGETS,
    "GatewaySilent": Reason.GATEWAY_SILENT,
    "Stale": Reason.STALE,
    "NotANumber": Reason.NOT_A_NUMBER,
}
"""Code before the colon of an unavailable signal's text (adapters/prometheus, signals/validity.py)
→ reason of the MetricsAvailable condition."""

_OR_WEIGHT = "or the share of this fleet in it by spec.autoscaling.gpuBudget.weight"
BUDGETS: dict[Whose, str] = {
    "object": "spec.autoscaling.gpuBudget.max allows. Raise it",
    "namespace": "the GPU budget of the namespace leaves to this fleet. Raise "
    f"operator.namespaceGpuBudgets in the values of the operator's chart, {_OR_WEIGHT}",
    "operator": "the GPU budget of all fleets leaves to this one. Raise operator.gpuBudget in the "
    f"values of the operator's chart, {_OR_WEIGHT}",
}
"""Whose budget binds → what it does, and what to raise."""


def facts_of_decision(decision: Decision | None) -> set[Fact]:
    """Facts that the last decision shows."""
    if decision is None:
        return set()
    rules = {target.rule for target in decision.targets}
    reach = decision.numbers
    decode_too_slow = reach.get("tpot_reachable", 1.0) < reach.get("ttft_reachable", 1.0)
    holds = {
        Fact.DECIDED: True,
        Fact.METRICS_UNAVAILABLE: lacks_metrics(decision),
        Fact.GATEWAYS_ALONE: bool(decision.gateways_alone),
        Fact.GATEWAY_SILENT: bool(decision.silent_gateways),
        Fact.GPU_BUDGET_BOUND: Rule.GPU_BUDGET in rules,
        Fact.MAX_REPLICAS_BOUND: Rule.MAX_REPLICAS in rules or _scheduled_below_need(decision),
        Fact.CAPACITY_RELEARNT: bool(decision.relearning),
        Fact.SIGNALS_UNKNOWN: bool(decision.unknown),
        Fact.SIZED: any(name.endswith("_planned_per_s") for name in decision.numbers),
        Fact.TTFT_UNREACHABLE: not decision.reachable and not decode_too_slow,
        Fact.TPOT_UNREACHABLE: not decision.reachable and decode_too_slow,
    }
    return {fact for fact, true in holds.items() if true}


def _scheduled_below_need(decision: Decision) -> bool:
    """The maximum of an open schedule is less than the load needs."""
    return any(t.rule is Rule.SCHEDULE and t.replicas < t.demanded for t in decision.targets)


def messages_of_decision(decision: Decision | None) -> dict[Reason, str]:
    """Messages that the last decision makes more specific."""
    if decision is None:
        return {}
    messages: dict[Reason, str] = {}
    if decision.relearning:
        messages[Reason.CAPACITY_RELEARNT] = relearning_sentence(decision.relearning)
    if lacks_metrics(decision):
        messages[Reason.METRICS_UNAVAILABLE] = decision.message
    if decision.gateways_alone:
        messages[Reason.GATEWAYS_ALONE] = alone_sentence(decision.gateways_alone)
    if decision.unknown:
        messages[Reason.SIGNALS_UNKNOWN] = (
            f"Prometheus has no samples of {', '.join(decision.unknown)}, so no replica of these "
            "roles is removed; replicas are still added. Check that Prometheus scrapes the engine "
            "pods"
        )
    if decision.lack is not None:
        why = (
            f"more replicas are needed than {BUDGETS[decision.lack.whose]}, or relax spec.slo. "
            "kubectl argosy explain has the GPUs that are missing"
        )
        messages[Reason.GPU_BUDGET] = why
    if decision.silent_gateways:
        silent = ", ".join(decision.silent_gateways)
        messages[Reason.GATEWAY_SILENT] = (
            f"Prometheus has no fresh samples of ready gateway pods: {silent}. No replica is "
            f"removed until it has. Check that it reaches port {names.GATEWAY_ADMIN_PORT} of each "
            "pod, and that relabelling sets the label pod"
        )
    beside = (_clock_message(decision.clock_skew_s), _twice_message(decision.scraped_twice))
    if said := "; ".join(filter(None, beside)):
        messages[Reason.MEASURED] = messages[Reason.IDLE] = said
        if Reason.METRICS_UNAVAILABLE in messages:
            messages[Reason.METRICS_UNAVAILABLE] += f"; {said}"
    return messages


def no_requests(snapshot: Snapshot) -> bool:
    """No request arrived, as of the last decision."""
    if snapshot.metrics is None:
        return Reason.IDLE in _last_reasons(snapshot)
    return isinstance(snapshot.metrics.arrivals, Idle)


def metrics_problem(snapshot: Snapshot) -> Reason | None:
    """Why the metrics are unavailable, as of the last decision; None where that has no reason of
    its own."""
    if snapshot.metrics is None:
        last = _last_reasons(snapshot)
        return next((reason for reason in METRICS_PROBLEMS if reason in last), None)
    why = why_unavailable(snapshot.metrics, goals_of(snapshot.fleet.spec).windows) or ""
    return PROBLEM_OF_CODE.get(why.partition(":")[0])


def _last_reasons(snapshot: Snapshot) -> list[str]:
    conditions = snapshot.fleet.status.conditions
    return [c.reason for c in conditions if c.type == ConditionType.METRICS_AVAILABLE]


def _twice_message(jobs: tuple[str, ...]) -> str:
    if not jobs:
        return ""
    return (
        f"several jobs of Prometheus scrape the same pods: {', '.join(jobs)}. The samples of one "
        "are used. Leave the fleet's pods out of the others"
    )


def _clock_message(skew_s: float) -> str:
    """Says that the operator's clock and Prometheus' differ, in steps of `CLOCK_STEPS`."""
    least = next((words for limit_s, words in CLOCK_STEPS if abs(skew_s) > limit_s), None)
    if least is None:
        return ""
    way = "ahead of" if skew_s > 0 else "behind"
    return (
        f"the operator's clock is more than {least} {way} Prometheus' clock. Decisions use "
        "Prometheus' clock; synchronize both with NTP"
    )
