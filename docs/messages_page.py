"""The page of messages: what conditions say in the worlds of tests/core/status."""

from collections.abc import Iterator

from argosy_operator.api.conditions import Reason
from tests.core.status.test_conditions_of_serving_roles import role_messages
from tests.core.status.test_every_reason import ROWS
from tests.core.status.worlds import messages


def page(note: str) -> str:
    """Return one row for each message, in the order of the reasons."""
    return "\n".join(
        (
            "# Messages of conditions",
            note,
            "What conditions say in some fleets named `chat`; `NEW` stands for the revision. "
            "[Conditions](conditions.md) says when a condition has which reason. The link to the "
            "runbook at the end of a message is left out.\n",
            "| reason | condition | message |\n|---|---|---|",
            *_rows(),
            "",
        )
    )


def _rows() -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for seen in (*(messages(row.world) for row in ROWS), role_messages()):
        for key, types in seen.items():
            found.setdefault(key, types)
    for reason in Reason:
        for (name, text), types in found.items():
            if name == reason:
                yield f"| `{reason}` | {', '.join(types)} | {text.replace('|', chr(92) + '|')} |"
