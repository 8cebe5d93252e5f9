"""ServingRole, the scale handle of one role: HPA, KEDA and kubectl scale write its replicas."""

from typing import Annotated

from pydantic import Field

from argosy_law.observe import RoleName
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import FleetName
from argosy_operator.api.model import ApiModel, Metadata
from argosy_operator.api.v1alpha1.status import ServingRoleStatus


class ServingRoleSpec(ApiModel):
    """Which role of which fleet, and how many pods it should have."""

    fleet: FleetName
    """The ServingDeployment that owns the role."""
    role: RoleName
    """The role: prefill, decode or colocated."""
    replicas: Annotated[int, within("roles.*.replicas.max")] | None = None
    """Pods that the role should have. Below the role's min or above its max, that bound applies.
    Absent: the role keeps the pods that it has."""


class ServingRole(ApiModel):
    """The scale handle of one role of a fleet: HPA, KEDA and kubectl scale write its replicas."""

    metadata: Metadata
    spec: ServingRoleSpec
    """Which role of which fleet, and how many pods it should have."""
    status: ServingRoleStatus = Field(default_factory=ServingRoleStatus)
    """The role's pods as the operator counts them."""
