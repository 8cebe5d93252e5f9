"""The images that the operator was installed with; a fleet may name another engine image."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Images:
    """Names as `image:` takes them. Pulling follows Kubernetes' rule for the tag."""

    engine: str
    gateway: str
