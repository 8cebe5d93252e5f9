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
    EXTERNAL_OWNER = "ExternalOwner"
    POLICY_NONE = "PolicyNone"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    JUST_STARTED = "JustStarted"
    # MetricsAvailable
    MEASURED = "Measured"
    IDLE = "Idle"
    NO_PROMETHEUS = "NoPrometheus"
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
    # Draining, NameConflict
    PODS_LEAVING = "PodsLeaving"
    NOTHING_LEAVES = "NothingLeaves"
    FOREIGN_OBJECT = "ForeignObject"
    NO_CONFLICT = "NoConflict"
    UNKNOWN = "Unknown"


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
