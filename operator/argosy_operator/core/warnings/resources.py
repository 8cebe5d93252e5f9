"""Requests above their limits: the API server refuses the Deployment of such pods."""

from collections.abc import Iterator

from argosy_operator.api.v1alpha1 import ServingDeploymentSpec
from argosy_operator.api.v1alpha1.pods.merged import merged
from argosy_operator.core.snapshot import names
from argosy_operator.core.warnings.warning import FleetWarning, Place


def above_limits(spec: ServingDeploymentSpec) -> Iterator[FleetWarning]:
    """One for each request that is above its limit in the pods of a role, gateways included."""
    told = set[Place]()
    own: dict[str, set[str]] = {names.GATEWAY_ROLE: set()}
    for name, settings in spec.active_roles():
        amounts = {"cpu": settings.resources.cpu, "memory": settings.resources.memory}
        own[name] = {of for of, amount in amounts.items() if amount is not None}
    for role, counted_before in own.items():
        sections = [(i, one) for i, one in enumerate(spec.pods) if one.is_of(role)]
        asked = merged(one for _, one in sections).resources
        for of, request in asked.requests.items():
            limit = asked.limits.get(of)
            if of in counted_before or limit is None or request.amount <= limit.amount:
                continue
            # A nearer section's request raises a farther limit, so one section has both.
            nearest = max(i for i, one in sections if of in one.resources.requests)
            place = ("spec", "pods", nearest, "resources", "requests", of)
            if place not in told:
                told.add(place)
                yield FleetWarning(
                    place,
                    f"is {request}, above its limit of {limit}, and Kubernetes refuses such pods: "
                    "lower it, or raise the limit",
                    refuses_pods=True,
                )
