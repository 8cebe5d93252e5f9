"""One warning: a field of a fleet, and a sentence about it."""

from collections.abc import Sequence
from dataclasses import dataclass

Place = Sequence[str | int]
"""A path of keys and indices, such as ("spec", "slo", "classes", 0, "name")."""


@dataclass(frozen=True, slots=True)
class FleetWarning:
    """What will not be as it may have been meant."""

    place: Place
    """The field."""
    sentence: str
    refuses_pods: bool = False
    """The API server takes the fleet and refuses its pods. `kubectl argosy lint` calls it an
    error."""

    def text(self) -> str:
        """Field and sentence in one line."""
        return f"{path(self.place)}: {self.sentence}"


def path(place: Place) -> str:
    """A place as the API server writes it: spec.slo.classes[0].name."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")
