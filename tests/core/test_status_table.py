"""The truth table is whole: types, reasons and facts. tests/core/status has its rows by hand."""

from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.core.status.table import ROLE_TABLE, TABLE, Fact
from tests.support.model import converged

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
ROWS = [row for rows in (*TABLE.values(), *ROLE_TABLE.values()) for row in rows]


def test_every_type_has_rows_and_only_the_last_always_applies() -> None:
    assert set(TABLE) | set(ROLE_TABLE) == set(ConditionType)
    for rows in (*TABLE.values(), *ROLE_TABLE.values()):
        assert [row.when == row.unless == () for row in rows] == [False] * (len(rows) - 1) + [True]


def test_every_condition_has_a_sentence() -> None:
    """`explain` printed "AsSpecified: " and nothing behind it."""
    model = converged(slo=SLO)
    model.round()
    assert [c.type for c in model.fleet.status.conditions if not c.message] == []


def test_every_reason_is_in_the_table_and_has_a_meaning() -> None:
    """A reason that nothing sets would stand in alerts and in the runbook for nothing."""
    assert {row.reason for row in ROWS} == set(Reason)
    assert [reason for reason in Reason if not reason.meaning] == []


def test_every_fact_is_used_by_the_table() -> None:
    used = {fact for row in ROWS for fact in (*row.when, *row.unless)}
    assert {fact for fact in used if isinstance(fact, Fact)} == set(Fact)
