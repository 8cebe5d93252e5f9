"""Text types of times that come again: a cron expression and the name of a time zone.

The API server checks their form with the same regular expressions. What only a library knows, a
range that runs backwards, a date that never comes or a zone that does not exist, is found when the
operator reads the object; its sentence is in the condition `InvalidSpec` then.
"""

from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from argosy_operator.api.fields import Format


def _field(value: str) -> str:
    """The regular expression of one field: *, values, ranges, steps and lists of these."""
    item = rf"([*]|{value}(-{value})?)(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


_FIELDS = (
    "[1-5]?[0-9]",
    "(1?[0-9]|2[0-3])",
    "([1-9]|[12][0-9]|3[01])",
    "([1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)",
    "([0-7]|MON|TUE|WED|THU|FRI|SAT|SUN)",
)


class CronFormat(Format):
    """Five fields: minute, hour, day of the month, month, day of the week."""

    __slots__ = ()

    def check(self, value: str) -> str:
        Format.check(self, value)
        try:
            next(CronSim(value, datetime(2000, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise ValueError(f"{str(error).lower()}: {self.message}") from None
        except StopIteration:
            raise ValueError(f"this date never comes: {self.message}") from None
        return value


class ZoneFormat(Format):
    """A name of the IANA time zone database."""

    __slots__ = ()

    def check(self, value: str) -> str:
        Format.check(self, value)
        zone_of(value)
        return value


def zone_of(name: str) -> ZoneInfo:
    """The time zone. ValueError, with what to write, if there is none of this name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name}: {_ZONE}") from None


_ZONE = "write a name of the IANA time zone database, such as UTC or Europe/Berlin"

CronText = Annotated[
    str,
    CronFormat(
        "^" + " ".join(_field(value) for value in _FIELDS) + "$",
        "write minute, hour, day of the month, month and day of the week, as cron does: "
        "0 8 * * MON-FRI is every weekday at eight",
        100,
    ),
]
ZoneName = Annotated[
    str, ZoneFormat(r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$", _ZONE, 64)
]
