"""A role's objects besides its Deployments: the ServingRole and the disruption budget."""

from argosy_operator.api.v1alpha1 import API_VERSION, RoleName, ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.render.common import disruption_budget, metadata


def serving_role(fleet: ServingDeployment, role: RoleName) -> Object:
    """The ServingRole without replicas, which are written through /scale only."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ServingRole",
        "metadata": metadata(fleet, names.serving_role(fleet.name, role), role),
        "spec": {"fleet": fleet.name, "role": role},
    }


def objects(fleet: ServingDeployment, role: RoleName) -> list[Object]:
    """The role's objects that do not depend on a revision."""
    name = names.serving_role(fleet.name, role)
    return [serving_role(fleet, role), disruption_budget(fleet, name, role)]


def all_of(fleet: ServingDeployment) -> list[Object]:
    """The objects of each role that the mode uses."""
    return [obj for name, _ in fleet.spec.active_roles() for obj in objects(fleet, name)]
