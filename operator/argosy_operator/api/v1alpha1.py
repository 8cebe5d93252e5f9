"""What users write: the spec of `ServingDeployment`, and `ServingRole`, its scale handle.

Read first. Objects come from the API server as dictionaries (`ServingDeployment.model_validate`)
and go to `core` as the values below; `status.py` has what the operator writes back. The CRDs are
generated from these classes (`python -m argosy_operator.api.crd --write`): the docstring below a
field is what `kubectl explain` prints, `bounds.py` has the least and the most of each number,
`rules.py` what spans several fields. Only fields that something acts upon stand here.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import (
    Attainment,
    Duration,
    DurationText,
    EnvName,
    FleetName,
    ImageName,
    MetricsUrl,
    ModelUri,
    Percent,
    PositiveDurationText,
    Quantity,
    ServedName,
    Target,
)
from argosy_operator.api.model import ApiModel
from argosy_operator.api.status import ServingDeploymentStatus, ServingRoleStatus

GROUP = "serving.argosy.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

Mode = Literal["colocated", "disaggregated"]
RoleName = Literal["prefill", "decode", "colocated"]
ROLES_OF: dict[Mode, tuple[RoleName, ...]] = {
    "colocated": ("colocated",),
    "disaggregated": ("prefill", "decode"),
}


class Model(ApiModel):
    """The weights to serve and the name that clients ask for."""

    uri: ModelUri
    """Where the weights are: pvc://<claim>/<path> on a volume claim of this namespace, mounted
    read-only, or sim://<preset> for simulated engines that need neither weights nor GPUs."""
    served_name: ServedName | None = None
    """The name in the OpenAI API's "model" field. Default: the fleet's name."""


class EnvVar(ApiModel):
    """One environment variable of the engine's container."""

    name: EnvName
    """The variable's name."""
    value: Annotated[str, StringConstraints(max_length=4096)] = ""
    """The variable's value, as plain text; secrets do not belong here."""


Arg = Annotated[str, StringConstraints(max_length=256)]


class Engine(ApiModel):
    """How the engine runs. A change makes a new revision: new pods replace the old ones."""

    image: ImageName | None = None
    """The engine's image. Default: the one that the operator was installed with."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the model: float32, bfloat16, or auto, which takes what the weights say."""
    max_model_len: Annotated[int, within("engine.maxModelLen")] | None = None
    """Longest prompt plus answer, in tokens. Default: what the model's config says."""
    max_num_seqs: Annotated[int, within("engine.maxNumSeqs")] | None = None
    """Most sequences in one step."""
    max_num_batched_tokens: Annotated[int, within("engine.maxNumBatchedTokens")] | None = None
    """Most tokens in one step; longer prompts are prefilled in chunks."""
    max_body_bytes: Annotated[int, within("engine.maxBodyBytes")] | None = None
    """Largest request body in bytes, at the gateway and at the engine; more is answered 413.
    Default: 8388608 (8 MiB), which holds a prompt of a million token ids."""
    args: Annotated[tuple[Arg, ...], Field(max_length=32)] = ()
    """More arguments of `argosy engine serve`, one per item, such as --block-size=32."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=32)] = ()
    """More environment variables of the engine's container."""


class Replicas(ApiModel):
    """How many pods a role may have."""

    min: Annotated[int, within("roles.*.replicas.min")] = 1
    """Fewest pods; what runs without an SLO."""
    max: Annotated[int, within("roles.*.replicas.max")] = 8
    """Most pods. 0, with min 0, parks the role."""


class Resources(ApiModel):
    """What one pod of a role asks for."""

    gpu: Annotated[int, within("roles.*.resources.gpu")] = 1
    """GPUs of one pod (nvidia.com/gpu). The engine of Argosy computes on one of them."""
    cpu: Quantity | None = None
    """CPU request, such as "4" or "500m"."""
    memory: Quantity | None = None
    """Memory request and limit, such as 16Gi."""


class Role(ApiModel):
    """One role of the fleet: its bounds and the size of its pods."""

    replicas: Replicas = Replicas()
    """How many pods the role may have."""
    resources: Resources = Resources()
    """What one pod asks for."""


class Roles(ApiModel):
    """The roles; those that the mode does not use are kept, and nothing runs for them."""

    prefill: Role = Role()
    """Pods that compute prompts (mode disaggregated)."""
    decode: Role = Role()
    """Pods that generate answers (mode disaggregated)."""
    colocated: Role = Role()
    """Pods that do both (mode colocated)."""


class KvTransfer(ApiModel):
    """How decode pods pull the KV cache of a prompt from prefill pods."""

    lease_seconds: Annotated[int, within("kvTransfer.leaseSeconds")] = 30
    """How long prefill keeps a prompt's cache without a sign of life from decode."""
    timeout: Annotated[PositiveDurationText, within("kvTransfer.timeout")] = Duration("10s")
    """How long decode waits for a prompt's cache, whichever prefill pods it asks, before it
    computes the prompt itself."""


class Objective(ApiModel):
    """One latency target."""

    target: Annotated[Target, within("slo.*.target")]
    """The latency that a request must not exceed, such as 200ms or 2s."""


class Slo(ApiModel):
    """A request is good when it meets both targets; the fleet is sized so that enough are."""

    ttft: Objective
    """Time to first token, from the request's arrival at the gateway."""
    tpot: Objective
    """Time per output token after the first, averaged over one answer."""
    attainment: Attainment = Percent("90%")
    """The share of requests that must meet both targets."""


class GpuBudget(ApiModel):
    """The most GPUs that policy Goodput may ask for."""

    max: Annotated[int, within("autoscaling.gpuBudget.max")] | None = None
    """Most GPUs over all roles. Default: what the roles' maxima come to. While a rollout lasts, old
    pods hold theirs beside it."""


class ScaleUp(ApiModel):
    """How fast replicas may be added."""

    max_step_percent: Annotated[int, within("autoscaling.scaleUp.maxStepPercent")] = 100
    """Most growth of a role in one decision, in percent of its pods; the larger step counts."""
    max_step_pods: Annotated[int, within("autoscaling.scaleUp.maxStepPods")] = 4
    """Most pods added to a role in one decision."""
    stabilization: Annotated[DurationText, within("autoscaling.scaleUp.stabilization")] = Duration(
        "0s"
    )
    """How long the need for more must last before it is followed."""


class ScaleDown(ApiModel):
    """How fast replicas may be removed."""

    max_step_pods: Annotated[int, within("autoscaling.scaleDown.maxStepPods")] = 1
    """Most pods removed from a role in one decision."""
    stabilization: Annotated[DurationText, within("autoscaling.scaleDown.stabilization")] = (
        Duration("240s")
    )
    """How long fewer pods must have been enough; about twice the cold start."""


class Autoscaling(ApiModel):
    """Who decides the number of replicas, how often and in which steps."""

    policy: Literal["Goodput", "External", "None"] = "Goodput"
    """Goodput: Argosy, from the SLO. External: whoever scales the ServingRoles (HPA, KEDA,
    kubectl scale). None: replicas stay at their minimum."""
    interval: Annotated[PositiveDurationText, within("autoscaling.interval")] = Duration("15s")
    """Time between two decisions."""
    cold_start: Annotated[PositiveDurationText, within("autoscaling.coldStart")] = Duration("180s")
    """First guess of a pod's time from creation to ready; the measured value replaces it."""
    gpu_budget: GpuBudget = GpuBudget()
    """The most GPUs that policy Goodput may ask for."""
    scale_up: ScaleUp = ScaleUp()
    """How fast replicas may be added."""
    scale_down: ScaleDown = ScaleDown()
    """How fast replicas may be removed."""


class Prometheus(ApiModel):
    """The Prometheus that scrapes this fleet."""

    url: MetricsUrl | None = None
    """Its address. Default: the one that the operator was installed with; any other one must be in
    the operator's allow-list (chart value prometheus.allowed)."""


class Metrics(ApiModel):
    """Where measurements come from and how old they may be."""

    prometheus: Prometheus = Prometheus()
    """The Prometheus that scrapes this fleet."""
    scrape_interval: Annotated[PositiveDurationText, within("metrics.scrapeInterval")] = Duration(
        "15s"
    )
    """How often Prometheus scrapes the pods; must say what its configuration says."""
    rate_window: Annotated[PositiveDurationText, within("metrics.rateWindow")] | None = None
    """The window of rates. Default: four times the scrape interval."""

    @property
    def rate_window_s(self) -> float:
        return (self.rate_window or Duration("0s")).seconds or 4 * self.scrape_interval.seconds


class Routing(ApiModel):
    """The fleet's gateway."""

    strategy: Literal["leastLoad", "roundRobin"] = "leastLoad"
    """How the gateway chooses pods: leastLoad or roundRobin."""
    replicas: Annotated[int, within("routing.replicas")] = 2
    """Gateway pods."""
    max_queue: Annotated[int, within("routing.maxQueue")] = 1000
    """Most requests that one gateway pod holds; more are answered 429."""
    queue_timeout: Annotated[PositiveDurationText, within("routing.queueTimeout")] = Duration("30s")
    """How long a request waits in the gateway for a pod that can serve it; then it is answered
    503."""
    shed_ttft_percent: Annotated[int, within("routing.shedTtftPercent")] | None = None
    """Answer 429 with Retry-After at once when the predicted TTFT exceeds this percentage of
    slo.ttft.target, such as 150. Default: the gateway does not predict."""


class Drain(ApiModel):
    """How pods leave."""

    timeout: Annotated[PositiveDurationText, within("drain.timeout")] = Duration("300s")
    """How long a leaving pod may finish its answers before it is ended."""


class ServingDeploymentSpec(ApiModel):
    """The fleet that the user wants."""

    paused: bool = False
    """True stops every write of the operator but status; the pods serve on."""
    model: Model
    """The weights to serve and the name that clients ask for."""
    engine: Engine = Engine()
    """How the engine runs."""
    mode: Mode = "colocated"
    """colocated: every pod does prefill and decode. disaggregated: separate pods, sized apart."""
    roles: Roles = Roles()
    """Bounds and pod sizes per role."""
    kv_transfer: KvTransfer = KvTransfer()
    """How the KV cache travels from prefill to decode (mode disaggregated)."""
    slo: Slo | None = None
    """The latency objective. Without it replicas stay at their minimum."""
    autoscaling: Autoscaling = Autoscaling()
    """Who decides the number of replicas, how often and in which steps."""
    metrics: Metrics = Metrics()
    """Where measurements come from."""
    routing: Routing = Routing()
    """The fleet's gateway."""
    drain: Drain = Drain()
    """How pods leave."""

    def active_roles(self) -> Iterator[tuple[RoleName, Role]]:
        """The roles that the mode uses, in the order in which they are shown."""
        for name in ROLES_OF[self.mode]:
            yield name, self.role(name)

    def role(self, name: RoleName) -> Role:
        role: Role = getattr(self.roles, name)
        return role


class Metadata(ApiModel):
    """The part of Kubernetes' ObjectMeta that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class ServingDeployment(ApiModel):
    """A fleet of LLM engines behind one OpenAI-compatible address, kept on its SLO."""

    metadata: Metadata
    spec: ServingDeploymentSpec
    """The fleet that the user wants."""
    status: ServingDeploymentStatus = Field(default_factory=ServingDeploymentStatus)
    """The fleet as the operator sees it."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.metadata.name


class ServingRoleSpec(ApiModel):
    """Which role of which fleet, and how many pods it shall have."""

    fleet: FleetName
    """The ServingDeployment that owns the role."""
    role: RoleName
    """The role: prefill, decode or colocated."""
    replicas: Annotated[int, within("roles.*.replicas.max")] | None = None
    """Pods that the role shall have; beyond the role's min or max that bound counts. Absent means:
    hold."""


class ServingRole(ApiModel):
    """The scale handle of one role of a fleet: what HPA, KEDA and kubectl scale turn."""

    metadata: Metadata
    spec: ServingRoleSpec
    """Which role of which fleet, and how many pods it shall have."""
    status: ServingRoleStatus = Field(default_factory=ServingRoleStatus)
    """The role's pods as the operator sees them."""
