"""A field that is known and never taken, so that its refusal can say what to write instead.

Without it kubectl would say "unknown field", and a client that does not check fields would see the
field vanish.
"""

from dataclasses import dataclass
from typing import Any

from argosy_operator.api.rule import VALIDATIONS, FieldRule


@dataclass(frozen=True, slots=True)
class Refused(FieldRule):
    """Whatever is written is refused."""

    message: str
    """What users read: why, and what to write instead."""

    def check(self, value: Any) -> Any:
        if value is not None:
            raise ValueError(self.message)
        return value

    def constraints(self) -> dict[str, Any]:
        return {VALIDATIONS: [{"rule": "false", "message": self.message}]}
