"""What a container asks its node for, by any name that nodes offer."""

from typing import Annotated, ClassVar

from pydantic import Field

from argosy_operator.api.fields import ItemName, LocalName, Quantity
from argosy_operator.api.model import ApiModel
from argosy_operator.api.rule import ValidationRule

_PLAIN = ("cpu", "memory", "ephemeral-storage")
_KNOWN = (
    "(k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-') || k.contains('/'))"
)
_GPU = "nvidia.com/gpu"

Amounts = Annotated[dict[str, Quantity], Field(max_length=16)]


class DeviceClaim(ApiModel):
    """A claim of Dynamic Resource Allocation that the pod's container uses."""

    list_key: ClassVar[str | None] = "name"

    name: ItemName
    """The claim's name in the pod."""
    resource_claim_template_name: LocalName | None = None
    """A ResourceClaimTemplate of the fleet's namespace: each pod gets a claim of its own."""
    resource_claim_name: LocalName | None = None
    """A ResourceClaim of the fleet's namespace, which all pods share."""
    request: ItemName | None = None
    """The one request of the claim that the container uses. Default: all."""

    def is_one(self) -> bool:
        return (self.resource_claim_name is None) != (self.resource_claim_template_name is None)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".name",
            cel="has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            holds=is_one,
            message="a claim is one object: write resourceClaimTemplateName, or resourceClaimName "
            "for one that all pods share",
        ),
    )


class PodResources(ApiModel):
    """Requests and limits of a pod's container. Of a role, cpu, memory and gpu of its own resources
    count before these."""

    requests: Amounts = Field(default_factory=dict)
    """What a node must have free, by resource: cpu, memory, ephemeral-storage."""
    limits: Amounts = Field(default_factory=dict)
    """What the container may use, by resource: cpu, memory, ephemeral-storage, or one with a
    domain, such as rdma/hca. Where requests and limits of cpu and memory are equal, pods are
    Guaranteed."""
    claims: Annotated[tuple[DeviceClaim, ...], Field(max_length=8)] = ()
    """Claims of Dynamic Resource Allocation."""

    def requests_are_plain(self) -> bool:
        return not any("/" in name for name in self.requests)

    def names_are_known(self) -> bool:
        names = (*self.requests, *self.limits)
        return all(n in _PLAIN or n.startswith("hugepages-") or "/" in n for n in names)

    def gpus_are_counted(self) -> bool:
        return _GPU not in self.limits

    def over(self, far: "PodResources") -> "PodResources":
        """These, and those of a farther section that they leave open.

        A limit without a request is the request, too, as in Kubernetes. A farther limit below a
        request of these is raised to it."""
        requests = {k: v for k, v in far.requests.items() if k not in self.limits} | self.requests
        limits = {
            k: max(v, self.requests.get(k, v), key=lambda quantity: quantity.amount)
            for k, v in far.limits.items()
        }
        claims = {claim.name: claim for claim in (*far.claims, *self.claims)}
        return PodResources.model_construct(
            requests=requests, limits=limits | self.limits, claims=tuple(claims.values())
        )

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".requests",
            cel="!has(self.requests) || self.requests.all(k, !k.contains('/'))",
            holds=requests_are_plain,
            message="a resource with a domain cannot be overcommitted: write it under limits, "
            "and Kubernetes requests as much",
        ),
        ValidationRule(
            field=".limits",
            cel=f"(!has(self.requests) || self.requests.all(k, {_KNOWN})) && "
            f"(!has(self.limits) || self.limits.all(k, {_KNOWN}))",
            holds=names_are_known,
            message="nodes offer no such resource: write cpu, memory, ephemeral-storage, "
            "hugepages-<size>, or a resource with its domain, such as rdma/hca",
        ),
        ValidationRule(
            field=".limits",
            cel=f"!has(self.limits) || !('{_GPU}' in self.limits)",
            holds=gpus_are_counted,
            message="GPUs are counted by the role: write their number in its resources.gpu, and "
            "their name, if it is another than nvidia.com/gpu, in its resources.gpuResource",
        ),
    )
