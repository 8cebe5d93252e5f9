"""What the operator writes back: `status` of ServingDeployment and ServingRole.

`core/status` makes it from a Snapshot; `shell/report.py` writes it as a server-side apply of
`/status`. A lost status is made again from the cluster and from Prometheus. The next round reads
parts of the old one: conditions keep their lastTransitionTime, numbers and times that are not
measured anew keep their values, and rounds between two decisions repeat what the last one found.

Numbers that are not counts are strings ("0.953", "41ms"). `core/status/numbers.py` rounds them to
steps, so that a quiet fleet writes nothing."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from argosy_law.observe import RoleName
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import FleetName, ImageName
from argosy_operator.api.model import ApiModel, Metadata

Short = Annotated[str, StringConstraints(max_length=64)]
Sentence = Annotated[str, StringConstraints(max_length=1024)]
Count = Annotated[int, Field(ge=0)]
Timestamp = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]


class Condition(ApiModel):
    """One statement about the object, as kubectl wait, Argo CD and Flux read it."""

    list_key: ClassVar[str | None] = "type"

    type: Annotated[str, StringConstraints(max_length=64)]
    """What the condition is about, such as Ready. docs/reference/conditions.md lists the types."""
    status: Literal["True", "False", "Unknown"]
    """True, False, or Unknown where it was not or cannot be measured."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """Why, as one word that scripts can match. docs/reference/conditions.md has each."""
    message: Sentence = ""
    """Why, for people, and what to do."""
    observed_generation: Count | None = None
    """The metadata.generation of the spec that the condition is about."""
    last_transition_time: Timestamp
    """When the condition's status last changed."""


class StartPhases(ApiModel):
    """What a pod's time to ready goes to: the median of each phase, such as 41s.
    docs/how-to/cold-starts.md says what shortens them."""

    scheduling: Short = ""
    """Until the pod has a node. New nodes are waited for here."""
    files: Short = ""
    """Until its volumes are mounted, and while its init containers run."""
    images: Short = ""
    """Until the engine's process starts: the node pulls images and image volumes. Where the kubelet
    has no condition PodReadyToStartContainers, volumes are mounted in this time, too."""
    load: Short = ""
    """From there until it is ready: the engine loads the weights and warms up."""


class RoleStatus(ApiModel):
    """How many pods a role has, by state."""

    desired: Count = 0
    """Pods that the role should have."""
    ready: Count = 0
    """Pods of the spec's revision whose readiness probe passes. During a rollout, pods of older
    revisions serve too and are not counted here."""
    serving: Count = 0
    """Ready pods of every revision that take new requests, because they do not drain."""
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
    gpu_type: Short | None = None
    """The one of gpuTypes that the role runs on or rolls out. Absent without gpuTypes."""
    gpu_cost_per_hour: Short | None = None
    """What one of its GPUs costs per hour. Absent where the spec does not say it."""
    gpu_types_without_room: Annotated[dict[str, Timestamp], Field(max_length=4)] | None = None
    """When the role left a GPU type because its pods found no node, by name. Absent if none within
    a day."""
    time_to_ready: Short | None = None
    """Measured time from a pod's creation until it is ready, such as 92s. Absent until one was
    measured."""
    start_phases: StartPhases | None = None
    """What that time goes to. Absent until one was measured."""

    @property
    def ready_in_s(self) -> float:
        """`timeToReady` in seconds; 0 if it is absent or no number, since users can write status
        too."""
        try:
            return float((self.time_to_ready or "0").removesuffix("s"))
        except ValueError:
            return 0.0


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
    cost_per_hour: Short | None = None
    """What the GPUs of the fleet's pods cost per hour, by costPerHour of their gpuTypes."""
    cost_per_million_tokens: Short | None = None
    """What a million generated tokens cost."""
    cost_per_thousand_good: Short | None = None
    """What a thousand requests cost that met both targets."""
    misses: Annotated[dict[str, Short], Field(max_length=12)] | None = None
    """Share of the requests that missed the targets, by what took most of their time, such as
    queue: "0.041". docs/reference/misses.md says what each reason means. Absent if almost none
    did."""


class ErrorBudget(ApiModel):
    """How many of the requests that may miss the SLO have missed it, and how fast. Numbers are
    absent while too little was measured."""

    used: Short | None = None
    """Share of the error budget that is spent, such as 0.42; more than 1 is overspent. The budget
    is the requests of the last 30 days times the share that may miss the SLO."""
    since: Timestamp | None = None
    """When the first request was judged, or the start of the last 30 days."""
    seen: Short | None = None
    """Share of the time since then in which requests were judged, such as 0.98."""
    burn_rates: Annotated[dict[str, Short], Field(max_length=5)] = Field(default_factory=dict)
    """How fast the budget is spent, by window: 5m, 30m, 1h, 6h and 3d. At 1 it lasts for 30 days.
    Windows of which less than half was measured are absent."""
    alert: Literal["Page", "Ticket", "None"] = "None"
    """Page: 2 % of the budget went in an hour or 5 % in six, and it goes on. Ticket: 10 % went in
    three days. At low goals the rates for it are lower (docs/error-budget.md)."""


class AdviceStatus(ApiModel):
    """One answer of the scaling law: what it chose, and which rule limited it."""

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


class DecisionStatus(AdviceStatus):
    """One decision on replicas: what was measured, what was chosen, which rule limited it."""

    record: dict[str, Any] | None = None
    """Inputs, candidates and rules of the decision: replaying them gives the same answer. Only the
    last decision keeps its record."""


class AutoscalingStatus(ApiModel):
    """The latest decisions on replicas."""

    last_decision: DecisionStatus | None = None
    """The last decision that changed replicas."""
    history: Annotated[tuple[DecisionStatus, ...], Field(max_length=5)] = ()
    """Up to 5 decisions that changed replicas, newest first, without their records."""
    advice: AdviceStatus | None = None
    """What policy Goodput would do now (spec.autoscaling.advisory). It changes when other numbers
    of replicas are advised."""
    last_scale_time: Annotated[dict[str, Timestamp], Field(max_length=4)] | None = None
    """When replicas last changed, per role."""


class RevisionStatus(ApiModel):
    """The pods of one revision in a rollout."""

    list_key: ClassVar[str | None] = "revision"

    revision: Short
    """The revision, as in the label serving.argosy.dev/revision of its pods."""
    desired: Annotated[dict[str, Count], Field(max_length=4)]
    """Pods that it has for now, by role."""
    serving: Annotated[dict[str, Count], Field(max_length=4)]
    """Pods of it that take new requests, by role."""


class VerdictsStatus(ApiModel):
    """Requests of one revision in a canary."""

    met: Count = 0
    """Those that met the SLO."""
    missed: Count = 0
    """Those that missed it, or that its pods failed and others made good."""


class CanaryStatus(ApiModel):
    """The canary of a rollout."""

    since: Timestamp
    """When its pods served for the first time."""
    new: VerdictsStatus = VerdictsStatus()
    """Verdicts on the new revision since then."""
    old: VerdictsStatus = VerdictsStatus()
    """Verdicts on the old ones in the same time."""
    verdict: Literal["Won", "Lost", "Undecided"] = "Undecided"
    """What the comparison says now."""


class RolloutStatus(ApiModel):
    """A rollout that goes on."""

    strategy: Short
    """The spec's rollout.strategy."""
    state: Short
    """NewPodsStart, OldPodsLeave, FetchingModel, SurgeTooSmall, RolloutPaused, CanaryServes,
    CanaryUndecided or CanaryLost (docs/how-to/rollouts.md)."""
    waits_for: Sentence
    """What the next step waits for; of SurgeTooSmall, what to write."""
    new: RevisionStatus
    """The revision of the spec."""
    old: Annotated[tuple[RevisionStatus, ...], Field(max_length=10)]
    """Those whose place it takes; more than one after several edits."""
    canary: CanaryStatus | None = None
    """The canary, from when its pods serve. Absent without one."""


class RefusedStatus(ApiModel):
    """A revision of the spec that is not run. Another one of the history runs in its place until
    the spec asks for another revision, or `kubectl argosy rollout promote` takes this away."""

    revision: Short = ""
    """The revision that the spec asks for, and that is not run."""
    reason: Short = ""
    """Why, as one word that scripts can match: CanaryLost, Crashing or ProgressDeadline of a
    rollout that failed; Undone by kubectl argosy rollout undo."""
    message: Sentence = ""
    """Why, for people."""
    since: Timestamp = ""
    """When it was refused."""
    runs: Short = ""
    """The revision of the history that runs in its place."""
    inputs: Short | None = None
    """Digest of what the spec asks its pods to be, by which operators of other versions know it.
    The operator adds it."""


class ImagesStatus(ApiModel):
    """Images, by container."""

    engine: ImageName | None = None
    """The image of the engine pods. Absent in newerImages where the spec names it."""
    gateway: ImageName | None = None
    """The image of the gateway pods."""


class ModelStatus(ApiModel):
    """The model as it was fetched."""

    uri: Annotated[str, StringConstraints(max_length=512)]
    """The spec's model.uri that it was fetched from."""
    commit: Short
    """The commit that the URI's revision was when it was fetched. Of s3://: a digest of the names,
    sizes and ETags."""
    claim_name: Annotated[str, StringConstraints(max_length=253)]
    """The PersistentVolumeClaim that holds it."""
    claim_uid: Short
    """The claim's uid: one that was made again is empty."""
    path: Annotated[str, StringConstraints(max_length=1024)]
    """Its folder in the claim."""
    bytes: Count = 0
    """Size of its files."""


class Columns(ApiModel):
    """Texts that `kubectl get` prints."""

    prefill: Short = ""
    """Prefill pods, serving/desired; those of every revision serve. Of a colocated fleet: its pods.
    """
    decode: Short = ""
    """Decode pods, serving/desired. Of a colocated fleet: -, as its pods stand in prefill."""
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
    """The address of the fleet's OpenAI API inside the cluster."""
    mode: Short | None = None
    """The mode of the spec that this status is about."""
    revision: Short | None = None
    """The revision that runs or comes: the one that the spec asks for, unless that is refused."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=24)] = ()
    """The conditions of the fleet. Ready is the one to wait for."""
    roles: RolesStatus = RolesStatus()
    """The roles' pods."""
    rollout: RolloutStatus | None = None
    """The rollout that goes on; absent when pods of one revision are left."""
    refused: RefusedStatus | None = None
    """The revision of the spec, if it is not run. Absent if it is."""
    promoted: Short | None = None
    """The revision that has won its canary, or was promoted without. Another revision of the spec
    has a canary of its own."""
    images: ImagesStatus | None = None
    """The images that the fleet's pods have, or roll out."""
    newer_images: ImagesStatus | None = None
    """The operator's default images where the fleet keeps others. Absent if it has them. To take
    them, set imageUpdates: Follow."""
    model: ModelStatus | None = None
    """The model of hf:// or s3:// that was fetched last. Absent for others."""
    goodput: Goodput | None = None
    """What clients got, as last measured."""
    error_budget: ErrorBudget | None = None
    """What is left of the error budget of slo.attainment. Absent until a request was judged."""
    autoscaling: AutoscalingStatus = AutoscalingStatus()
    """The latest decisions on replicas."""
    columns: Columns = Columns()
    """Texts that kubectl get prints."""


class ServingRoleStatus(ApiModel):
    """The role's pods, as the scale subresource reads them."""

    observed_generation: Count = 0
    """The metadata.generation of the ServingRole that this status is about."""
    replicas: Count = 0
    """Pods of the role."""
    ready_replicas: Count = 0
    """Ready pods of the role."""
    selector: Annotated[str, StringConstraints(max_length=512)] = ""
    """The label selector of the role's pods."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = ()
    """Ready: as many pods serve as the role is to have. ScalingLimited: it asks for more or fewer
    than the spec allows."""


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
