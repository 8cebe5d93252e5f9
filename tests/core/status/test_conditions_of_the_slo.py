"""What status says of the SLO, the scaling law and its metrics: one row for each world, by hand.

The rows follow docs/reference/conditions.md and the runbook. A row names every condition that is
not as `FOLLOWING` has it, so it also says what does not change."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from argosy_law.decision import Decision, Lack, RoleTarget, Rule
from argosy_law.goals import Whose
from argosy_law.observe import FleetMetrics, Idle, Signal, Value, unknown_metrics
from argosy_law.slo import Errors, Verdicts, taken
from tests.core.status.worlds import GATEWAY, NOW, Row, World, compare, pod, status, unready

SLO = {"slo": {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}}
"""The goal is the default: 90% of the requests."""
FOLLOWING = {
    "SLOMet": "True TargetsMet",
    "ErrorBudgetBurning": "Unknown NoTraffic",
    "SLOFeasible": "True AsSpecified",
    "ScalingActive": "True AsSpecified",
    "MetricsAvailable": "True Measured",
}
"""An SLO is set, the law follows the load, and requests meet their targets."""
UNMEASURED = {
    "SLOMet": "Unknown MetricsUnavailable",
    "SLOFeasible": "Unknown MetricsUnavailable",
    "ScalingActive": "False MetricsUnavailable",
}
SIZED = {"colocated_planned_per_s": 2.0, "colocated_batch_limit": 8.0}


def decided(
    rule: Rule = Rule.DEMAND, numbers: Mapping[str, float] = SIZED, **more: Any
) -> Decision:
    """The law's last decision: one replica, bound by this rule."""
    target = RoleTarget("colocated", 1, 1, 1, rule, "")
    said = Decision(NOW, (target,), rule, "why", active=True, reachable=True, numbers=dict(numbers))
    return replace(said, **more)


BUDGETS: tuple[Whose, ...] = ("object", "namespace", "operator")
BLIND = decided(Rule.METRICS_UNAVAILABLE, {}, active=False, message="no metrics: why")


def after(decision: Decision | None, attained: str | None = "0.950", **more: Any) -> World:
    """Between two decisions; the share of requests within the SLO as status has it."""
    goodput = None if attained is None else {"attainment": attained}
    return World(**({"spec": SLO, "decision": decision, "status": {"goodput": goodput}} | more))


def burnt(misses: float) -> Errors:
    """Four days of requests, of which this share missed."""
    bins = (Verdicts(NOW - 60 * n, 1000 * (1 - misses), 1000.0) for n in range(5760, -1, -1))
    return taken(Errors(), bins, 60.0)


def asked(arrivals: Signal, **more: Any) -> World:
    """The law is due, and Prometheus answers this."""
    return World(spec=SLO, metrics=FleetMetrics(NOW, arrivals, **more))


def unknown(reason: str) -> World:
    return World(spec=SLO, metrics=unknown_metrics(NOW, reason))


def lone_request(**numbers: float) -> Decision:
    """A request alone in the fleet misses the SLO."""
    return decided(Rule.SLO_UNREACHABLE, SIZED | numbers, reachable=False)


ROWS = [
    Row(
        "the law only advises",
        after(decided(), spec=SLO | {"autoscaling": {"advisory": True}}),
        {"ScalingActive": "False ExternalOwner"},
    ),
    Row(
        "no requests arrive, and it has gone to zero",
        World(
            SLO | {"autoscaling": {"scaleToZero": {}}},
            (GATEWAY,),
            wanted={"colocated": 0},
            deployed={"colocated": 0},
            status={"goodput": {"attainment": "0.500"}},
        ),
        {
            "Ready": "True ScaledToZero",
            "Servable": "False ScaledToZero",
            "SLOMet": "Unknown ScaledToZero",
            "SLOFeasible": "Unknown ScaledToZero",
            "ScalingActive": "True ScaledToZero",
            "MetricsAvailable": "Unknown ScaledToZero",
        },
    ),
    Row(
        "requests meet their targets",
        after(decided()),
        {},
    ),
    Row(
        "the operator's clock is a minute ahead",
        after(decided(clock_skew_s=60.0)),
        {},
    ),
    Row("exactly the goal is met", after(decided(), "0.900"), {}),
    Row(
        "fewer requests than the goal meet their targets",
        after(decided(), "0.899"),
        {"SLOMet": "False TargetsMissed"},
    ),
    Row(
        "no request was answered within the window",
        after(decided(), None),
        {"SLOMet": "Unknown NoTraffic", "SLOFeasible": "Unknown NoTraffic"},
    ),
    Row(
        "the law sized no role from its load",
        after(decided(Rule.IDLE, {"colocated_batch_limit": 8.0})),
        {"SLOFeasible": "Unknown NoTraffic"},
    ),
    Row(
        "the operator has just started",
        after(None, None),
        {
            "SLOMet": "Unknown NoTraffic",
            "SLOFeasible": "Unknown NoTraffic",
            "MetricsAvailable": "Unknown Unknown",
        },
    ),
    Row(
        "a prompt alone misses the target of the first token",
        after(lone_request(ttft_reachable=0.6, tpot_reachable=1.0)),
        {"SLOFeasible": "False FloorAboveTarget"},
    ),
    Row(
        "a request alone misses the target per token",
        after(lone_request(ttft_reachable=1.0, tpot_reachable=0.0)),
        {"SLOFeasible": "False FloorAboveTarget"},
    ),
    Row(
        "short answers alone lose too much by their transfer, whatever long ones do",
        after(lone_request(ttft_reachable=0.95, tpot_reachable=0.94)),
        {"SLOFeasible": "False FloorAboveTarget"},
    ),
    Row(
        "answers of which some miss alone are feasible if the goal allows them",
        after(decided(numbers=SIZED | {"tpot_reachable": 0.95})),
        {},
    ),
    *(
        Row(
            f"the GPU budget of the {whose} allows fewer replicas than are needed",
            after(decided(Rule.GPU_BUDGET, lack=Lack(4, whose))),
            {"SLOFeasible": "False GPUBudget", "CapacityLimited": "True GPUBudget"},
        )
        for whose in BUDGETS
    ),
    Row(
        "replicas.max allows fewer replicas than are needed",
        after(decided(Rule.MAX_REPLICAS)),
        {"SLOFeasible": "False MaxReplicasBound"},
    ),
    Row(
        "one role is bound by its maximum and the other by the budget",
        after(
            replace(
                decided(),
                targets=(
                    RoleTarget("prefill", 1, 1, 2, Rule.MAX_REPLICAS, ""),
                    RoleTarget("decode", 1, 1, 2, Rule.GPU_BUDGET, ""),
                ),
            ),
            spec=SLO | {"mode": "disaggregated"},
            pods=(pod("prefill"), pod("decode"), GATEWAY),
        ),
        {"SLOFeasible": "False GPUBudget", "CapacityLimited": "True GPUBudget"},
    ),
    Row(
        "a request alone misses the SLO, and the budget is used up",
        after(replace(lone_request(), targets=decided(Rule.GPU_BUDGET).targets)),
        {"SLOFeasible": "False FloorAboveTarget", "CapacityLimited": "True GPUBudget"},
    ),
    Row(
        "no node has room, and the budget is used up",
        after(
            decided(Rule.GPU_BUDGET),
            pods=(pod("colocated"), unready("colocated", 2, unschedulable="0/3"), GATEWAY),
        ),
        {
            "SLOFeasible": "False GPUBudget",
            "CapacityLimited": "True Unschedulable",
            "Reconciling": "False Unschedulable",
            "Stalled": "True Unschedulable",
        },
    ),
    Row(
        "the budget is used up, and a pod's GPUs cannot be read",
        after(decided(Rule.GPU_BUDGET), pods=(pod("colocated", unreadable="x"), GATEWAY)),
        {"SLOFeasible": "False GPUBudget", "CapacityLimited": "True GPUBudget"},
    ),
    Row(
        "what was learnt of a replica was not usable",
        after(decided(relearning=("colocated",))),
        {"ScalingActive": "True SignalsUnknown"},
    ),
    Row(
        "Prometheus is away, and the gateways say what their load is",
        after(decided(gateways_alone="PrometheusTimeout: it took over 5 s", unknown=("a b",))),
        {
            "SLOMet": "Unknown GatewaysAlone",
            "SLOFeasible": "Unknown GatewaysAlone",
            "ScalingActive": "True GatewaysAlone",
            "MetricsAvailable": "False GatewaysAlone",
        },
    ),
    Row(
        "metrics of a role are unknown",
        after(decided(unknown=("colocated running", "colocated output_tokens"))),
        {"ScalingActive": "True SignalsUnknown"},
    ),
    Row(
        "a rollout: the law waits for it",
        after(decided(), old="colocated", pods=(pod("colocated", revision="old"), GATEWAY)),
        {
            "RolledOut": "False RollingOut",
            "ScalingActive": "False RollingOut",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
        },
    ),
    Row(
        "a rollout without metrics",
        after(BLIND, old="colocated", pods=(pod("colocated", revision="old"), GATEWAY)),
        UNMEASURED
        | {
            "MetricsAvailable": "False MetricsUnavailable",
            "ScalingActive": "False RollingOut",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
        }
        | {"RolledOut": "False RollingOut"},
    ),
    Row(
        "a paused fleet whose others scale it",
        after(None, spec=SLO | {"paused": True, "autoscaling": {"policy": "External"}}),
        {
            "RolledOut": "False Paused",
            "SLOMet": "Unknown ExternalOwner",
            "ErrorBudgetBurning": "Unknown ExternalOwner",
            "SLOFeasible": "Unknown ExternalOwner",
            "ScalingActive": "False Paused",
            "PeersVerified": "False RollingOut",
            "MetricsAvailable": "Unknown ExternalOwner",
            "Reconciling": "False Paused",
            "Progressing": "False Paused",
        },
    ),
    *(
        Row(
            f"{words}: {misses} of the requests of four days missed",
            after(decided(), errors=burnt(misses), before={"ErrorBudgetBurning": before}),
            {"ErrorBudgetBurning": says},
        )
        for words, misses, before, says in (
            ("a promise is kept", 0.02, "Unknown NoTraffic", "False AsSpecified"),
            ("the budget is gone in days", 0.95, "False AsSpecified", "True BurningFast"),
            ("it burns slowly", 0.15, "False AsSpecified", "True BurningSlowly"),
            ("it did not burn fast before", 0.5, "False AsSpecified", "True BurningSlowly"),
            ("it still burns at half", 0.5, "True BurningFast", "True BurningFast"),
            ("it still burns slowly", 0.06, "True BurningSlowly", "True BurningSlowly"),
            ("it is over", 0.04, "True BurningSlowly", "False AsSpecified"),
        )
    ),
    Row(
        "what was said stays until verdicts are known again",
        after(BLIND, before={"ErrorBudgetBurning": "True BurningFast"}),
        UNMEASURED
        | {
            "MetricsAvailable": "False MetricsUnavailable",
            "ErrorBudgetBurning": "True BurningFast",
        },
    ),
    *(
        Row(
            f"policy {policy}, {words}",
            after(
                decided(Rule.GPU_BUDGET, silent_gateways=("gateway-b",)),
                spec=slo | {"autoscaling": {"policy": policy}},
            ),
            {
                "SLOMet": f"Unknown {about_slo}",
                "ErrorBudgetBurning": f"Unknown {about_slo}",
                "SLOFeasible": f"Unknown {about_slo}",
                "ScalingActive": f"False {reason}",
                "MetricsAvailable": f"Unknown {reason}",
            },
        )
        for policy, reason in (("External", "ExternalOwner"), ("None", "PolicyNone"))
        for words, slo, about_slo in (
            ("with an SLO", SLO, reason),
            ("without an SLO", dict[str, Any](), "NoSLO"),
        )
    ),
    *(
        Row(
            f"Prometheus: {code}",
            unknown(f"{code}: in words"),
            UNMEASURED | {"MetricsAvailable": f"False {reason}"},
        )
        for code, reason in (
            ("NoPrometheus", "NoPrometheus"),
            ("PrometheusNotAllowed", "PrometheusNotAllowed"),
            ("PrometheusAway", "PrometheusUnreachable"),
            ("PrometheusTimeout", "PrometheusUnreachable"),
            ("NoGatewayTarget", "NoTargets"),
            ("GatewayDown", "NoTargets"),
            ("GatewaySilent", "GatewaySilent"),
            ("Stale", "Stale"),
            ("NotANumber", "NotANumber"),
            ("FirstSample", "MetricsUnavailable"),
        )
    ),
    Row(
        "the newest samples are too old",
        asked(Value(5.0, NOW - 3600.0)),
        UNMEASURED | {"MetricsAvailable": "False Stale"},
    ),
    *(
        Row(
            f"between two decisions without metrics, {reason} stays the cause",
            after(BLIND, before={"SLOMet": "False Stale", "MetricsAvailable": f"False {reason}"}),
            UNMEASURED | {"MetricsAvailable": f"False {reason}"},
        )
        for reason in ("NoPrometheus", "MetricsUnavailable")
    ),
    Row(
        "metrics are back: the cause of before is over",
        after(decided(), before={"MetricsAvailable": "False Stale"}),
        {},
    ),
    Row(
        "no request arrives, as of the last decision",
        after(decided(), before={"MetricsAvailable": "True Idle", "SLOMet": "Unknown NoTraffic"}),
        {"MetricsAvailable": "True Idle"},
    ),
    Row(
        "a ready gateway pod is silent",
        after(decided(silent_gateways=("gateway-b", "gateway-c"))),
        {"MetricsAvailable": "False GatewaySilent"},
    ),
    Row(
        "a role's own pods are silent: what the gateways measured still counts",
        after(decided(Rule.METRICS_UNAVAILABLE)),
        {},
    ),
    Row(
        "the law did not run for another cause than metrics",
        after(decided(Rule.NO_SLO, active=False)),
        {},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_how_the_fleet_follows_its_slo(row: Row) -> None:
    found, expected = compare(replace(row, says=FOLLOWING | row.says))
    assert found == expected


def message(world: World, reason: str) -> str:
    return next(c.message for c in status(world).conditions if c.reason == reason)


@pytest.mark.parametrize("skew_s", [30.0, -30.0, 31.0, -31.0, 121.0, 601.0, 3601.0, -86_401.0])
def test_a_clock_that_differs_from_that_of_prometheus_is_named(skew_s: float) -> None:
    skewed = {"clock_skew_s": skew_s}
    idle = {"MetricsAvailable": "True Idle"}
    said = (
        message(after(decided(**skewed)), "Measured"),
        message(after(decided(**skewed), before=idle), "Idle"),
        message(after(replace(BLIND, **skewed)), "MetricsUnavailable"),
    )
    assert ["NTP" in text for text in said] == [abs(skew_s) > 30.0] * 3


def test_joint_attainment_is_joint() -> None:
    """Nine of ten requests meet each target, and only half of them meet both."""
    world = asked(
        Value(8.0, NOW),
        attainment=Value(0.5, NOW),
        ttft_attainment=Value(0.9, NOW),
        tpot_attainment=Value(0.9, NOW),
        scored=100.0,
    )
    said = status(world)
    (met,) = (c for c in said.conditions if c.type == "SLOMet")
    assert (met.status, met.reason) == ("False", "TargetsMissed")
    assert said.goodput is not None
    assert (said.goodput.attainment, said.goodput.rps) == ("0.500", "4.0")
    assert said.columns.slo == "Missed"


def test_requests_that_arrive_again_end_idle() -> None:
    idle = {"MetricsAvailable": "True Idle"}
    said = {
        words: status(replace(asked(arrivals), before=idle)).conditions
        for words, arrivals in (("none", Idle(NOW)), ("some", Value(0.1, NOW)))
    }
    reasons = {
        words: next(c.reason for c in conditions if c.type == "MetricsAvailable")
        for words, conditions in said.items()
    }
    assert reasons == {"none": "Idle", "some": "Measured"}
