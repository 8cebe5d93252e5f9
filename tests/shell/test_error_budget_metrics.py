"""The error budget as series of the operator: what is not known, or gone, has none."""

from prometheus_client import REGISTRY

from argosy_law.slo import Spent
from argosy_operator.shell.metrics import show_errors

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
