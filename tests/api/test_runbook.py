"""The runbook: a page per reason, with a person's words for each reason that needs a person."""

import re
from pathlib import Path

import pytest

from argosy_operator.api.conditions import RUNBOOK, Reason
from argosy_operator.core.fleet import names
from docs import generate
from docs.runbook_pages import written_by_hand

ROOT = Path(__file__).resolve().parents[2]


def page(reason: Reason) -> Path:
    return ROOT / RUNBOOK / f"{reason}.md"


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.action])
def test_a_reason_that_needs_a_person_has_text_by_a_person(reason: Reason) -> None:
    assert len(written_by_hand(page(reason).read_text())) > 100


def test_commands_use_labels_that_pods_have() -> None:
    """The API may not import the names of core, so the label is written a second time."""
    labels = {found for reason in Reason for command in reason.commands
              for found in re.findall(r"-l ([^ =]+)=NAME", command)}  # fmt: skip
    assert labels == {names.FLEET}


def test_hand_written_text_survives_regeneration_and_the_rest_does_not() -> None:
    path = page(Reason.OUT_OF_MEMORY)
    text = path.read_text()
    edited = text.replace("## What to do", "## Whatever") + "\nMore.\n"
    assert generate.runbook_pages.page(Reason.OUT_OF_MEMORY, edited) == text + "\nMore.\n"


def test_links_of_the_pages_lead_somewhere() -> None:
    links = [
        (path.name, target)
        for path in (ROOT / RUNBOOK).glob("*.md")
        for target in re.findall(r"\]\(([^)#]+)", path.read_text())
    ]
    assert links
    assert [link for link in links if not (ROOT / RUNBOOK / link[1]).exists()] == []


def test_a_missing_page_and_one_of_an_unknown_reason_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    (tmp_path / RUNBOOK).mkdir(parents=True)
    (tmp_path / RUNBOOK / "NoSuchReason.md").write_text("")
    different = generate.differing()
    assert f"{RUNBOOK}/NoSuchReason.md" in different
    assert f"{RUNBOOK}/OutOfMemory.md" in different
