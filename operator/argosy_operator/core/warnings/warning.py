"""One warning: a field of a fleet, and a sentence about it."""

from dataclasses import dataclass

from argosy_operator.core.snapshot.objects import Place


@dataclass(frozen=True, slots=True)
class FleetWarning:
    """What will not be as it may have been meant."""

    place: Place
    """The field."""
    sentence: str
    is_error: bool = False
    """The API server takes the field, and Argosy does not use it. `kubectl argosy lint` calls it an
    error."""
