"""What a user writes over the pods that Argosy renders. `core/snapshot/template.py` merges it."""

from typing import Any

from pydantic import Field

from argosy_operator.api.model import ApiModel


class PodTemplate(ApiModel):
    """A PodTemplateSpec that is merged over Argosy's pods. Kubernetes knows its fields, and this
    API does not repeat them."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    """Labels and annotations of the pods."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Fields of the pods, as in a Deployment. Argosy's own container is named engine, gateway or
    fetch; other containers are added."""
