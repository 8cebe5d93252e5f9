"""The decisions in status: the last one with its record, the ones before it, and their times."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_operator.api.model import dump
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.status.numbers import autoscaling_status
from argosy_operator.core.steps.draft import Draft
from tests.core.status.worlds import GATEWAY, NOW, World, pod, snapshot_of, status

SPLIT = {"mode": "disaggregated"}
PAIR = (pod("prefill"), pod("decode"), GATEWAY)
RECORD = {"now": NOW, "state": {"learnt": True}}
DECISION = Decision(
    at=NOW,
    targets=(
        RoleTarget("prefill", 2, 2, 2, Rule.HOLD, ""),
        RoleTarget("decode", 1, 3, 3, Rule.GPU_BUDGET, ""),
    ),
    rule=Rule.HOLD,
    message="decode 1 → 3: why",
    active=True,
    reachable=True,
    numbers={},
)
SAID = {
    "time": "2026-01-01T00:00:00Z",
    "reason": "GPUBudget",
    "message": "decode 1 → 3: why",
    "from": {"prefill": 2, "decode": 1},
    "to": {"prefill": 2, "decode": 3},
    "boundBy": "GPUBudget",
}
EARLIER = {
    "time": "2025-12-31T00:00:00Z",
    "reason": "Demand",
    "message": "earlier",
    "from": {"decode": 2},
    "to": {"decode": 1},
}


def written(
    decision: Decision | None = DECISION, *, scaled: bool = True, **before: Any
) -> dict[str, Any]:
    """status.autoscaling after a round with this decision."""
    world = World(SPLIT, PAIR, status={"autoscaling": before})
    draft = Draft(memory=LoopMemory(), decision=decision, scaled=scaled, record=RECORD)
    return autoscaling_status(snapshot_of(world, LoopMemory(), NOW), draft)


def test_a_decision_that_changes_replicas_stands_in_status_with_its_record() -> None:
    assert written() == {
        "lastDecision": SAID | {"record": RECORD},
        "history": [SAID],
        "lastScaleTime": {"decode": "2026-01-01T00:00:00Z"},
    }


def test_an_earlier_decision_loses_its_record_and_a_role_that_stays_keeps_its_time() -> None:
    found = written(
        lastDecision=EARLIER | {"record": {"now": 1.0}},
        history=[EARLIER],
        lastScaleTime={"prefill": "2025-12-30T00:00:00Z", "decode": "2025-12-31T00:00:00Z"},
    )
    assert found["lastDecision"] == SAID | {"record": RECORD}
    assert found["history"] == [SAID, EARLIER]
    assert found["lastScaleTime"] == {
        "prefill": "2025-12-30T00:00:00Z",
        "decode": "2026-01-01T00:00:00Z",
    }


def test_the_history_has_five_decisions_with_the_newest_first() -> None:
    old = [EARLIER | {"message": f"the one {n} before"} for n in range(1, 6)]
    messages = [entry["message"] for entry in written(history=old)["history"]]
    assert messages == [
        "decode 1 → 3: why",
        "the one 1 before",
        "the one 2 before",
        "the one 3 before",
        "the one 4 before",
    ]


@pytest.mark.parametrize(
    ("decision", "scaled"), [(DECISION, False), (None, True)], ids=["not carried out", "none"]
)
def test_a_round_that_changes_no_replicas_keeps_the_last_decision(
    decision: Decision | None, scaled: bool
) -> None:
    last = EARLIER | {"record": {"now": 1.0}}
    found = written(decision, scaled=scaled, lastDecision=last, history=[EARLIER])
    assert found == {"lastDecision": last, "history": [EARLIER]}


def test_a_decision_that_moves_no_role_is_bound_by_none() -> None:
    stays = replace(DECISION, targets=(RoleTarget("decode", 3, 3, 3, Rule.DEMAND, ""),))
    found = written(stays)
    assert (found["lastDecision"]["reason"], found["lastDecision"]["boundBy"]) == ("Hold", None)
    assert found["lastScaleTime"] == {}


def test_a_long_message_is_cut_to_what_the_schema_takes() -> None:
    long = replace(DECISION, message="x" * 5000)
    assert len(written(long)["lastDecision"]["message"]) == 1024


def test_a_minimum_that_the_user_raises_is_a_decision_in_status() -> None:
    """A whole round: from the spec's edit to the record that `explain` replays."""
    world = World({"roles": {"colocated": {"replicas": {"min": 3, "max": 4}}}}, deployed={})
    shrunk = replace(world, wanted={"colocated": 1})
    last = dump(status(shrunk))["autoscaling"]["lastDecision"]
    assert (last["from"], last["to"]) == ({"colocated": 1}, {"colocated": 3})
    assert (last["reason"], last["time"]) == ("NoSLO", "2026-01-01T00:00:00Z")
    assert {"state", "observations", "goals", "now", "decision"} == last["record"].keys()
