"""A field that keeps the value with which its object was made.

Only the API server can hold this, which sees the old object beside the new one.
"""

from dataclasses import dataclass
from typing import Any

from argosy_operator.api.rule import VALIDATIONS, FieldRule


@dataclass(frozen=True, slots=True)
class Fixed(FieldRule):
    """The API server refuses an update that changes the field."""

    message: str
    """What users read: why, and what to do instead."""

    def check(self, value: Any) -> Any:
        return value

    def constraints(self) -> dict[str, Any]:
        return {VALIDATIONS: [{"rule": "self == oldSelf", "message": self.message}]}
