"""The types of conditions, and how the list of them is updated.

`core/status` decides which `DesiredCondition` each type gets; `upsert` turns them into the list of
conditions in status. `reasons` says why a condition is what it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Any, Literal

from argosy_operator.api.conditions.reasons import Reason

ConditionStatus = Literal["True", "False", "Unknown"]

RUNBOOK = "docs/runbook"
"""Where the runbook's pages are: a folder of the repository, as the project has no web site."""
LARGEST_MESSAGE = 1024
"""Most characters of a condition's message, as the CRD has it."""
_PAGES = {reason.value: f"{RUNBOOK}/{reason}.md" for reason in Reason if reason.action}


@unique
class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"
    """The fleet answers requests, during a rollout with pods of before."""
    ROLLED_OUT = "RolledOut"
    """All pods are of the spec's revision, no others are left, and gateways use the spec's
    settings: what a pipeline waits for."""
    SERVABLE = "Servable"
    """At least one prefill and decode pod of one revision, or one colocated pod, takes requests."""
    RECONCILING = "Reconciling"
    """kstatus: the operator is on its way to the spec."""
    PROGRESSING = "Progressing"
    """Pods are being added, replaced or removed."""
    STALLED = "Stalled"
    """kstatus: the operator cannot go on until a person acts."""
    MODEL_FETCHED = "ModelFetched"
    """The model is where engine pods mount it."""
    SLO_MET = "SLOMet"
    """Enough requests meet the targets of spec.slo."""
    ERROR_BUDGET_BURNING = "ErrorBudgetBurning"
    """The error budget of slo.attainment will not last its 30 days at the rate of now."""
    SLO_FEASIBLE = "SLOFeasible"
    """The targets can be met within the limits of the spec."""
    SCALING_ACTIVE = "ScalingActive"
    """Argosy sizes the roles from the SLO."""
    GATEWAY_SCALING_ACTIVE = "GatewayScalingActive"
    """A HorizontalPodAutoscaler sizes the gateways."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """Prometheus has what a decision needs."""
    CAPACITY_LIMITED = "CapacityLimited"
    """Pods or GPUs are needed and cannot be had."""
    DRAINING = "Draining"
    """Pods finish their answers before they leave."""
    NAME_CONFLICT = "NameConflict"
    """An object with another owner has a name that the fleet needs."""
    FIELD_CONFLICT = "FieldConflict"
    """Another writer keeps changing what the operator writes."""
    PEERS_VERIFIED = "PeersVerified"
    """Every engine pod verifies who calls it."""
    TRANSPORT_SECURED = "TransportSecured"
    """Calls of engine pods are encrypted, with certificates on both sides."""
    KV_TRANSFER_HEALTHY = "KVTransferHealthy"
    """Decode pods get the KV caches of prompts from prefill pods."""
    SCALING_LIMITED = "ScalingLimited"
    """Of a ServingRole: the spec's bounds do not allow what it asks for. HPA's word."""


def runbook_of(reason: str) -> str:
    """The runbook's page of a reason that needs a person, "" for one that does not and for reasons
    that are not ours."""
    return _PAGES.get(reason, "")


def with_runbook(message: str, reason: str) -> str:
    """The message, ended by the runbook's page if the reason needs a person. A long message is cut
    so that the page stays whole."""
    page = runbook_of(reason)
    if not page:
        return message
    link = f". See {page}"
    return message[: LARGEST_MESSAGE - len(link)].rstrip(". ") + link


@dataclass(frozen=True, slots=True)
class DesiredCondition:
    """Desired content of one condition; `upsert` sets lastTransitionTime."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""


def upsert(
    conditions: Iterable[Mapping[str, Any]],
    desired: Iterable[DesiredCondition],
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """The conditions, updated with the desired ones.

    `conditions` is the list in status, `now` an RFC 3339 time, `generation` that of the spec which
    the desired ones are for. A condition keeps its lastTransitionTime while its status is the same,
    even if reason or message change. Types without a desired condition are not changed. The order
    is that of ConditionType, so that the same input always gives the same list.
    """
    result = {str(old["type"]): dict(old) for old in conditions}
    for condition in desired:
        old = result.get(condition.type.value, {})
        since = old.get("lastTransitionTime") if old.get("status") == condition.status else None
        result[condition.type.value] = {
            "type": condition.type.value,
            "status": condition.status,
            "reason": condition.reason.value,
            "message": condition.message[:LARGEST_MESSAGE],
            "observedGeneration": generation,
            "lastTransitionTime": since or now,
        }
    order = [member.value for member in ConditionType]
    known = [result.pop(name) for name in order if name in result]
    return known + [result[name] for name in sorted(result)]
