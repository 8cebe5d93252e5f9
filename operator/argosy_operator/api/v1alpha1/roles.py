"""The roles of a fleet: how many pods each may have, and what one pod asks for."""

from typing import Annotated, ClassVar, Literal

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Quantity
from argosy_operator.api.model import ApiModel
from argosy_operator.api.rule import ValidationRule

Mode = Literal["colocated", "disaggregated"]
RoleName = Literal["prefill", "decode", "colocated"]
ROLES_OF: dict[Mode, tuple[RoleName, ...]] = {
    "colocated": ("colocated",),
    "disaggregated": ("prefill", "decode"),
}
"""The roles that run in each mode, in the order in which they are shown."""


class Replicas(ApiModel):
    """How many pods a role may have."""

    min: Annotated[int, within("roles.*.replicas.min")] = 1
    """Fewest pods. It is also the number of pods when nothing sizes the role: without slo, or with
    policy None."""
    max: Annotated[int, within("roles.*.replicas.max")] = 8
    """Most pods. 0, with min 0, parks the role: it has no pods. Default 8: a bound on the cost
    until you choose one."""

    def min_is_at_most_max(self) -> bool:
        return self.min <= self.max

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".min",
            cel="self.min <= self.max",
            holds=min_is_at_most_max,
            message="replicas.min must not be more than replicas.max (default 8): lower min or "
            "raise max",
        ),
    )


class Resources(ApiModel):
    """What one pod of a role asks for."""

    gpu: Annotated[int, within("roles.*.resources.gpu")] = 1
    """GPUs of one pod (nvidia.com/gpu). Default 1: the engine of Argosy computes on one GPU."""
    cpu: Quantity | None = None
    """CPU request, such as "4" or "500m". Default: none."""
    memory: Quantity | None = None
    """Memory request and limit, such as 16Gi. Default: none."""


class Parallelism(ApiModel):
    """How one pod of a role computes with several GPUs."""

    tensor: Annotated[int, within("roles.*.parallelism.tensor")] = 1
    """GPUs that a pod's engine splits the model's KV heads over. Of the numbers of prefill and
    decode one must divide the other. Default 1. Only simulated engines (sim://) take another
    number: the engine of Argosy computes on one GPU."""


class Role(ApiModel):
    """One role of the fleet: its bounds and the size of its pods."""

    replicas: Replicas = Replicas()
    """How many pods the role may have."""
    resources: Resources = Resources()
    """What one pod asks for."""
    parallelism: Parallelism = Parallelism()
    """How one pod computes with several GPUs."""


class Roles(ApiModel):
    """The roles. Those that the mode does not use may be written, and nothing runs for them."""

    prefill: Role = Role()
    """Pods that compute prompts (mode disaggregated)."""
    decode: Role = Role()
    """Pods that generate answers (mode disaggregated)."""
    colocated: Role = Role()
    """Pods that do both (mode colocated)."""
