"""The vocabulary of conditions: types, reasons, and how one list of conditions becomes the next.

`core` says what it wants to be said (`Statement`), `upsert` turns that into the list that stands in
status. A new reason is a change of the API: users' alerts and scripts read them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Truth = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"  # the sum: serves as the spec asks
    SERVABLE = "Servable"  # at least one complete pair, or one colocated pod, takes requests
    RECONCILING = "Reconciling"  # kstatus: on the way to the spec
    PROGRESSING = "Progressing"  # pods are being added, replaced or removed
    STALLED = "Stalled"  # kstatus: cannot go on without a person
    SLO_MET = "SLOMet"
    SLO_FEASIBLE = "SLOFeasible"
    SCALING_ACTIVE = "ScalingActive"
    METRICS_AVAILABLE = "MetricsAvailable"
    CAPACITY_LIMITED = "CapacityLimited"
    DRAINING = "Draining"
    NAME_CONFLICT = "NameConflict"
    FIELD_CONFLICT = "FieldConflict"


class Reason(StrEnum):
    """Why a condition is what it is."""

    # Ready, Servable, Reconciling, Progressing
    AS_SPECIFIED = "AsSpecified"
    STARTING = "Starting"
    PODS_NOT_READY = "PodsNotReady"
    NO_PREFILL = "NoPrefill"
    NO_DECODE = "NoDecode"
    NO_PODS = "NoPods"
    GATEWAY_NOT_READY = "GatewayNotReady"
    SCALING = "Scaling"
    ROLLING_OUT = "RollingOut"
    PARKED = "Parked"
    PAUSED = "Paused"
    DELETING = "Deleting"
    # Stalled: a person must act
    NOT_STALLED = "NotStalled"
    WRITE_FAILED = "WriteFailed"
    INVALID_SPEC = "InvalidSpec"
    FORBIDDEN = "Forbidden"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CRASHING = "ContainerCrashing"
    MODEL_NOT_FOUND = "ModelNotFound"
    WEIGHTS_INVALID = "WeightsInvalid"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    OUT_OF_MEMORY = "OutOfMemory"
    BAD_ARGUMENT = "BadArgument"
    # SLOMet, SLOFeasible
    TARGETS_MET = "TargetsMet"
    TARGETS_MISSED = "TargetsMissed"
    NO_TRAFFIC = "NoTraffic"
    NO_SLO = "NoSLO"
    WITHIN_REACH = "WithinReach"
    TTFT_FLOOR_ABOVE_TARGET = "TTFTFloorAboveTarget"
    TPOT_FLOOR_ABOVE_TARGET = "TPOTFloorAboveTarget"
    BUDGET_BOUND = "BudgetBound"
    MAX_REPLICAS_BOUND = "MaxReplicasBound"
    # ScalingActive
    ON_TARGET = "OnTarget"
    FOLLOWING_GOODPUT = "FollowingGoodput"
    CAPACITY_RELEARNT = "CapacityRelearnt"
    SIGNALS_UNKNOWN = "SignalsUnknown"
    EXTERNAL_OWNER = "ExternalOwner"
    POLICY_NONE = "PolicyNone"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    JUST_STARTED = "JustStarted"
    # MetricsAvailable
    MEASURED = "Measured"
    IDLE = "Idle"
    NO_PROMETHEUS = "NoPrometheus"
    PROMETHEUS_NOT_ALLOWED = "PrometheusNotAllowed"
    PROMETHEUS_UNREACHABLE = "PrometheusUnreachable"
    NO_TARGETS = "NoTargets"
    GATEWAY_SILENT = "GatewaySilent"
    STALE = "Stale"
    NOT_A_NUMBER = "NotANumber"
    # CapacityLimited
    ENOUGH = "Enough"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    GPU_BUDGET = "GPUBudget"
    UNREADABLE_NUMBER = "UnreadableNumber"
    # Draining, NameConflict, FieldConflict
    PODS_LEAVING = "PodsLeaving"
    NOTHING_LEAVES = "NothingLeaves"
    FOREIGN_OBJECT = "ForeignObject"
    NO_CONFLICT = "NoConflict"
    PUT_BACK_AGAIN = "PutBackAgain"
    NO_CONTEST = "NoContest"
    UNKNOWN = "Unknown"


MEANING: dict[Reason, str] = {
    Reason.AS_SPECIFIED: "everything is as the spec asks",
    Reason.STARTING: "pods are starting",
    Reason.PODS_NOT_READY: "pods that served are no longer ready",
    Reason.NO_PREFILL: "no prefill pod is ready: decode pods compute the prompts themselves",
    Reason.NO_DECODE: "no decode pod is ready for the revision of the ready prefill pods",
    Reason.NO_PODS: "no engine pod is ready",
    Reason.GATEWAY_NOT_READY: "no gateway pod is ready",
    Reason.SCALING: "pods that are no longer needed finish their answers",
    Reason.ROLLING_OUT: "another revision comes up",
    Reason.PARKED: "every role has 0 replicas, as asked",
    Reason.PAUSED: "spec.paused is true",
    Reason.DELETING: "the namespace is being deleted",
    Reason.NOT_STALLED: "no person needs to act",
    Reason.INVALID_SPEC: "the spec is refused",
    Reason.FORBIDDEN: "the API server forbids a write",
    Reason.WRITE_FAILED: "an object cannot be written",
    Reason.CLAIM_NOT_FOUND: "the PersistentVolumeClaim of spec.model.uri does not exist",
    Reason.IMAGE_PULL_FAILED: "an image cannot be pulled",
    Reason.CONTAINER_CRASHING: "a container ends again and again",
    Reason.MODEL_NOT_FOUND: "the model is not where spec.model.uri says",
    Reason.WEIGHTS_INVALID: "the weights cannot be read",
    Reason.UNSUPPORTED_ARCHITECTURE: "the engine does not know the model's architecture",
    Reason.OUT_OF_MEMORY: "an engine runs out of memory",
    Reason.BAD_ARGUMENT: "the engine refuses one of its arguments",
    Reason.TARGETS_MET: "the goal of spec.slo is met",
    Reason.TARGETS_MISSED: "fewer requests than the goal of spec.slo meet its targets",
    Reason.NO_TRAFFIC: "no request was answered within the window",
    Reason.NO_SLO: "spec.slo is not set",
    Reason.WITHIN_REACH: "a lone request meets the targets, and the replicas allowed suffice",
    Reason.TTFT_FLOOR_ABOVE_TARGET: "a prompt alone takes longer than spec.slo.ttft.target",
    Reason.TPOT_FLOOR_ABOVE_TARGET: "a lone answer misses spec.slo.tpot.target",
    Reason.BUDGET_BOUND: "spec.autoscaling.gpuBudget.max allows fewer replicas than are needed",
    Reason.MAX_REPLICAS_BOUND: "replicas.max allows fewer replicas than are needed",
    Reason.CAPACITY_RELEARNT: "what was learnt about a replica was not usable and is measured "
    "again: until then nothing is removed",
    Reason.SIGNALS_UNKNOWN: "a signal that a role's size rests on is unknown: none is removed",
    Reason.FOLLOWING_GOODPUT: "replicas follow the measured load and spec.slo",
    Reason.EXTERNAL_OWNER: "spec.autoscaling.policy is External: others turn the ServingRoles",
    Reason.POLICY_NONE: "spec.autoscaling.policy is None: replicas stay at their minimum",
    Reason.METRICS_UNAVAILABLE: "the metrics cannot be had: nothing is removed",
    Reason.MEASURED: "Prometheus has fresh samples of every Ready gateway",
    Reason.IDLE: "every Ready gateway reports, and no request arrives",
    Reason.NO_PROMETHEUS: "no address of Prometheus is set",
    Reason.PROMETHEUS_NOT_ALLOWED: "spec.metrics.prometheus.url is not in the allow-list",
    Reason.PROMETHEUS_UNREACHABLE: "Prometheus gives no answer",
    Reason.NO_TARGETS: "Prometheus scrapes no gateway of this fleet",
    Reason.GATEWAY_SILENT: "a Ready gateway has no fresh samples in Prometheus",
    Reason.STALE: "the newest samples are too old",
    Reason.NOT_A_NUMBER: "a metric is NaN, infinite or negative",
    Reason.ENOUGH: "all pods that are wanted can be had",
    Reason.UNSCHEDULABLE: "no node has room for a pod",
    Reason.QUOTA_EXCEEDED: "a ResourceQuota is used up",
    Reason.GPU_BUDGET: "spec.autoscaling.gpuBudget.max is used up",
    Reason.UNREADABLE_NUMBER: "a pod has a limit that is not a number",
    Reason.PODS_LEAVING: "pods finish their answers and leave",
    Reason.NOTHING_LEAVES: "no pod is leaving",
    Reason.FOREIGN_OBJECT: "an object of another owner has a name that this fleet needs",
    Reason.NO_CONFLICT: "all names that this fleet needs are its own",
    Reason.PUT_BACK_AGAIN: "another writer changes what Argosy writes, after each put-back",
    Reason.NO_CONTEST: "no other writer keeps changing what Argosy writes",
    Reason.UNKNOWN: "not looked at yet",
}
"""What a condition says where nothing more particular is known."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a condition shall say; when it began to is `upsert`'s matter."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str = ""


def upsert(
    conditions: Iterable[Mapping[str, Any]],
    statements: Iterable[Statement],
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """The conditions with every statement in its place.

    `conditions` is what stands in status now, `now` an RFC 3339 time, `generation` the one of the
    spec that was looked at. A condition keeps its lastTransitionTime while its status stays the
    same, whatever its reason and message say. Types without a statement stay as they are. The order
    is that of ConditionType, so that the same statements always give the same list.
    """
    result = {str(old["type"]): dict(old) for old in conditions}
    for said in statements:
        old = result.get(said.type.value, {})
        since = old.get("lastTransitionTime") if old.get("status") == said.status else None
        result[said.type.value] = {
            "type": said.type.value,
            "status": said.status,
            "reason": said.reason.value,
            "message": said.message[:1024],
            "observedGeneration": generation,
            "lastTransitionTime": since or now,
        }
    order = [member.value for member in ConditionType]
    known = [result.pop(name) for name in order if name in result]
    return known + [result[name] for name in sorted(result)]
