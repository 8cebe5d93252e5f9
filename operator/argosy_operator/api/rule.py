"""Rules of the API: each is checked in Python and by the API server, with the same sentence.

A `FieldRule` is about the text of one field and is written as an annotation of its type. A
`ValidationRule` compares several fields; it is listed in `rules` of their class, and `ApiModel`
checks it. Both put CEL into the JSON schema, from which the CRD is generated. A property test
evaluates Python and CEL on generated objects: they must agree.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

VALIDATIONS = "x-kubernetes-validations"
"""The key under which a CRD's schema keeps its CEL rules."""


class FieldRule(ABC):
    """A rule on one field. As an annotation it refuses the value and adds its CEL to the schema."""

    @abstractmethod
    def check(self, value: Any) -> Any:
        """Return the value, or raise ValueError with the sentence that says what to write."""

    @abstractmethod
    def constraints(self) -> dict[str, Any]:
        """What the rule adds to the field's JSON schema: CEL under VALIDATIONS, and lengths."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        field, added = dict(handler(schema)), self.constraints()
        rules = [*field.get(VALIDATIONS, []), *added.get(VALIDATIONS, [])]
        return field | added | {VALIDATIONS: rules}


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """A rule on several fields of one class; it is an entry of the class's `rules`."""

    field: str
    """Path below the class that the API server prints beside the message, such as ".min"."""
    cel: str
    """The rule for the API server; `self` is an instance of the class. CEL sees the object after
    defaulting, so a field that has a default is always there, unless it is in an item of a list."""
    holds: Callable[[Any], bool]
    """The same rule in Python: a method of the class."""
    message: str
    """What users read when the rule does not hold: what is wrong and what to write instead."""
    spares_old: bool = False
    """Whether an object that broke the rule may be edited and go on breaking it. For a rule on the
    whole spec that came when there were fleets: it would refuse every other edit of theirs."""

    def validation(self) -> dict[str, Any]:
        """The rule as an entry of x-kubernetes-validations."""
        entry: dict[str, Any] = {"message": self.message, "fieldPath": self.field}
        if not self.spares_old:
            return {"rule": self.cel, **entry}
        before = re.sub(r"\bself\b", "oldSelf.value()", self.cel)
        cel = f"({self.cel}) || (oldSelf.hasValue() && !({before}))"
        return {"rule": cel, **entry, "optionalOldSelf": True}


class RuleError(ValueError):
    """A rule does not hold. The text is the one that the API server prints, too."""


def check(value: object, rules: Iterable[ValidationRule]) -> None:
    """Raise RuleError with the messages of all rules that `value` breaks."""
    broken = [rule.message for rule in rules if not rule.holds(value)]
    if broken:
        raise RuleError("; ".join(broken))
