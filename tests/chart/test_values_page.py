"""The table of values in the chart's README, from the comments of values.yaml."""

import pytest

from docs.chart_values import Value, read, table

TEXT = """\
# For readers of the file.
# -- How many there are,
# of each kind.
replicas: 2
# -- (int) At most.
budget: null
# -- Requests and limits.
resources:
  limits: {cpu: 1}
section:
  # Not of the table.

  # -- On a <name>, or a|b.
  enabled: false
"""


def test_a_value_has_its_name_type_default_and_what_is_said_above_it():
    assert read(TEXT) == [
        Value("replicas", "int", "2", "How many there are, of each kind."),
        Value("budget", "int", "null", "At most."),
        Value("resources", "object", '{"limits": {"cpu": 1}}', "Requests and limits."),
        Value("section.enabled", "bool", "false", "On a <name>, or a|b."),
    ]


def test_a_value_without_a_comment_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"above section\.enabled"):
        read("section:\n  # No dashes.\n  enabled: false\n")


def test_the_table_shows_what_markdown_would_take_for_its_own():
    *_, row = table(read(TEXT)).splitlines()
    assert row == "| `section.enabled` | bool | `false` | On a &lt;name>, or a\\|b. |"
