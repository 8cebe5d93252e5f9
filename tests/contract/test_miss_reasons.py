"""The reasons of a miss are the same in the gateway, in the operator's words and in the docs."""

import re
from pathlib import Path

from argosy_gateway.relay.verdicts import Miss
from argosy_law.slo import WORDS, in_words

PAGE = (Path(__file__).parents[2] / "docs/reference/misses.md").read_text()


def test_every_reason_has_words_and_a_row_of_the_page() -> None:
    reasons = [str(reason) for reason in Miss]
    assert list(WORDS) == reasons
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == reasons


def test_a_reason_of_a_newer_gateway_is_shown_as_it_is() -> None:
    assert in_words("moonlight", 0.1) == "10.0% missed it by moonlight"
