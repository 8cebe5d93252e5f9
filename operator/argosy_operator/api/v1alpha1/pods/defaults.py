"""What pods get where their fleet says nothing: the value `pods` of the chart.

Gateways follow it at once. An engine Deployment keeps the defaults that it was created with, so
that neither a new value nor a newer operator replaces engine pods: they come with the fleet's next
revision.
"""

from argosy_operator.api.fields import Quantity
from argosy_operator.api.model import ApiModel
from argosy_operator.api.v1alpha1.pods.resources import PodResources
from argosy_operator.api.v1alpha1.pods.settings import PodSettings


def _requests(cpu: str, memory: str) -> PodSettings:
    requests = {"cpu": Quantity(cpu), "memory": Quantity(memory)}
    return PodSettings(resources=PodResources(requests=requests))


class PodDefaults(ApiModel):
    """Settings of all fleets' pods. With any request a pod is not BestEffort: it is not the first
    that a node in need ends."""

    engines: PodSettings = _requests("100m", "256Mi")
    """Of engine pods. Default: what an engine uses before it has read weights."""
    gateways: PodSettings = _requests("100m", "128Mi")
    """Of gateways and endpoint pickers. Default: what a gateway uses at rest."""
