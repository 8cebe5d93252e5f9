"""Durations, percentages and quantities keep their text and give their number."""

import pytest
from pydantic import TypeAdapter, ValidationError

from argosy_operator.api.fields import (
    CronText,
    Duration,
    DurationText,
    ZoneName,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), ("0s", 0.0)]
)
def test_a_duration_is_seconds(text, seconds):
    assert TypeAdapter(DurationText).validate_python(text).seconds == pytest.approx(seconds)
    assert Duration(text).ms == pytest.approx(seconds * 1000)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1.5s", "1m30s", "01s", "5S", "5s\n", "５s"])
def test_anything_else_is_no_duration(text):
    with pytest.raises(ValidationError, match="write a duration"):
        TypeAdapter(DurationText).validate_python(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 8 * * FRI-MON", "bad day-of-week"),
        ("0 18-8 * * *", "bad hour"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 8 * *", "write minute, hour"),
        ("@daily", "write minute, hour"),
        ("60 8 * * *", "write minute, hour"),
        ("0 8 * * *\n", "write minute, hour"),
    ],
)
def test_a_time_that_cron_does_not_know_is_refused_with_what_to_write(text, says):
    with pytest.raises(ValidationError, match=f"{says}.*0 8 .* MON-FRI"):
        TypeAdapter(CronText).validate_python(text)


@pytest.mark.parametrize("text", ["Europe/Atlantis", "Berlin", "+02:00", "Europe", "../etc/passwd"])
def test_a_time_zone_that_does_not_exist_is_refused_with_what_to_write(text):
    with pytest.raises(ValidationError, match="IANA time zone database, such as UTC"):
        TypeAdapter(ZoneName).validate_python(text)


def test_values_are_written_as_they_were_read():
    assert TypeAdapter(DurationText).dump_python(Duration("60s"), mode="json") == "60s"
