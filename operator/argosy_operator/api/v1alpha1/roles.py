"""The roles of a fleet: how many pods each may have, and what one pod asks for."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from argosy_law.observe import Mode, RoleName
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import (
    CostText,
    GpuTypeName,
    LabelValue,
    MillisecondsText,
    Quantity,
    ResourceName,
)
from argosy_operator.api.model import ApiModel, PodTemplate, ValidationRule

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


NVIDIA = "nvidia.com/gpu"
"""The resource of GPUs where the role names no other."""


class Resources(ApiModel):
    """What one pod of a role asks for. Other resources, and limits of CPU, are in its template."""

    gpu: Annotated[int, within("roles.*.resources.gpu")] = 1
    """GPUs of one pod. Default 1. The engine of Argosy computes on as many as parallelism.tensor
    says."""
    gpu_resource: ResourceName | None = None
    """The resource by which nodes offer the GPUs, such as amd.com/gpu or nvidia.com/mig-3g.40gb.
    Pods tolerate a taint of the same key. Default nvidia.com/gpu."""
    gpu_from: Literal["Resource", "Claims"] = "Resource"
    """Resource: a pod asks for gpuResource. Claims: the GPUs come with the resourceClaims of the
    role's template, and gpu only says how many they are, for budgets and costs. Default
    Resource."""
    cpu: Quantity | None = None
    """CPU request, such as "4" or "500m". Default: 100m."""
    memory: Quantity | None = None
    """Memory request and limit, such as 16Gi. Default: a request of 256Mi, and no limit."""


class Parallelism(ApiModel):
    """How one pod of a role computes with several GPUs."""

    tensor: Annotated[int, within("roles.*.parallelism.tensor")] = 1
    """GPUs that a pod's engine splits the model's matrices and KV heads over; write as many in
    resources.gpu. Default 1. In mode disaggregated the numbers of prefill and decode may differ,
    such as 4 and 8: one must divide the other."""


class GpuProfile(ApiModel):
    """How fast one pod computes on a GPU type, in milliseconds. A prefill of a prompt takes
    prefillBaseMs and perPromptTokenMs for each of its tokens. A decode step takes decodeBaseMs,
    perSequenceMs for each sequence, and perContextTokenMs for each token of their contexts."""

    prefill_base_ms: MillisecondsText
    """Milliseconds of a prefill, whatever the prompt, such as "3.92"."""
    per_prompt_token_ms: MillisecondsText
    """Milliseconds for each token of a prompt, such as "0.1066"."""
    decode_base_ms: MillisecondsText
    """Milliseconds of a decode step, whatever the batch, such as "28.8"."""
    per_sequence_ms: MillisecondsText
    """Milliseconds of a decode step for each sequence in it, such as "0.2825"."""
    per_context_token_ms: MillisecondsText
    """Milliseconds of a decode step for each token of context in it, such as "0.000094"."""
    kv_tokens: Annotated[int, within("gpuTypes[].profile.kvTokens")] | None = None
    """Tokens of KV cache that one pod holds. Default: unknown, so that memory bounds no batch until
    engines report it."""


class GpuType(ApiModel):
    """One type of GPU that roles may run on."""

    list_key: ClassVar[str | None] = "name"

    name: GpuTypeName
    """What status, events and the pods' label serving.argosy.dev/gpu-type call it, such as h100."""
    cost_per_hour: CostText
    """What one GPU of this type costs per hour, in any currency, such as "4.10"."""
    gpu: Annotated[int, within("gpuTypes[].gpu")] | None = None
    """GPUs of one pod on this type. Default: resources.gpu of the role."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=8)] = Field(
        default_factory=dict
    )
    """Labels of the nodes with these GPUs, such as nvidia.com/gpu.product."""
    profile: GpuProfile | None = None
    """How fast one pod computes on it. Default: what the model's preset says (sim://). A type
    without a profile is not compared by cost: it runs only if it is the first of a role's list, or
    if the types before it have no room. Where pods of two roles differ, such as in their
    parallelism, declare the GPU as two types."""


class Role(ApiModel):
    """One role of the fleet: its bounds and the size of its pods."""

    replicas: Replicas = Replicas()
    """How many pods the role may have."""
    resources: Resources = Resources()
    """What one pod asks for."""
    parallelism: Parallelism = Parallelism()
    """How one pod computes with several GPUs."""
    template: PodTemplate | None = None
    """A PodTemplateSpec that is merged over the pods of the role, and over spec.template."""
    gpu_types: Annotated[tuple[GpuTypeName, ...], Field(max_length=4)] = ()
    """Names of the types of spec.gpuTypes that may serve the role; the role begins on the first.
    With slo and policy Goodput it goes to the one that meets slo at the lowest cost, by the
    profiles and the load of the last day; where pods find no node for autoscaling.gpuTypeFallback,
    to another one. All pods of the role are of one type; a change is a rollout. Prefill and decode
    are sized for the lowest cost instead of the fewest GPUs. Default: any GPU of the cluster."""


class Roles(ApiModel):
    """The roles. Those that the mode does not use may be written, and nothing runs for them."""

    prefill: Role = Role()
    """Pods that compute prompts (mode disaggregated)."""
    decode: Role = Role()
    """Pods that generate answers (mode disaggregated)."""
    colocated: Role = Role()
    """Pods that do both (mode colocated)."""
