"""Conditions keep the time of their last change, and one order; each reason has its page."""

import shutil
from pathlib import Path

import pytest

from argosy_operator.api.conditions import (
    RUNBOOK,
    ConditionType,
    DesiredCondition,
    Reason,
    runbook_of,
    upsert,
    with_runbook,
)
from docs import generate
from docs.runbook_pages import written_by_hand

ROOT = Path(__file__).resolve().parents[2]
READY = ConditionType.READY


def desired(status="True", reason=Reason.AS_SPECIFIED, message="", kind=READY):
    return DesiredCondition(kind, status, reason, message)


def test_the_time_stays_while_the_status_stays():
    first = upsert([], [desired()], generation=1, now="T1")
    (condition,) = upsert(
        first, [desired(reason=Reason.PODS_LEAVING, message="more")], generation=2, now="T2"
    )
    assert condition["lastTransitionTime"] == "T1"
    assert (condition["reason"], condition["message"]) == ("PodsLeaving", "more")


def test_the_time_moves_with_the_status():
    first = upsert([], [desired()], generation=1, now="T1")
    (condition,) = upsert(first, [desired("Unknown", Reason.UNKNOWN)], generation=1, now="T2")
    assert condition["lastTransitionTime"] == "T2"


def test_conditions_of_others_are_kept_behind_ours():
    foreign = {"type": "Approved", "status": "True", "reason": "R", "lastTransitionTime": "T0"}
    result = upsert([foreign], [desired()], generation=1, now="T1")
    assert [condition["type"] for condition in result] == ["Ready", "Approved"]


def test_a_long_message_is_cut_to_what_the_schema_takes():
    (condition,) = upsert([], [desired(message="x" * 5000)], generation=1, now="T1")
    assert len(condition["message"]) == 1024


def test_reasons_that_need_a_person_have_a_page_and_others_send_users_nowhere():
    assert runbook_of("OutOfMemory") == "docs/runbook/OutOfMemory.md"
    assert runbook_of("AsSpecified") == ""
    assert runbook_of("SomebodyElses") == ""


def test_a_message_that_needs_a_person_ends_with_its_page_even_if_it_is_long():
    page = "docs/runbook/WriteFailed.md"
    assert with_runbook("no write.", "WriteFailed") == f"no write. See {page}"
    long = with_runbook("x" * 5000, "WriteFailed")
    assert long.endswith(f"See {page}")
    assert len(long) == 1024
    assert with_runbook("as asked", "AsSpecified") == "as asked"


def page(reason: Reason) -> Path:
    return ROOT / RUNBOOK / f"{reason}.md"


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.action])
def test_a_reason_that_needs_a_person_has_text_by_a_person(reason: Reason) -> None:
    assert len(written_by_hand(page(reason).read_text())) > 100


def test_a_missing_page_and_one_of_an_unknown_reason_are_named(tmp_path, monkeypatch) -> None:
    for name in ("pyproject.toml", *generate.NAMING):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(generate.ROOT / name, tmp_path / name)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    (tmp_path / RUNBOOK).mkdir(parents=True)
    (tmp_path / RUNBOOK / "NoSuchReason.md").write_text("")
    different = generate.differing()
    assert f"{RUNBOOK}/NoSuchReason.md" in different
    assert f"{RUNBOOK}/OutOfMemory.md" in different
