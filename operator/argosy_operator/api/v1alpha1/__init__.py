"""What users write: the spec of `ServingDeployment`. Read this file first.

Objects come from the API server as dictionaries (`ServingDeployment.model_validate`) and go to
`core` as the values below. Sections of the spec are in `engine`, `roles`, `autoscaling` (also SLO
and metrics) and `routing`. `status` is what the operator writes back, and the ServingRole, the
handle that other autoscalers write.

The CRDs are generated from these classes. The text below a field is what `kubectl explain` prints.
`api/bounds.py` has the least and the most of each number; `rules` of a class is what must hold
between its fields. A field is here only if something acts upon it.
"""

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from argosy_law.observe import Mode, RoleName
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import DURATION_PATTERN, FLEET_NAME, Duration, PositiveDurationText
from argosy_operator.api.model import ApiModel, Metadata, PodTemplate, ValidationRule, cel_matches
from argosy_operator.api.v1alpha1.autoscaling import Autoscaling, Metrics, Slo
from argosy_operator.api.v1alpha1.engine import TYPE_RULES, Engine, KvTransfer, Model
from argosy_operator.api.v1alpha1.roles import ROLES_OF, GpuType, Role, Roles
from argosy_operator.api.v1alpha1.routing import Drain, Rollout, Routing, Security
from argosy_operator.api.v1alpha1.status import (
    ModelStatus,
    ServingDeploymentStatus,
    ServingRole,
    ServingRoleSpec,
    ServingRoleStatus,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "ROLES_OF",
    "VERSION",
    "Mode",
    "Role",
    "RoleName",
    "ServingDeployment",
    "ServingDeploymentSpec",
    "ServingDeploymentStatus",
    "ServingRole",
    "ServingRoleSpec",
    "ServingRoleStatus",
]

GROUP = "serving.argosy.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_PREFILL, _DECODE, _COLOCATED = (
    f"self.roles.{role}" for role in ("prefill", "decode", "colocated")
)
_ADAPTERS = "self.spec.model.adapters"
_BLOCK_SIZE = "^--block[-_]size(=|$)"
_TENSOR = "{}.parallelism.tensor % {}.parallelism.tensor == 0"
_LEAST_GPUS = "{0}.replicas.min * {0}.resources.gpu"
_TYPED = "(has({0}.gpuTypes) && size({0}.gpuTypes) > 0)"
_DECLARED = (
    "(!has({0}.gpuTypes) || {0}.gpuTypes.all(n, "
    "has(self.gpuTypes) && self.gpuTypes.exists(t, t.name == n)))"
)
_SAME_AMOUNT = (
    f" && has({_PREFILL}.resources.{{0}}) == has({_DECODE}.resources.{{0}})"
    f" && (!has({_PREFILL}.resources.{{0}}) "
    f"|| {_PREFILL}.resources.{{0}} == {_DECODE}.resources.{{0}})"
)
_AMOUNTS = ("cpu", "memory", "gpuResource")
_RUNS_OR_PARKED = "({0}.replicas.min > 0 || {0}.replicas.max == 0)"


_SCHEDULED = (
    "(!has(s.roles.{0}) || "
    "((!has(s.roles.{0}.min) || s.roles.{0}.min <= self.roles.{0}.replicas.max) && "
    "(!has(s.roles.{0}.max) || s.roles.{0}.max >= self.roles.{0}.replicas.min)))"
)


class ServingDeploymentSpec(ApiModel):
    """The fleet that the user wants."""

    paused: bool = False
    """True stops all writes of the operator except status. The pods continue to serve."""
    progress_deadline: Annotated[PositiveDurationText, within("progressDeadline")] = Duration("10m")
    """How long a pod may wait for a node, a quota, its volumes or its image, or crash again, before
    the fleet is Stalled: such troubles often end by themselves. What waiting does not solve is said
    at once. A rollout fails when a new pod is not ready within it, or within three times
    status.roles.*.timeToReady where that is longer. Default 10m, as that of Deployments: enough for
    a node autoscaler to add a GPU node."""
    model: Model
    """The weights to serve and the name that clients ask for."""
    engine: Engine = Engine()
    """How the engine runs."""
    image_updates: Literal["Keep", "Follow"] = "Keep"
    """What becomes of running pods when the operator is installed with other default images. Keep:
    they keep their images; status.newerImages names the others. Follow: the fleet rolls the others
    out, as after an edit of engine.image. New fleets get the default images in either case."""
    mode: Mode = "colocated"
    """colocated: every pod does prefill and decode. disaggregated: separate pods for prefill and
    decode, each role sized for itself."""
    roles: Roles = Roles()
    """Bounds and pod sizes per role."""
    gpu_types: Annotated[tuple[GpuType, ...], Field(max_length=8)] = ()
    """GPU types that roles may name, with what each costs and how fast it is. Status then says what
    tokens and good requests cost. Default: all GPUs are alike."""
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
    rollout: Rollout = Rollout()
    """How pods of a new revision take the place of those that run."""
    drain: Drain = Drain()
    """How pods leave."""
    security: Security = Security()
    """Who may call the engine pods."""
    template: PodTemplate | None = None
    """A PodTemplateSpec that is merged over all pods of the fleet: engines, gateways and the Job
    that fetches the model. Containers engine, gateway and fetch are of the pods that have them.
    docs/how-to/pods.md says what stays Argosy's."""

    def active_roles(self) -> Iterator[tuple[RoleName, Role]]:
        """The roles that the mode uses, in the order in which they are shown."""
        for name in ROLES_OF[self.mode]:
            yield name, self.role(name)

    def role(self, name: RoleName) -> Role:
        role: Role = getattr(self.roles, name)
        return role

    def types_of(self, name: RoleName) -> tuple[GpuType, ...]:
        """The GPU types that may serve the role, in the order of its list."""
        types = {kind.name: kind for kind in self.gpu_types}
        return tuple(types[of] for of in dict.fromkeys(self.role(name).gpu_types))

    def type_of(self, name: RoleName) -> GpuType | None:
        """The type that the role runs on, of a spec as chosen; of one as written, the first."""
        return next(iter(self.types_of(name)), None)

    @property
    def flips_roles(self) -> bool:
        """Whether pods may change between prefill and decode."""
        return self.autoscaling.role_flip and self.mode == "disaggregated"

    @property
    def goes_to_zero(self) -> bool:
        """Whether all engine pods go while no requests arrive. A parked fleet has none."""
        return self.autoscaling.scale_to_zero is not None and all(
            role.replicas.min > 0 for _, role in self.active_roles()
        )

    @property
    def verifies_peers(self) -> bool:
        """Whether engine pods ask their callers for a token: those of other engines do not."""
        return self.security.verify_peers and self.engine.type == "argosy"

    def flipped_pods_fit(self) -> bool:
        prefill, decode = self.roles.prefill, self.roles.decode
        return not self.flips_roles or (
            prefill.resources == decode.resources and prefill.parallelism == decode.parallelism
        )

    def prefill_and_decode_run_together(self) -> bool:
        prefill, decode = self.roles.prefill.replicas, self.roles.decode.replicas
        return self.mode != "disaggregated" or (
            (prefill.min == 0) == (decode.min == 0) and (prefill.max == 0) == (decode.max == 0)
        )

    def zero_only_when_parked(self) -> bool:
        return self.autoscaling.policy != "Goodput" or all(
            role.replicas.min > 0 or role.replicas.max == 0 for _, role in self.active_roles()
        )

    def wakes_with_pods(self) -> bool:
        return self.autoscaling.scale_to_zero is None or all(
            role.replicas.min > 0 or role.replicas.max == 0 for _, role in self.active_roles()
        )

    def budget_covers_minimum(self) -> bool:
        budget = self.autoscaling.gpu_budget.max
        least = sum(role.replicas.min * role.resources.gpu for _, role in self.active_roles())
        return budget is None or budget >= least

    def costs_are_of_both_roles(self) -> bool:
        prefill, decode = self.roles.prefill, self.roles.decode
        return self.mode != "disaggregated" or bool(prefill.gpu_types) == bool(decode.gpu_types)

    def types_are_declared(self) -> bool:
        types = {kind.name for kind in self.gpu_types}
        return all(types.issuperset(self.role(name).gpu_types) for name in get_args(RoleName))

    def types_can_be_told_apart(self) -> bool:
        return len(self.gpu_types) < 2 or all(kind.node_selector for kind in self.gpu_types)

    def flipped_pods_have_one_type(self) -> bool:
        return not self.flips_roles or not (
            self.roles.prefill.gpu_types or self.roles.decode.gpu_types
        )

    def schedules_have_a_scaler(self) -> bool:
        return self.autoscaling.policy != "External" or not self.autoscaling.schedules

    def schedules_fit_replicas(self) -> bool:
        return all(
            schedule.of(name).fits(self.role(name).replicas.min, self.role(name).replicas.max)
            for schedule in self.autoscaling.schedules
            for name in get_args(RoleName)
        )

    def drain_outlives_lease(self) -> bool:
        return self.drain.timeout.seconds > self.kv_transfer.lease_s

    def kv_heads_fit(self) -> bool:
        sizes = self.roles.prefill.parallelism.tensor, self.roles.decode.parallelism.tensor
        return self.mode != "disaggregated" or max(sizes) % min(sizes) == 0

    def blocks_are_alike(self) -> bool:
        prefill, decode = self.roles.prefill.gpu_types, self.roles.decode.gpu_types
        return (
            self.engine.type != "vllm"
            or self.mode != "disaggregated"
            or not (prefill and decode)
            or (len(prefill) == 1 and prefill == decode)
            or any(re.match(_BLOCK_SIZE, arg) for arg in self.engine.args)
        )

    def nixl_is_not_encrypted(self) -> bool:
        return self.kv_transfer.transport != "nixl" or self.security.tls is None

    def shedding_has_slo(self) -> bool:
        return self.routing.shed_ttft_percent is None or self.slo is not None

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        *TYPE_RULES,
        ValidationRule(
            field=".roles",
            cel="self.mode != 'disaggregated' || "
            f"(({_PREFILL}.replicas.min == 0) == ({_DECODE}.replicas.min == 0) && "
            f"({_PREFILL}.replicas.max == 0) == ({_DECODE}.replicas.max == 0))",
            holds=prefill_and_decode_run_together,
            message="prefill without decode answers nothing: give both roles replicas, or 0 to "
            "both",
        ),
        ValidationRule(
            field=".roles",
            cel="!(self.autoscaling.policy in ['Goodput', 'Queue']) || "
            "(self.mode == 'disaggregated' "
            f"? {_RUNS_OR_PARKED.format(_PREFILL)} && {_RUNS_OR_PARKED.format(_DECODE)} "
            f": {_RUNS_OR_PARKED.format(_COLOCATED)})",
            holds=zero_only_when_parked,
            message="policy Goodput cannot start from zero pods: write "
            "replicas.min: 1, or park "
            "the fleet with min: 0 and max: 0; for a fleet that goes to zero without requests, "
            "add autoscaling.scaleToZero",
        ),
        ValidationRule(
            field=".autoscaling.scaleToZero",
            cel="!has(self.autoscaling.scaleToZero) || (self.mode == 'disaggregated' "
            f"? {_RUNS_OR_PARKED.format(_PREFILL)} && {_RUNS_OR_PARKED.format(_DECODE)} "
            f": {_RUNS_OR_PARKED.format(_COLOCATED)})",
            holds=wakes_with_pods,
            message="a fleet wakes from zero with replicas.min pods of each role: with "
            "autoscaling.scaleToZero write replicas.min: 1 or more",
        ),
        ValidationRule(
            field=".roles",
            cel=f"self.mode != 'disaggregated' || {_TYPED.format(_PREFILL)} == "
            f"{_TYPED.format(_DECODE)}",
            holds=costs_are_of_both_roles,
            message="prefill and decode can only be sized for their cost if both are known: write "
            "gpuTypes for both roles, or for none",
        ),
        ValidationRule(
            field=".roles",
            cel=" && ".join(map(_DECLARED.format, (_PREFILL, _DECODE, _COLOCATED))),
            holds=types_are_declared,
            message="a role's gpuTypes are names of spec.gpuTypes: declare the type there, with "
            "its costPerHour",
        ),
        ValidationRule(
            field=".gpuTypes",
            cel="!has(self.gpuTypes) || size(self.gpuTypes) < 2 || self.gpuTypes.all(t, "
            "has(t.nodeSelector) && size(t.nodeSelector) > 0)",
            holds=types_can_be_told_apart,
            message="the scheduler cannot tell these gpuTypes apart: give each a nodeSelector, "
            "such as nvidia.com/gpu.product",
        ),
        ValidationRule(
            field=".autoscaling.roleFlip",
            cel="self.mode != 'disaggregated' || !self.autoscaling.roleFlip || "
            f"!({_TYPED.format(_PREFILL)} || {_TYPED.format(_DECODE)})",
            holds=flipped_pods_have_one_type,
            message="a pod that changes its role stays on its GPU: leave autoscaling.roleFlip or "
            "the roles' gpuTypes out",
        ),
        ValidationRule(
            field=".autoscaling.gpuBudget.max",
            cel="!has(self.autoscaling.gpuBudget.max) || self.autoscaling.gpuBudget.max >= "
            f"(self.mode == 'disaggregated' ? {_LEAST_GPUS.format(_PREFILL)} + "
            f"{_LEAST_GPUS.format(_DECODE)} : {_LEAST_GPUS.format(_COLOCATED)})",
            holds=budget_covers_minimum,
            message="autoscaling.gpuBudget.max is below what the roles' minimum replicas hold "
            "(sum of replicas.min x resources.gpu): raise the budget or lower replicas.min",
        ),
        ValidationRule(
            field=".autoscaling.schedules",
            cel="self.autoscaling.policy != 'External' || !has(self.autoscaling.schedules) "
            "|| size(self.autoscaling.schedules) == 0",
            holds=schedules_have_a_scaler,
            message="autoscaling.schedules do nothing under policy External: write policy Goodput, "
            "Queue or None, or use schedules of the other autoscaler, such as KEDA's cron scaler",
        ),
        ValidationRule(
            field=".autoscaling.schedules",
            cel="!has(self.autoscaling.schedules) || self.autoscaling.schedules.all(s, "
            + " && ".join(_SCHEDULED.format(role) for role in ("prefill", "decode", "colocated"))
            + ")",
            holds=schedules_fit_replicas,
            message="a schedule's min must not be more than replicas.max of the role (default 8), "
            "and its max not less than replicas.min: change one of the two",
        ),
        ValidationRule(
            field=".drain.timeout",
            cel=f"!{cel_matches('self.drain.timeout', DURATION_PATTERN)} || "
            f"!{cel_matches('self.kvTransfer.timeout', DURATION_PATTERN)} || "
            "duration(self.drain.timeout) > duration(self.kvTransfer.timeout) + "
            "duration(self.kvTransfer.timeout) + duration(self.kvTransfer.timeout)",
            holds=drain_outlives_lease,
            message="drain.timeout must be longer than three kvTransfer.timeout, or a leaving "
            "prefill pod would drop caches that decode still reads: raise drain.timeout",
        ),
        ValidationRule(
            field=".autoscaling.roleFlip",
            cel="self.mode != 'disaggregated' || !self.autoscaling.roleFlip || "
            f"({_PREFILL}.parallelism.tensor == {_DECODE}.parallelism.tensor && "
            f"{_PREFILL}.resources.gpu == {_DECODE}.resources.gpu"
            + "".join(map(_SAME_AMOUNT.format, _AMOUNTS))
            + f" && {_PREFILL}.resources.gpuFrom == {_DECODE}.resources.gpuFrom)",
            holds=flipped_pods_fit,
            message="autoscaling.roleFlip makes decode pods of prefill pods: write the same "
            "resources and parallelism for both roles, or leave roleFlip out",
        ),
        ValidationRule(
            field=".roles",
            cel=f"self.mode != 'disaggregated' || {_TENSOR.format(_PREFILL, _DECODE)} || "
            f"{_TENSOR.format(_DECODE, _PREFILL)}",
            holds=kv_heads_fit,
            message="prefill and decode split the KV heads over numbers of GPUs of which neither "
            "divides the other: write the same parallelism.tensor for both, or such as 2 and 4",
        ),
        ValidationRule(
            field=".roles",
            cel="self.engine.type != 'vllm' || self.mode != 'disaggregated' || "
            f"!{_TYPED.format(_PREFILL)} || !{_TYPED.format(_DECODE)} || "
            f"(size({_PREFILL}.gpuTypes) == 1 && {_PREFILL}.gpuTypes == {_DECODE}.gpuTypes) || "
            f"(has(self.engine.args) && "
            f"self.engine.args.exists(a, {cel_matches('a', _BLOCK_SIZE)}))",
            holds=blocks_are_alike,
            message="vLLM chooses its block size by the GPU, and answers garbage where those of "
            "prefill and decode differ: write one gpuType for both roles, or a size in "
            "engine.args, such as --block-size=64",
        ),
        ValidationRule(
            field=".kvTransfer.transport",
            cel="self.kvTransfer.transport != 'nixl' || !has(self.security.tls)",
            holds=nixl_is_not_encrypted,
            message="kvTransfer.transport nixl does not encrypt, and security.tls asks for it: "
            "write transport: tcp, or leave one of the two out",
        ),
        ValidationRule(
            field=".routing.shedTtftPercent",
            cel="!has(self.routing.shedTtftPercent) || has(self.slo)",
            holds=shedding_has_slo,
            message="routing.shedTtftPercent is a percentage of slo.ttft.target: set slo, or leave "
            "it out",
        ),
    )


class ServingDeployment(ApiModel):
    """A fleet of LLM engines behind one OpenAI-compatible address, kept on its SLO."""

    metadata: Metadata
    spec: ServingDeploymentSpec
    """The fleet that the user wants."""
    status: ServingDeploymentStatus = Field(default_factory=ServingDeploymentStatus)
    """The fleet as the operator observed it."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that clients ask for."""
        return tuple(dict.fromkeys(self.spec.model.served_names)) or (self.metadata.name,)

    @property
    def model_claim(self) -> str | None:
        """The claim that the model is fetched into; None for a model that is not fetched."""
        fetch = self.spec.model.fetch
        return None if fetch is None else fetch.claim_name or f"{self.name}-model"

    @property
    def fetched_model(self) -> ModelStatus | None:
        """Where the spec's model lies in that claim; None until it was fetched."""
        asked, known = (self.spec.model.uri, self.model_claim), self.status.model
        return known if known is not None and (known.uri, known.claim_name) == asked else None

    @property
    def model_image(self) -> str | None:
        """The image of oci://<image>; None for another model."""
        scheme, _, image = self.spec.model.uri.partition("://")
        return image if scheme == "oci" else None

    def name_fits_its_children(self) -> bool:
        name = self.metadata.name
        return len(name) <= FLEET_NAME.max_length and FLEET_NAME.matches(name)

    def adapters_have_other_names(self) -> bool:
        return all(adapter.name != self.name for adapter in self.spec.model.adapters)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".spec.model.adapters",
            cel=f"!has({_ADAPTERS}) || {_ADAPTERS}.all(a, a.name != self.metadata.name)",
            holds=adapters_have_other_names,
            message="engines know the model by the fleet's name: choose another one in "
            "model.adapters",
        ),
        ValidationRule(
            field=".metadata.name",
            cel=cel_matches("self.metadata.name", FLEET_NAME.pattern),
            holds=name_fits_its_children,
            message="a fleet's name is at most 40 lower-case letters, digits and hyphens and "
            "begins with a letter, because its pods and Services are named after it",
        ),
    )
