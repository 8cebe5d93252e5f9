"""The operator's series of fleets: what is not known, or gone, has none."""

from prometheus_client import REGISTRY

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.slo import Spent
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.draft import Draft
from argosy_operator.shell.metrics import forget, show_conditions, show_decision, show_errors

KEY = ("ns", "series")
LABELS = {"fleet_namespace": "ns", "fleet_name": "series"}


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"argosy_operator_{name}", LABELS | labels)


def test_a_fleet_has_the_series_of_what_is_known_until_it_is_gone() -> None:
    show_errors(KEY, Spent(0.4, 0.0, 1.0, {"5m": 2.0, "1h": 3.0}, "Ticket"))
    assert value("error_budget_used") == 0.4
    assert value("burn_rate", window="1h") == 3.0
    assert value("burn_rate", window="3d") is None
    assert value("error_budget_alert", severity="Ticket") == 1.0
    assert value("error_budget_alert", severity="Page") == 0.0
    show_errors(KEY, Spent(None, 0.0, 1.0, {"5m": 1.0}, "None"))
    assert value("error_budget_used") is None
    assert value("burn_rate", window="1h") is None
    assert value("burn_rate", window="5m") == 1.0
    assert value("error_budget_alert", severity="Ticket") == 0.0
    show_errors(KEY, None)
    for name, labels in (
        ("burn_rate", {"window": "5m"}),
        ("error_budget_alert", {"severity": "Page"}),
    ):
        assert value(name, **labels) is None
    show_errors(KEY, None)


def test_a_condition_has_a_series_while_it_is_known() -> None:
    stalled = {"type": "Stalled", "status": "False"}
    show_conditions(KEY, [stalled, {"type": "MetricsAvailable", "status": "True"}])
    assert value("condition", type="Stalled") == 0.0
    assert value("condition", type="MetricsAvailable") == 1.0
    show_conditions(KEY, [stalled, {"type": "MetricsAvailable", "status": "Unknown"}])
    assert value("condition", type="MetricsAvailable") is None
    forget(KEY)
    assert value("condition", type="Stalled") is None


def test_what_bound_a_role_is_shown_until_another_decision_says_something_else() -> None:
    def decided(replicas: int, rule: Rule) -> Draft:
        target = RoleTarget("decode", 1, replicas, replicas, rule, "why")
        decision = Decision(0.0, (target,), rule, "why", True, True, {})
        return Draft(memory=LoopMemory(), targets={"decode": replicas}, decision=decision)

    show_decision(KEY, decided(2, Rule.BACKLOG))
    show_decision(KEY, Draft(memory=LoopMemory(), targets={"decode": 2}))
    assert value("replicas", role="decode") == 2
    assert value("bound_by", role="decode", rule="Backlog") == 1
    show_decision(KEY, decided(3, Rule.MAX_REPLICAS))
    assert value("replicas", role="decode") == 3
    assert value("bound_by", role="decode", rule="Backlog") is None
    assert value("bound_by", role="decode", rule="MaxReplicas") == 1
    forget(KEY)
    assert value("replicas", role="decode") is None
    assert value("bound_by", role="decode", rule="MaxReplicas") is None
