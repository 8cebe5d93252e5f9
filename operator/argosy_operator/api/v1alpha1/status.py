"""What the operator writes back: `status` of ServingDeployment and ServingRole.

`core/status` makes it from a Snapshot; `shell/report.py` writes it as a server-side apply of
`/status`. A lost status is made again from the cluster and from Prometheus. The next round reads
parts of the old one: conditions keep their lastTransitionTime, numbers and times that are not
measured anew keep their values, and rounds between two decisions repeat what the last one found.

Numbers that are not counts are strings ("0.953", "41ms"). `core/status/numbers.py` rounds them to
steps, so that a quiet fleet writes nothing.
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
    """What the condition is about, such as Ready. docs/conditions.md lists the types."""
    status: Literal["True", "False", "Unknown"]
    """True, False, or Unknown where it was not or cannot be measured."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """Why, as one word that scripts can match. docs/runbook has a page for each."""
    message: Sentence = ""
    """Why, for people, and what to do."""
    observed_generation: Count | None = None
    """The metadata.generation of the spec that the condition is about."""
    last_transition_time: Timestamp
    """When the condition's status last changed."""


class RoleStatus(ApiModel):
    """How many pods a role has, by state."""

    desired: Count = 0
    """Pods that the role should have."""
    ready: Count = 0
    """Pods of the spec's revision whose readiness probe passes. During a rollout, pods of older
    revisions serve too and are not counted here."""
    serving: Count = 0
    """Ready pods that take new requests, because they do not drain."""
    pending: Count = 0
    """Pods that are not ready yet."""
    unschedulable: Count = 0
    """Pods that the scheduler finds no node for."""
    draining: Count = 0
    """Pods that finish their answers and then leave."""
    gpus: Count = 0
    """GPUs that the role's pods of all revisions hold or wait for."""
    revision: Short = ""
    """The revision of the pods' template."""
    time_to_ready: Short | None = None
    """Measured time from a pod's creation until it is ready, such as 92s. Absent until one was
    measured."""


class RolesStatus(ApiModel):
    """The roles that the mode uses."""

    prefill: RoleStatus | None = None
    """Pods that compute prompts."""
    decode: RoleStatus | None = None
    """Pods that generate answers."""
    colocated: RoleStatus | None = None
    """Pods that do both."""


class Goodput(ApiModel):
    """What clients got, as last measured. A number is absent if it was not measured."""

    attainment: Short | None = None
    """Share of requests that met both targets, from 0 to 1, such as 0.953."""
    rps: Short | None = None
    """Requests per second that met both targets."""
    offered_rps: Short | None = None
    """Requests per second that arrived."""
    ttft_p90: Short | None = None
    """90th percentile of time to first token, such as 1.62s."""
    tpot_p90: Short | None = None
    """90th percentile of time per output token, such as 41ms."""
    per_gpu: Short | None = Field(None, alias="perGPU")
    """Requests per second and GPU that met both targets."""


class DecisionStatus(ApiModel):
    """One decision on replicas: what was measured, what was chosen, which rule limited it."""

    time: Timestamp
    """When it was made."""
    reason: Short
    """Why, as one word that scripts can match."""
    message: Sentence = ""
    """Why, for people."""
    from_: Annotated[dict[str, Count], Field(max_length=4)] = Field(alias="from")
    """Replicas per role before the decision."""
    to: Annotated[dict[str, Count], Field(max_length=4)]
    """Replicas per role after the decision."""
    bound_by: Short | None = None
    """The rule that limited the answer, such as a budget. Absent if none did."""
    record: dict[str, Any] | None = None
    """Inputs, candidates and rules of the decision: replaying them gives the same answer. Only the
    last decision keeps its record."""


class AutoscalingStatus(ApiModel):
    """The latest decisions on replicas."""

    last_decision: DecisionStatus | None = None
    """The last decision that changed replicas."""
    history: Annotated[tuple[DecisionStatus, ...], Field(max_length=5)] = ()
    """Up to 5 decisions that changed replicas, newest first, without their records."""
    last_scale_time: Annotated[dict[str, Timestamp], Field(max_length=4)] | None = None
    """When replicas last changed, per role."""


class Columns(ApiModel):
    """Texts that `kubectl get` prints."""

    prefill: Short = ""
    """Prefill pods, serving/desired. Of a colocated fleet: its pods."""
    decode: Short = ""
    """Decode pods, serving/desired. Of a colocated fleet: its pods."""
    gpus: Short = ""
    """GPUs that the fleet's pods hold or wait for."""
    slo: Short = ""
    """Met, AtRisk, Missed, Idle, Unknown or None."""
    reason: Short = ""
    """The reason of the condition that matters most now."""


class ServingDeploymentStatus(ApiModel):
    """The fleet as the operator observed it."""

    observed_generation: Count = 0
    """The metadata.generation of the spec that this status is about."""
    url: Annotated[str, StringConstraints(max_length=256)] | None = None
    """The address of the fleet's OpenAI API inside the cluster. Absent with routing.gateway epp:
    clients reach the cluster's own gateway, wherever that is."""
    mode: Short | None = None
    """The mode of the spec that this status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=24)] = ()
    """The conditions of the fleet. Ready is the one to wait for."""
    roles: RolesStatus = RolesStatus()
    """The roles' pods."""
    goodput: Goodput | None = None
    """What clients got, as last measured."""
    autoscaling: AutoscalingStatus = AutoscalingStatus()
    """The latest decisions on replicas."""
    columns: Columns = Columns()
    """Texts that kubectl get prints."""


class ServingRoleStatus(ApiModel):
    """The role's pods, as the scale subresource reads them."""

    replicas: Count = 0
    """Pods of the role."""
    ready_replicas: Count = 0
    """Ready pods of the role."""
    selector: Annotated[str, StringConstraints(max_length=512)] = ""
    """The label selector of the role's pods."""
