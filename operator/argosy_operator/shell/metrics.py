"""The operator's own metrics (designs/0001-seams.md §5). Every label value starts at 0."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, get_args

from prometheus_client import Counter, Gauge, Histogram

from argosy_law.decision import Rule
from argosy_law.slo import WINDOWS, Spent
from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.core.steps.draft import Draft

SEVERITIES = ("Page", "Ticket")
Rows = Mapping[tuple[str, ...], float]
"""Values by the labels behind those of the fleet."""
_FLEET = ("fleet_namespace", "fleet_name")
_ROLES = get_args(RoleName)
_BOUND = [(role, rule.value) for role in _ROLES for rule in Rule]

ROUNDS = Counter("argosy_operator_reconcile_total", "Rounds of fleets' loops.", ["result"])
SECONDS = Histogram(
    "argosy_operator_reconcile_seconds",
    "Duration of one round.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
WAITING = Gauge(
    "argosy_operator_rounds_waiting", "Fleets whose round is due and waits for others to end."
)
DECISIONS = Counter("argosy_operator_decisions_total", "Decisions of the law.", ["reason"])
LEADER = Gauge("argosy_operator_leader", "1 while this replica leads.")
WATCH_AGE = Gauge(
    "argosy_operator_watch_age_seconds",
    "Seconds since the API server last answered the leader's watch of a kind.",
    ["kind"],
)
WRITES = Counter(
    "argosy_operator_writes_total", "Writes to the API server, Leases apart.", ["verb", "kind"]
)

BUDGET_USED = Gauge(
    "argosy_operator_error_budget_used",
    "Share of the error budget of the last 30 days that is spent.",
    _FLEET,
)
BURN_RATE = Gauge(
    "argosy_operator_burn_rate",
    "How fast the error budget is spent; at 1 it lasts for 30 days.",
    (*_FLEET, "window"),
)
BUDGET_ALERT = Gauge(
    "argosy_operator_error_budget_alert",
    "1 while the burn rates ask for a page, or for a ticket.",
    (*_FLEET, "severity"),
)

CONDITION = Gauge(
    "argosy_operator_condition",
    "1 for a condition of a fleet that is True, 0 for one that is False; Unknown has no series.",
    (*_FLEET, "type"),
)
REPLICAS = Gauge(
    "argosy_operator_replicas", "Replicas that a role of a fleet is to have.", (*_FLEET, "role")
)
BOUND_BY = Gauge(
    "argosy_operator_bound_by",
    "Constant 1 for the rule that bound a role's replicas in the newest decision.",
    (*_FLEET, "role", "rule"),
)

for _result in ("done", "failed"):
    ROUNDS.labels(_result)
for _rule in Rule:
    DECISIONS.labels(_rule.value)
for _verb, _kind in (("create", "Deployment"), ("scale", "Deployment"), ("apply", "Deployment")):
    WRITES.labels(_verb, _kind)


def count_round(result: str) -> None:
    ROUNDS.labels(result).inc()


def count_write(verb: str, kind: str) -> None:
    WRITES.labels(verb, kind).inc()


def show_decision(key: FleetKey, draft: Draft) -> None:
    """Show the replicas of a fleet's roles, and what bound them in the newest decision."""
    _set(REPLICAS, key, [(role,) for role in _ROLES], {(r,): n for r, n in draft.targets.items()})
    if draft.decision is not None:
        DECISIONS.labels(draft.decision.rule.value).inc()
        bound: Rows = {(t.role, t.rule.value): 1.0 for t in draft.decision.targets}
        _set(BOUND_BY, key, _BOUND, bound)


def show_conditions(key: FleetKey, conditions: Iterable[Mapping[str, Any]]) -> None:
    """Show the conditions of a fleet's status."""
    known: Rows = {
        (one["type"],): float(one["status"] == "True")
        for one in conditions
        if one["status"] != "Unknown"
    }
    _set(CONDITION, key, [(type_.value,) for type_ in ConditionType], known)


def forget(key: FleetKey) -> None:
    """Take all series of a fleet away."""
    show_errors(key, None)
    show_conditions(key, ())
    _set(REPLICAS, key, [(role,) for role in _ROLES], {})
    _set(BOUND_BY, key, _BOUND, {})


def show_watch(kind: str, age_s: Callable[[], float]) -> None:
    """Show a watch's age; `age_s` is asked at each scrape: a watch that hangs grows old without an
    event."""
    WATCH_AGE.labels(kind).set_function(age_s)


def show_errors(key: FleetKey, spent: Spent | None) -> None:
    """Show the error budget of one fleet. What is not known has no series, as it is not 0."""
    used: Rows = {} if spent is None or spent.used is None else {(): spent.used}
    burn: Rows = {} if spent is None else {(window,): rate for window, rate in spent.burn.items()}
    alert: Rows = {} if spent is None else {(s,): float(spent.alert == s) for s in SEVERITIES}
    _set(BUDGET_USED, key, [()], used)
    _set(BURN_RATE, key, [(window,) for window in WINDOWS], burn)
    _set(BUDGET_ALERT, key, [(severity,) for severity in SEVERITIES], alert)


def _set(
    gauge: Gauge,
    key: FleetKey,
    rows: Iterable[tuple[str, ...]],
    values: Rows,
) -> None:
    for row in rows:
        if row in values:
            gauge.labels(*key, *row).set(values[row])
        else:
            with suppress(KeyError):
                gauge.remove(*key, *row)


@contextmanager
def round_timer() -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        SECONDS.observe(time.monotonic() - began)
