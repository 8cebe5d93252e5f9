"""What the operator writes back: `status` of ServingDeployment and ServingRole.

Filled by `core` from a Snapshot, written by `shell/report.py` as a server-side apply of `/status`.
Nothing in it is an input: it can be rebuilt from the cluster and from Prometheus. Numbers that are
not counts are strings ("0.953", "41ms"), quantised by whoever writes them, so that a quiet fleet
writes nothing.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from argosy_operator.api.model import ApiModel

Short = Annotated[str, StringConstraints(max_length=64)]
Sentence = Annotated[str, StringConstraints(max_length=1024)]
Count = Annotated[int, Field(ge=0)]
Timestamp = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]


class Condition(ApiModel):
    """One statement about the object, as kubectl wait, Argo CD and Flux read it."""

    list_key: ClassVar[str | None] = "type"

    type: Annotated[str, StringConstraints(max_length=64)]
    """What the statement is about, such as Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """Why, in one word of the product's vocabulary."""
    message: Sentence = ""
    """Why, for people, and what to do."""
    observed_generation: Count | None = None
    """The generation of the spec that this is about."""
    last_transition_time: Timestamp
    """When the status last changed."""


class RoleStatus(ApiModel):
    """One role's pods, counted."""

    desired: Count = 0
    """Pods that shall be there."""
    ready: Count = 0
    """Pods of the spec's revision whose readiness probe passes; older ones serve until then."""
    serving: Count = 0
    """Ready pods that take new requests (not draining)."""
    pending: Count = 0
    """Pods that are not ready yet."""
    unschedulable: Count = 0
    """Pods that no node has room for."""
    draining: Count = 0
    """Pods that finish their answers and then leave."""
    gpus: Count = 0
    """GPUs that the role's pods hold or wait for, of every revision."""
    revision: Short = ""
    """The revision of the pods' template."""
    time_to_ready: Short | None = None
    """A new pod's time from creation to ready, as measured, such as 92s."""


class RolesStatus(ApiModel):
    """The roles that the mode uses."""

    prefill: RoleStatus | None = None
    """Pods that compute prompts."""
    decode: RoleStatus | None = None
    """Pods that generate answers."""
    colocated: RoleStatus | None = None
    """Pods that do both."""


class Goodput(ApiModel):
    """What users got during the last window; absent figures were not measured."""

    attainment: Short | None = None
    """Share of requests that met both targets, such as 0.953."""
    rps: Short | None = None
    """Good requests per second."""
    offered_rps: Short | None = None
    """Requests per second that arrived."""
    ttft_p90: Short | None = None
    """90th percentile of time to first token, such as 1.62s."""
    tpot_p90: Short | None = None
    """90th percentile of time per output token, such as 41ms."""
    per_gpu: Short | None = Field(None, alias="perGPU")
    """Good requests per second and GPU."""


class DecisionStatus(ApiModel):
    """One decision on replicas: what was seen, what was chosen, which rule bound it."""

    time: Timestamp
    """When it was taken."""
    reason: Short
    """Why, in one word of the product's vocabulary."""
    message: Sentence = ""
    """Why, for people."""
    from_: Annotated[dict[str, Count], Field(max_length=4)] = Field(alias="from")
    """Replicas per role before."""
    to: Annotated[dict[str, Count], Field(max_length=4)]
    """Replicas per role after."""
    bound_by: Short | None = None
    """The rule that kept the answer from being another one; absent when none did."""
    record: dict[str, Any] | None = None
    """Inputs, candidates and rules as the law saw them: replaying it gives the same answer.
    Only the last decision keeps it."""


class AutoscalingStatus(ApiModel):
    """The last decisions on replicas."""

    last_decision: DecisionStatus | None = None
    """The last decision that changed replicas."""
    history: Annotated[tuple[DecisionStatus, ...], Field(max_length=5)] = ()
    """Decisions that changed replicas, newest first, without their records."""
    last_scale_time: Annotated[dict[str, Timestamp], Field(max_length=4)] | None = None
    """When replicas last changed, per role."""


class Columns(ApiModel):
    """Texts for `kubectl get`; nothing else reads them."""

    prefill: Short = ""
    """Prefill pods ready/desired; of a colocated fleet, its pods."""
    decode: Short = ""
    """Decode pods ready/desired; of a colocated fleet, its pods."""
    gpus: Short = ""
    """GPUs held."""
    slo: Short = ""
    """Met, AtRisk, Missed, Idle, Unknown or None."""
    reason: Short = ""
    """The reason of the condition that matters most now."""


class ServingDeploymentStatus(ApiModel):
    """The fleet as the operator sees it."""

    observed_generation: Count = 0
    """The generation of the spec that this status is about."""
    url: Annotated[str, StringConstraints(max_length=256)] | None = None
    """The address of the fleet's OpenAI API inside the cluster."""
    mode: Short | None = None
    """The mode in effect."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=24)] = ()
    """Statements about the fleet; Ready is the one to wait for."""
    roles: RolesStatus = RolesStatus()
    """The roles' pods."""
    goodput: Goodput | None = None
    """What users got during the last window."""
    autoscaling: AutoscalingStatus = AutoscalingStatus()
    """The last decisions on replicas."""
    columns: Columns = Columns()
    """Texts for kubectl get."""


class ServingRoleStatus(ApiModel):
    """The role's pods, as the scale subresource reads them."""

    replicas: Count = 0
    """Pods of the role."""
    ready_replicas: Count = 0
    """Ready pods of the role."""
    selector: Annotated[str, StringConstraints(max_length=512)] = ""
    """The label selector of the role's pods."""
