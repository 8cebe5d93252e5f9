"""The ConfigMap that keeps what the scaling law has learnt; `core.steps.recall` fills it in."""

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.render.common import fleet_metadata


def file(fleet: ServingDeployment) -> Object:
    """Without data."""
    metadata = fleet_metadata(fleet, names.learnt(fleet.name))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
