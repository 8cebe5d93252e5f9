"""Text types of the API: durations, percentages, quantities, names, cron expressions.

The API has no floats: a duration is written "200ms", a percentage "90%". Each type keeps the text
as the user wrote it, so that a dump equals the input, and gives the number in a unit. A `Format` is
a regular expression with the sentence that users read when a text does not match. What only a
library knows, such as a date that never comes or a time zone that does not exist, is found when the
operator reads the object; its sentence is in the condition `InvalidSpec` then.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from argosy_operator.api.model import VALIDATIONS, FieldRule, cel_matches

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION_PATTERN = r"^(0|[1-9][0-9]{0,5})(ms|s|m|h)$"
"""A whole number of at most 6 digits and one unit. CEL's duration() takes all of these."""
POSITIVE_DURATION_PATTERN = r"^[1-9][0-9]{0,5}(ms|s|m|h)$"


@dataclass(frozen=True, slots=True)
class Format(FieldRule):
    """The texts that a field takes."""

    pattern: str
    """Regular expression of the whole text, in the syntax that Python and RE2 (CEL) share."""
    message: str
    """What users read when the text does not match: what to write instead."""
    max_length: int
    """Most characters. The API server needs it to bound the cost of the rule."""

    def matches(self, text: str) -> bool:
        """Does the whole text, and not only a part of it, match the pattern?"""
        pattern = self.pattern.removeprefix("^").removesuffix("$")
        return re.fullmatch(pattern, text) is not None

    def check(self, value: str) -> str:
        if len(value) > self.max_length:
            raise ValueError(f"must be at most {self.max_length} characters; {self.message}")
        if not self.matches(value):
            raise ValueError(self.message)
        return value

    def constraints(self) -> dict[str, Any]:
        rule = {"rule": cel_matches("self", self.pattern), "message": self.message}
        return {"maxLength": self.max_length, VALIDATIONS: [rule]}


class _Text(str):
    """A string with methods of its own. In JSON it is a plain string."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class Duration(_Text):
    """A length of time, written as a whole number and one unit: ms, s, m or h."""

    __slots__ = ()

    @property
    def seconds(self) -> float:
        unit = self.lstrip("0123456789")
        return int(self.removesuffix(unit)) * _SECONDS[unit]

    @property
    def ms(self) -> float:
        return self.seconds * 1000


class Percent(_Text):
    """A percentage, such as "90%"."""

    __slots__ = ()

    @property
    def fraction(self) -> float:
        """The percentage as a number from 0 to 1."""
        return float(self.removesuffix("%")) / 100


_QUANTITY = Format(
    r"^[0-9]{1,15}([.][0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$",
    "write a quantity such as 500m, 4 or 16Gi",
    21,
)


_UNITS = {"": Decimal(1), "m": Decimal("0.001")}
_UNITS |= {unit: Decimal(1000) ** n for n, unit in enumerate(("k", "M", "G", "T"), 1)}
_UNITS |= {unit: Decimal(1024) ** n for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)}


class Quantity(_Text):
    """A Kubernetes quantity, such as "500m" or "2Gi". A whole number needs no quotes."""

    __slots__ = ()

    @property
    def amount(self) -> Decimal:
        """The number that it means."""
        unit = self.lstrip("0123456789.")
        return Decimal(self.removesuffix(unit)) * _UNITS[unit]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def parse(text: str) -> "Quantity":
            return cls(_QUANTITY.check(text))

        text = core_schema.str_schema(coerce_numbers_to_str=True)
        return core_schema.no_info_after_validator_function(parse, text)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        text = cel_matches("self", _QUANTITY.pattern)
        number = "self >= 0 && self < 1000000000000000"  # 15 digits, as in the pattern
        rule = {"rule": f"type(self) == int ? {number} : {text}", "message": _QUANTITY.message}
        length = {"maxLength": _QUANTITY.max_length}
        return {"x-kubernetes-int-or-string": True, VALIDATIONS: [rule]} | length


class Cost(_Text):
    """An amount of money with up to four decimals, such as "4.10". The currency is the user's."""

    __slots__ = ()

    @property
    def amount(self) -> float:
        return float(self)


CostText = Annotated[
    Cost,
    Format(
        r"^([1-9][0-9]{0,5}([.][0-9]{1,4})?|0[.][0-9]{0,3}[1-9])$",
        'write an amount of more than 0 in quotes, such as "4.10" or "0.55"',
        12,
    ),
]


class Milliseconds(_Text):
    """A length of time in milliseconds with up to nine decimals, such as "0.1066"."""

    __slots__ = ()

    @property
    def seconds(self) -> float:
        return float(self) / 1000


MillisecondsText = Annotated[
    Milliseconds,
    Format(
        r"^(0|[1-9][0-9]{0,5})([.][0-9]{1,9})?$",
        'write milliseconds as a number in quotes, such as "28.8" or "0.1066"',
        16,
    ),
]
DurationText = Annotated[
    Duration,
    Format(DURATION_PATTERN, "write a duration as a whole number and ms, s, m or h: 200ms, 5m", 12),
]
PositiveDurationText = Annotated[
    Duration,
    Format(POSITIVE_DURATION_PATTERN, "write a duration of more than 0, such as 200ms or 15s", 12),
]
Target = Annotated[
    Duration,
    Format(
        POSITIVE_DURATION_PATTERN,
        "an SLO target must be a duration of more than 0: write 200ms or 2s, or leave slo out",
        12,
    ),
]
Attainment = Annotated[
    Percent,
    Format(
        r"^[1-9][0-9]?([.][0-9]{1,2})?%$",
        "write the share of requests that must meet the SLO, from 1% to 99.99%, such as 90%",
        8,
    ),
]
CanaryShare = Annotated[
    Percent, Format(r"^([1-9]|[1-4][0-9]|50)%$", "write a share from 1% to 50%, such as 10%", 8)
]
CanaryLevel = Annotated[
    Percent, Format(r"^([1-9]|1[0-9]|20)%$", "write a level from 1% to 20%, such as 5%", 8)
]
ModelUri = Annotated[
    str,
    Format(
        r"^(pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*"
        r"|hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._-]*)?"
        r"|s3://[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+"
        r"|oci://[a-z0-9][a-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+(:[A-Za-z0-9_][A-Za-z0-9._-]*)?"
        r"(@sha256:[0-9a-f]{64})?"
        r"|sim://[a-z0-9][-a-z0-9]*)$",
        "write pvc://<claim>/<path>, hf://<org>/<name>@<revision>, s3://<bucket>/<prefix>, "
        "oci://<registry>/<repository>:<tag> or sim://<preset>",
        512,
    ),
]
AdapterUri = Annotated[
    str,
    Format(
        r"^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$",
        "write pvc://<claim>/<path>, the adapter's folder on a claim of this namespace",
        512,
    ),
]
ServedName = Annotated[
    str,
    Format(
        r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$",
        "a served name has letters, digits and . _ : / - and begins with a letter or digit",
        128,
    ),
]
ImageName = Annotated[
    str, Format(r"^[^ \t\n]+$", "write an image name such as registry/path:tag", 512)
]
EnvName = Annotated[
    str,
    Format(
        r"^[A-Za-z_][A-Za-z0-9_]*$", "an environment name has letters, digits and underscores", 128
    ),
]
ClassName = Annotated[
    str,
    Format(
        r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$",
        "a class has at most 32 lower-case letters, digits and hyphens, begins with a letter and "
        "does not end with a hyphen",
        32,
    ),
]
ScheduleName = Annotated[
    str,
    Format(
        r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$",
        "a schedule has a name of at most 32 lower-case letters, digits and hyphens, begins with a "
        "letter and does not end with a hyphen",
        32,
    ),
]
GpuTypeName = Annotated[
    str,
    Format(
        r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$",
        "a GPU type has a name of at most 32 lower-case letters, digits and hyphens, begins with a "
        "letter and does not end with a hyphen, such as h100",
        32,
    ),
]
ResourceName = Annotated[
    str,
    Format(
        r"^[a-z0-9]([-a-z0-9.]{0,126}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        "write the resource that nodes offer, with its domain, such as nvidia.com/gpu or "
        "amd.com/gpu",
        192,
    ),
]
LabelValue = Annotated[
    str,
    Format(
        r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
        "a label's value has at most 63 letters, digits and - _ . between them",
        63,
    ),
]
SecretName = Annotated[
    str,
    Format(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "write the name of a Secret of this namespace: lower-case letters, digits, hyphens and "
        "dots, such as chat-tls",
        253,
    ),
]
LocalName = Annotated[
    str,
    Format(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "write the name of an object of this namespace, or of the cluster: lower-case letters, "
        "digits, hyphens and dots; objects of another namespace cannot be used",
        253,
    ),
]
MetricsUrl = Annotated[
    str,
    Format(
        r"^https?://[^@ ?#]+$",
        "write http://host:port or https://host:port; a credential belongs to the operator's "
        "chart values, never into this object",
        512,
    ),
]
FLEET_NAME = Format(
    r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$",
    "a fleet's name is at most 40 lower-case letters, digits and hyphens, begins with a letter and "
    "does not end with a hyphen",
    40,
)
FleetName = Annotated[str, FLEET_NAME]


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
