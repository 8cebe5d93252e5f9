"""The operator's own metrics (designs/0001-seams.md §5). Every label value starts at 0."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram

from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.scaling.decision import Rule

ROUNDS = Counter("argosy_operator_reconcile_total", "Rounds of fleets' loops.", ["result"])
SECONDS = Histogram(
    "argosy_operator_reconcile_seconds",
    "Duration of one round.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
DECISIONS = Counter("argosy_operator_decisions_total", "Decisions of the law.", ["reason"])
LEADER = Gauge("argosy_operator_leader", "1 while this replica leads.")
WRITES = Counter(
    "argosy_operator_writes_total", "Writes to the API server, Leases apart.", ["verb", "kind"]
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


def count_decision(draft: Draft) -> None:
    if draft.decision is not None:
        DECISIONS.labels(draft.decision.rule.value).inc()


@contextmanager
def round_timer() -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        SECONDS.observe(time.monotonic() - began)
