"""Fleets as the render tests need them."""

from typing import Any

from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.render import workload
from argosy_operator.render.common import Images
from argosy_operator.render.engines import EnginePod

IMAGES = Images(
    engine="registry.example/engine:1",
    gateway="registry.example/gateway:1",
    fetch="registry.example/fetch:1",
)


def fleet(name: str = "chat", **spec: Any) -> ServingDeployment:
    """A fleet as the API server would hand it over; disaggregated unless `spec` says otherwise."""
    whole = {"model": {"uri": "pvc://models/some/model"}, "mode": "disaggregated", **spec}
    return ServingDeployment.model_validate(
        {
            "metadata": {"name": name, "namespace": "prod", "uid": "1234-5678"},
            "spec": whole,
        }
    )


def deployment(
    one: ServingDeployment,
    role: RoleName,
    replicas: int | None = 1,
    *,
    live: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The role's engine Deployment in some revision."""
    return workload.deployment(EnginePod.of(one, role, "0" * 8, IMAGES, live), replicas)
