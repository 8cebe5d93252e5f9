"""The images of a fleet's pods."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Images:
    """The images that the operator was installed with, as in a container's `image`.

    imagePullPolicy is not set: Kubernetes pulls always for the tag latest, else if not present.
    """

    engine: str
    """For fleets without spec.engine.image."""
    gateway: str
    picker: str
    """The endpoint picker of fleets with `routing.gateway: epp`."""
