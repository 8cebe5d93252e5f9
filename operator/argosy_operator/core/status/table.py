"""The truth table of conditions: which facts give which condition, reason, status and message.

For each condition type the first row whose facts hold applies; the last row of a type has no facts.
`messages_of` writes what is true of this fleet and what to do about it; a reason that it does not
name has a general message, `Reason.meaning`. `docs/reference/conditions.md` is printed from this
table; tests/core/status brings about every row, in worlds written by hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argosy_law.decision import Decision, lacks_metrics
from argosy_law.explain import alone_sentence, relearning_sentence
from argosy_law.goals import Whose
from argosy_law.rollout import RolloutState
from argosy_operator.api.conditions import (
    ConditionStatus,
    ConditionType,
    DesiredCondition,
    Reason,
    with_runbook,
)
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.history import Refusal
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pod_problems import FETCH_FAILURES, LOAD_FAILURES
from argosy_operator.core.snapshot.pods import FetchProgress
from argosy_operator.core.status.facts import METRICS_PROBLEMS, Fact, Facts, Findings, Overdue
from argosy_operator.core.status.numbers import number, without_room
from argosy_operator.core.status.problems import CAPACITY, MOST_NAMED
from argosy_operator.core.steps.children import UNHEARD_S, is_rolled_out
from argosy_operator.core.steps.failures import describe_conflicts
from argosy_operator.core.steps.models import live_job, pods_of


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """One row: if all facts `when` hold and no fact `unless` does, the condition has this status
    and reason."""

    status: ConditionStatus
    reason: Reason
    when: tuple[Fact | Reason | Overdue, ...] = ()
    unless: tuple[Fact | Reason | Overdue, ...] = ()
    meaning: str = ""
    """The message, where several types share the reason and each means something else by it."""

    def applies(self, facts: Facts) -> bool:
        return facts.issuperset(self.when) and facts.isdisjoint(self.unless)


REFUSALS = (Reason.INVALID_SPEC, Reason.FORBIDDEN, Reason.DELETING)
"""Problems of the API server with what the spec asks for."""

BLOCKING: tuple[Reason, ...] = (
    *REFUSALS,
    Reason.CLAIM_NOT_FOUND,
    Reason.IMAGE_PULL_FAILED,
    *FETCH_FAILURES,
    *LOAD_FAILURES,
    Reason.CONTAINER_CRASHING,
    Reason.POD_NOT_STARTED,
    *CAPACITY,
)
"""Problems that a person must solve if they last, most serious first."""


_NO_HELP = "so more replicas do not help. Raise the target, or use faster GPUs"
_MOOT = (Fact.ROLLED_OUT_BEFORE, Fact.ROLLING_OUT, Fact.FRONT_ROLLING)
"""While one of these holds, refused settings do not make the fleet Stalled."""

_ON_THE_WAY = (
    Fact.PAUSED,
    Fact.WRITE_FAILS,
    Fact.MODEL_MISSING,
    Fact.ROLLING_OUT,
    Fact.FRONT_ROLLING,
)
"""While one of these holds, a fleet that rolls back is not Stalled: it has not arrived."""

_APART = (
    "prefill and decode pods are of different revisions, and only pods of one work together: "
    "decode pods compute the prompts themselves"
)

_NOT_MEASURED = (
    ConditionRow("Unknown", Reason.NO_SLO, unless=(Fact.SLO_SET,)),
    ConditionRow("Unknown", Reason.EXTERNAL_OWNER, when=(Fact.POLICY_EXTERNAL,)),
    ConditionRow("Unknown", Reason.POLICY_NONE, when=(Fact.POLICY_NONE,)),
    ConditionRow("Unknown", Reason.SCALED_TO_ZERO, when=(Fact.AT_ZERO,)),
    ConditionRow("Unknown", Reason.METRICS_UNAVAILABLE, when=(Fact.METRICS_UNAVAILABLE,)),
    ConditionRow("Unknown", Reason.GATEWAYS_ALONE, when=(Fact.GATEWAYS_ALONE,)),
)
"""Both SLO conditions need an SLO, and the metrics, which are queried only for our policies."""

TABLE: Mapping[ConditionType, tuple[ConditionRow, ...]] = {
    # Does the fleet answer requests as the spec asks?
    ConditionType.READY: (
        ConditionRow(
            "True",
            Reason.NO_PREFILL,
            when=(Fact.DECODE_ALONE, Fact.GATEWAY_READY, Fact.REVISIONS_DIFFER),
            unless=(Fact.SERVICE_NAME_TAKEN,),
            meaning=_APART,
        ),
        ConditionRow(
            "True",
            Reason.NO_PREFILL,
            when=(Fact.DECODE_ALONE, Fact.GATEWAY_READY),
            unless=(Fact.SERVICE_NAME_TAKEN,),
        ),
        *(ConditionRow("False", r, when=(r,), unless=(Fact.SERVABLE,)) for r in BLOCKING),
        ConditionRow(
            "True",
            Reason.PARKED,
            when=(Fact.ZERO_REPLICAS,),
            unless=(Fact.SERVICE_NAME_TAKEN,),
        ),
        # The next request is answered, after a cold start: nothing is wrong.
        ConditionRow(
            "True",
            Reason.SCALED_TO_ZERO,
            when=(Fact.AT_ZERO, Fact.GATEWAY_READY),
            unless=(Fact.NAME_TAKEN,),
        ),
        ConditionRow(
            "False", Reason.FOREIGN_OBJECT, when=(Fact.NAME_TAKEN,), unless=(Fact.SERVABLE,)
        ),
        ConditionRow("False", Reason.FOREIGN_OBJECT, when=(Fact.SERVICE_NAME_TAKEN,)),
        ConditionRow(
            "False",
            Reason.WRITE_FAILED,
            when=(Fact.DEPLOYMENT_WRITE_FAILS,),
            unless=(Fact.SERVABLE,),
        ),
        ConditionRow(
            "False", Reason.GATEWAY_NOT_READY, when=(Fact.AT_ZERO,), unless=(Fact.GATEWAY_READY,)
        ),
        ConditionRow("False", Reason.WAKING, when=(Fact.WAKING,), unless=(Fact.SERVABLE,)),
        ConditionRow(
            "False",
            Reason.FETCHING_MODEL,
            when=(Fact.MODEL_MISSING,),
            unless=(Fact.SERVABLE, Fact.WAS_SERVING),
        ),
        ConditionRow("False", Reason.STARTING, unless=(Fact.SERVABLE, Fact.WAS_SERVING)),
        ConditionRow("False", Reason.PODS_NOT_READY, unless=(Fact.SERVABLE,)),
        ConditionRow("False", Reason.GATEWAY_NOT_READY, unless=(Fact.GATEWAY_READY,)),
        # Its pods serve as the last spec that was not refused asked.
        ConditionRow("True", Reason.INVALID_SPEC, when=(Reason.INVALID_SPEC,)),
        ConditionRow("True", Reason.AS_SPECIFIED),
    ),
    # Are all pods of the spec's revision, no others left, and its settings in use? Pods that are
    # lost or wanted later, and writes that fail later, do not change what was true of a generation.
    ConditionType.ROLLED_OUT: (
        *(ConditionRow("False", r, when=(r,), unless=(Fact.ROLLED_OUT_BEFORE,)) for r in REFUSALS),
        ConditionRow(
            "False",
            Reason.FOREIGN_OBJECT,
            when=(Fact.NAME_TAKEN,),
            unless=(Fact.ROLLED_OUT_BEFORE,),
        ),
        ConditionRow(
            "False",
            Reason.WRITE_FAILED,
            when=(Fact.WRITE_FAILS,),
            unless=(Fact.ROLLED_OUT_BEFORE,),
        ),
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED, Fact.ROLLING_OUT)),
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED, Fact.FRONT_ROLLING)),
        ConditionRow("False", Reason.FETCHING_MODEL, when=(Fact.MODEL_MISSING,)),
        ConditionRow("False", Reason.SURGE_TOO_SMALL, when=(Fact.SURGE_TOO_SMALL,)),
        ConditionRow("False", Reason.ROLLOUT_PAUSED, when=(Fact.ROLLOUT_PAUSED,)),
        ConditionRow("False", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("False", Reason.ROLLING_OUT, when=(Fact.FRONT_ROLLING,)),
        ConditionRow("False", Reason.ROLLED_BACK, when=(Fact.REFUSED,)),
        ConditionRow("True", Reason.ROLLED_OUT, when=(Fact.ROLLED_OUT_BEFORE,)),
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED, Fact.SETTINGS_PENDING)),
        ConditionRow("False", Reason.STARTING, when=(Fact.BELOW_MINIMUM,)),
        ConditionRow("False", Reason.GATEWAY_NOT_READY, unless=(Fact.GATEWAY_READY,)),
        ConditionRow("False", Reason.SETTINGS_REFUSED, when=(Fact.SETTINGS_REFUSED,)),
        ConditionRow("False", Reason.SETTINGS_PENDING, when=(Fact.SETTINGS_PENDING,)),
        ConditionRow("False", Reason.SETTINGS_PENDING, when=(Fact.SETTINGS_UNKNOWN,)),
        ConditionRow("True", Reason.ROLLED_OUT),
    ),
    # Is there one complete pair of pods of one revision, or one colocated pod?
    ConditionType.SERVABLE: (
        ConditionRow("True", Reason.AS_SPECIFIED, when=(Fact.SERVABLE,)),
        ConditionRow("False", Reason.PARKED, when=(Fact.ZERO_REPLICAS,)),
        ConditionRow("False", Reason.SCALED_TO_ZERO, when=(Fact.AT_ZERO,)),
        ConditionRow("False", Reason.WAKING, when=(Fact.WAKING,)),
        ConditionRow(
            "False",
            Reason.NO_PREFILL,
            when=(Fact.DISAGGREGATED, Fact.REVISIONS_DIFFER),
            meaning=_APART,
        ),
        ConditionRow("False", Reason.NO_PREFILL, when=(Fact.DISAGGREGATED, Fact.DECODE_SERVES)),
        ConditionRow("False", Reason.NO_DECODE, when=(Fact.DISAGGREGATED, Fact.PREFILL_SERVES)),
        ConditionRow("False", Reason.NO_PODS),
    ),
    # kstatus: is the operator on its way to the spec? Never True while Stalled is True.
    ConditionType.RECONCILING: (
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED,)),
        *(ConditionRow("False", r, when=(Overdue(r),)) for r in BLOCKING),
        ConditionRow("False", Reason.FOREIGN_OBJECT, when=(Fact.NAME_TAKEN,)),
        ConditionRow("False", Reason.WRITE_FAILED, when=(Fact.WRITE_STUCK,)),
        ConditionRow("False", Reason.SETTINGS_REFUSED, when=(Fact.SETTINGS_REFUSED,), unless=_MOOT),
        ConditionRow("False", Reason.SURGE_TOO_SMALL, when=(Fact.SURGE_TOO_SMALL,)),
        ConditionRow("False", Reason.ROLLOUT_PAUSED, when=(Fact.ROLLOUT_PAUSED,)),
        ConditionRow("True", Reason.WRITE_FAILED, when=(Fact.WRITE_FAILS,)),
        ConditionRow("True", Reason.FETCHING_MODEL, when=(Fact.MODEL_MISSING,)),
        ConditionRow("True", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("True", Reason.ROLLING_OUT, when=(Fact.FRONT_ROLLING,)),
        ConditionRow("False", Reason.ROLLED_BACK, when=(Fact.REFUSED,)),
        ConditionRow(
            "True",
            Reason.STARTING,
            when=(Fact.BELOW_MINIMUM,),
            unless=(Fact.ROLLED_OUT_BEFORE,),
        ),
        ConditionRow(
            "True",
            Reason.GATEWAY_NOT_READY,
            unless=(Fact.GATEWAY_READY, Fact.ROLLED_OUT_BEFORE),
        ),
        *(
            ConditionRow("True", reason, when=(fact,), unless=(Fact.ROLLED_OUT_BEFORE,))
            for fact, reason in (
                (Fact.SETTINGS_PENDING, Reason.SETTINGS_PENDING),
                (Fact.SETTINGS_UNKNOWN, Reason.SETTINGS_PENDING),
            )
        ),
        # A fleet that scales, or has lost a pod, is not on its way to another spec.
        ConditionRow("False", Reason.ROLLED_OUT, when=(Fact.PODS_MISSING,)),
        ConditionRow("False", Reason.ROLLED_OUT, when=(Fact.PODS_LEAVING,)),
        ConditionRow("False", Reason.ROLLED_OUT, unless=(Fact.GATEWAY_READY,)),
        ConditionRow("False", Reason.AS_SPECIFIED),
    ),
    # kstatus: must a person act?
    ConditionType.STALLED: (
        *(ConditionRow("True", r, when=(Overdue(r),)) for r in BLOCKING),
        ConditionRow("True", Reason.FOREIGN_OBJECT, when=(Fact.NAME_TAKEN,)),
        ConditionRow("True", Reason.WRITE_FAILED, when=(Fact.WRITE_STUCK,)),
        ConditionRow("True", Reason.SETTINGS_REFUSED, when=(Fact.SETTINGS_REFUSED,), unless=_MOOT),
        ConditionRow("True", Reason.SURGE_TOO_SMALL, when=(Fact.SURGE_TOO_SMALL,)),
        ConditionRow("True", Reason.ROLLED_BACK, when=(Fact.REFUSED,), unless=_ON_THE_WAY),
        ConditionRow("False", Reason.AS_SPECIFIED, meaning="no person needs to act"),
    ),
    # Are pods being added, replaced or removed?
    ConditionType.PROGRESSING: (
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED,)),
        ConditionRow("False", Reason.SURGE_TOO_SMALL, when=(Fact.SURGE_TOO_SMALL,)),
        ConditionRow("False", Reason.ROLLOUT_PAUSED, when=(Fact.ROLLOUT_PAUSED,)),
        ConditionRow("True", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("True", Reason.PODS_LEAVING, when=(Fact.PODS_LEAVING,)),
        ConditionRow("True", Reason.STARTING, when=(Fact.PODS_MISSING,)),
        ConditionRow("False", Reason.AS_SPECIFIED),
    ),
    # Is the model where engine pods mount it?
    ConditionType.MODEL_FETCHED: (
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            when=(Fact.MODEL_IN_PLACE,),
            meaning="the model is used where it is: nothing is fetched",
        ),
        *(
            ConditionRow("False", r, when=(r, Fact.MODEL_MISSING))
            for r in (*FETCH_FAILURES, Reason.WEIGHTS_INVALID, Reason.UNSUPPORTED_ARCHITECTURE)
        ),
        ConditionRow("False", Reason.FETCHING_MODEL, when=(Fact.MODEL_MISSING,)),
        ConditionRow("True", Reason.AS_SPECIFIED, meaning="the model is in its claim"),
    ),
    # Did requests meet their targets?
    ConditionType.SLO_MET: (
        *_NOT_MEASURED,
        ConditionRow(
            "Unknown",
            Reason.NO_TRAFFIC,
            unless=(Fact.ATTAINMENT_KNOWN,),
        ),
        ConditionRow("True", Reason.TARGETS_MET, when=(Fact.GOAL_MET,)),
        ConditionRow("False", Reason.TARGETS_MISSED),
    ),
    # Will the error budget last?
    ConditionType.ERROR_BUDGET_BURNING: (
        ConditionRow("Unknown", Reason.NO_SLO, unless=(Fact.SLO_SET,)),
        ConditionRow("Unknown", Reason.EXTERNAL_OWNER, when=(Fact.POLICY_EXTERNAL,)),
        ConditionRow("Unknown", Reason.POLICY_NONE, when=(Fact.POLICY_NONE,)),
        # Windows outlast an outage of the metrics, and a fleet at zero.
        ConditionRow("True", Reason.BURNING_FAST, when=(Fact.BURNS_FAST,)),
        ConditionRow("True", Reason.BURNING_SLOWLY, when=(Fact.BURNS_SLOWLY,)),
        ConditionRow(
            "Unknown",
            Reason.NO_TRAFFIC,
            unless=(Fact.ERRORS_KNOWN,),
        ),
        ConditionRow(
            "False", Reason.AS_SPECIFIED, meaning="the error budget lasts at the rate of now"
        ),
    ),
    # Could they, on this hardware and within the limits of the spec?
    ConditionType.SLO_FEASIBLE: (
        *_NOT_MEASURED,
        ConditionRow(
            "Unknown",
            Reason.NO_TRAFFIC,
            unless=(Fact.SIZED,),
        ),
        # The same fact as in SLOMet, so that both conditions change in one write.
        ConditionRow(
            "Unknown",
            Reason.NO_TRAFFIC,
            unless=(Fact.ATTAINMENT_KNOWN,),
        ),
        ConditionRow(
            "False",
            Reason.FLOOR_ABOVE_TARGET,
            when=(Fact.TTFT_UNREACHABLE,),
            meaning="a prompt alone in the fleet takes longer than spec.slo.ttft.target, "
            + _NO_HELP,
        ),
        ConditionRow(
            "False",
            Reason.FLOOR_ABOVE_TARGET,
            when=(Fact.TPOT_UNREACHABLE,),
            meaning="a request alone in the fleet takes longer per token than "
            f"spec.slo.tpot.target, {_NO_HELP}",
        ),
        ConditionRow("False", Reason.GPU_BUDGET, when=(Fact.GPU_BUDGET_BOUND,)),
        ConditionRow("False", Reason.MAX_REPLICAS_BOUND, when=(Fact.MAX_REPLICAS_BOUND,)),
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            meaning="one request alone meets the targets, and the allowed replicas are enough",
        ),
    ),
    # Does the operator choose the replicas from the load?
    ConditionType.SCALING_ACTIVE: (
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED,)),
        ConditionRow("False", Reason.EXTERNAL_OWNER, when=(Fact.POLICY_EXTERNAL,)),
        ConditionRow("False", Reason.POLICY_NONE, when=(Fact.POLICY_NONE,)),
        ConditionRow("False", Reason.NO_SLO, unless=(Fact.LAW_SCALED,)),
        ConditionRow(
            "False",
            Reason.EXTERNAL_OWNER,
            when=(Fact.ADVISORY,),
            meaning="spec.autoscaling.advisory is true: decisions are shown in "
            "status.autoscaling.advice, and others scale the ServingRoles",
        ),
        ConditionRow("True", Reason.SCALED_TO_ZERO, when=(Fact.AT_ZERO,)),
        ConditionRow("False", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("False", Reason.METRICS_UNAVAILABLE, when=(Fact.METRICS_UNAVAILABLE,)),
        ConditionRow("True", Reason.GATEWAYS_ALONE, when=(Fact.GATEWAYS_ALONE,)),
        ConditionRow("True", Reason.SIGNALS_UNKNOWN, when=(Fact.CAPACITY_RELEARNT,)),
        ConditionRow("True", Reason.SIGNALS_UNKNOWN, when=(Fact.SIGNALS_UNKNOWN,)),
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            meaning="replicas follow the measured load and spec.slo",
        ),
    ),
    # Does the number of gateways follow their load?
    ConditionType.GATEWAY_SCALING_ACTIVE: (
        ConditionRow(
            "False",
            Reason.POLICY_NONE,
            unless=(Fact.GATEWAYS_SCALED,),
            meaning="spec.routing.autoscaling is not set: gateways are spec.routing.replicas",
        ),
        ConditionRow(
            "False",
            Reason.EXTERNAL_OWNER,
            when=(Fact.GATEWAYS_BY_OTHERS,),
            meaning="spec.routing.autoscaling.policy is External: others scale the gateways",
        ),
        ConditionRow("False", Reason.AUTOSCALER_BLIND, when=(Fact.AUTOSCALER_BLIND,)),
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            when=(Fact.AUTOSCALER_ACTIVE,),
            meaning="the number of gateways follows the CPU that they use",
        ),
        ConditionRow(
            "Unknown",
            Reason.UNKNOWN,
            meaning="the gateways' HorizontalPodAutoscaler has not said yet whether it scales",
        ),
    ),
    # Does Prometheus have what the scaling law needs?
    ConditionType.METRICS_AVAILABLE: (
        ConditionRow("Unknown", Reason.EXTERNAL_OWNER, when=(Fact.POLICY_EXTERNAL,)),
        ConditionRow("Unknown", Reason.POLICY_NONE, when=(Fact.POLICY_NONE,)),
        ConditionRow("Unknown", Reason.NO_SLO, unless=(Fact.LAW_SCALED,)),
        ConditionRow("Unknown", Reason.SCALED_TO_ZERO, when=(Fact.AT_ZERO,)),
        ConditionRow("Unknown", Reason.UNKNOWN, unless=(Fact.DECIDED,)),
        *(ConditionRow("False", r, when=(Fact.METRICS_UNAVAILABLE, r)) for r in METRICS_PROBLEMS),
        ConditionRow("False", Reason.METRICS_UNAVAILABLE, when=(Fact.METRICS_UNAVAILABLE,)),
        ConditionRow("False", Reason.GATEWAYS_ALONE, when=(Fact.GATEWAYS_ALONE,)),
        ConditionRow("False", Reason.GATEWAY_SILENT, when=(Fact.GATEWAY_SILENT,)),
        ConditionRow("True", Reason.IDLE, when=(Fact.NO_REQUESTS,)),
        ConditionRow("True", Reason.MEASURED),
    ),
    # Are pods or GPUs wanted that the cluster or the budget does not provide?
    ConditionType.CAPACITY_LIMITED: (
        *(ConditionRow("True", r, when=(r,)) for r in CAPACITY),
        ConditionRow("True", Reason.GPU_TYPE_FULL, when=(Fact.GPU_TYPE_LEFT,)),
        ConditionRow("True", Reason.GPU_BUDGET, when=(Fact.GPU_BUDGET_BOUND,)),
        ConditionRow("Unknown", Reason.UNREADABLE_NUMBER, when=(Reason.UNREADABLE_NUMBER,)),
        ConditionRow("False", Reason.AS_SPECIFIED, meaning="no pod lacks a node, quota or GPUs"),
    ),
    ConditionType.DRAINING: (
        ConditionRow("True", Reason.PODS_LEAVING, when=(Fact.PODS_LEAVING,)),
        ConditionRow("False", Reason.AS_SPECIFIED, meaning="no pod is leaving"),
    ),
    ConditionType.NAME_CONFLICT: (
        ConditionRow("True", Reason.FOREIGN_OBJECT, when=(Fact.NAME_TAKEN,)),
        ConditionRow(
            "False",
            Reason.AS_SPECIFIED,
            meaning="no object of another owner has a name that this fleet needs",
        ),
    ),
    ConditionType.FIELD_CONFLICT: (
        ConditionRow("True", Reason.PUT_BACK_AGAIN, when=(Fact.FIELD_CONTESTED,)),
        ConditionRow(
            "False",
            Reason.AS_SPECIFIED,
            meaning="no other writer keeps changing what Argosy writes",
        ),
    ),
    # May only those call the engine pods who prove that they are of the fleet?
    ConditionType.PEERS_VERIFIED: (
        ConditionRow(
            "False",
            Reason.NOT_VERIFIED,
            when=(Fact.VERIFICATION_OFF,),
            meaning="spec.security.verifyPeers is false: engine pods serve everyone who reaches "
            "them",
        ),
        ConditionRow(
            "False",
            Reason.NOT_VERIFIED,
            when=(Fact.OTHER_ENGINE,),
            meaning="engines of spec.engine.type vllm and sglang ask their callers for no token: "
            "they serve everyone who reaches them",
        ),
        ConditionRow("False", Reason.KEYS_UNKNOWN, when=(Fact.KEYS_UNKNOWN,)),
        ConditionRow(
            "False",
            Reason.ROLLING_OUT,
            when=(Fact.PROOF_NOT_REQUIRED,),
            meaning="pods that show no token are replaced; until then calls without one are served",
        ),
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            meaning="engine pods serve only callers that prove who they are",
        ),
    ),
    # Is what passes between the pods encrypted?
    ConditionType.TRANSPORT_SECURED: (
        ConditionRow("False", Reason.NO_CERTIFICATE, when=(Fact.NO_TLS,)),
        ConditionRow("False", Reason.CERTIFICATE_NOT_USED, when=(Fact.CERTIFICATE_NOT_USED,)),
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            when=(Fact.ENGINE_STARTED,),
            meaning="engine pods take only calls with TLS and a certificate",
        ),
        # Of a fleet at 0 replicas and of one that starts from there, nothing has changed.
        ConditionRow(
            "True",
            Reason.AS_SPECIFIED,
            when=(Fact.WAS_ENCRYPTED,),
            meaning="engine pods take only calls with TLS and a certificate",
        ),
        ConditionRow("False", Reason.CERTIFICATE_NOT_USED),
    ),
    # Do prefill pods hand their KV caches over to decode pods?
    ConditionType.KV_TRANSFER_HEALTHY: (
        ConditionRow("False", Reason.HANDOVERS_FAIL, when=(Fact.HANDOVERS_FAIL,)),
        ConditionRow(
            "True", Reason.AS_SPECIFIED, meaning="no gateway knows a pair of pods that fails"
        ),
    ),
}


ROLE_TABLE: Mapping[ConditionType, tuple[ConditionRow, ...]] = {
    # Do as many pods serve as the role is to have?
    ConditionType.READY: (
        ConditionRow("False", Reason.STARTING, when=(Fact.ROLE_LACKS_PODS,)),
        ConditionRow("True", Reason.AS_SPECIFIED),
    ),
    # Is the role to have another number of pods than its ServingRole asks for?
    ConditionType.SCALING_LIMITED: (
        ConditionRow("True", Reason.OUT_OF_BOUNDS, when=(Fact.OUT_OF_BOUNDS,)),
        ConditionRow(
            "False",
            Reason.AS_SPECIFIED,
            meaning="the spec's bounds allow what the ServingRole asks for",
        ),
    ),
}
"""The conditions of a ServingRole."""


def conditions_of(
    facts: Facts,
    messages: Mapping[Reason, str],
    table: Mapping[ConditionType, tuple[ConditionRow, ...]] = TABLE,
) -> list[DesiredCondition]:
    """One condition per type. A reason without a message of this round has its general one."""
    return [
        DesiredCondition(type_, row.status, row.reason, _message(row, messages))
        for type_, rows in table.items()
        for row in [next(row for row in rows if row.applies(facts))]
    ]


def _message(row: ConditionRow, messages: Mapping[Reason, str]) -> str:
    text = row.meaning or messages.get(row.reason) or row.reason.meaning
    return with_runbook(text, row.reason)


_ALL_SERVE = Reason.ROLLED_OUT.meaning
_STEPS = 20
_GIB, _MIB = 1 << 30, 1 << 20

FOREIGN = (
    "already exists with another owner and is left unchanged. Delete it, or create the fleet under "
    "another name"
)
"""What becomes of objects that have names of the fleet's children."""

FIXED: dict[Reason, str] = {
    Reason.PAUSED: "spec.paused is true, so only status is written. Set it to false to go on",
    Reason.EXTERNAL_OWNER: "spec.autoscaling.policy is External: the replicas are those of the "
    "ServingRoles, which another autoscaler sets",
    Reason.POLICY_NONE: "spec.autoscaling.policy is None: replicas stay at their minimum",
    Reason.MAX_REPLICAS_BOUND: "more replicas are needed than spec.roles.<role>.replicas.max, "
    "or the max of an open schedule, allows. Raise it, or relax spec.slo",
}
"""Messages that do not depend on the fleet."""


def messages_of(findings: Findings) -> dict[Reason, str]:
    """A message for each reason that this round can be specific about."""
    messages = {problem.reason: problem.message for problem in findings.problems}
    messages |= FIXED | _of_fleet(findings) | messages_of_decision(findings.decision)
    messages |= _of_settings(findings)
    problem = findings.metrics_problem
    if problem is not None and lacks_metrics(findings.decision):
        messages[problem] = messages[Reason.METRICS_UNAVAILABLE]
    return {reason: text for reason, text in messages.items() if text}


def _of_fleet(findings: Findings) -> dict[Reason, str]:
    snapshot, draft = findings.snapshot, findings.draft
    spec, contested = snapshot.fleet.spec, describe_conflicts(draft.memory.field_conflicts)
    pods = names.selector_text(snapshot.fleet.name, names.GATEWAY_ROLE)
    no_slo = "spec.slo is not set"
    if spec.autoscaling.policy != "External":
        no_slo += ": replicas stay at their minimum. Set it, and they follow the load"
    messages = {
        Reason.FOREIGN_OBJECT: f"{', '.join(findings.conflicts)} {FOREIGN}",
        Reason.PUT_BACK_AGAIN: f"{'; '.join(contested)}. This goes on, so Argosy puts its own "
        "values back less and less often. Stop the other writer, or change the ServingDeployment",
        Reason.PODS_LEAVING: "pods finish the requests that they have and are then deleted: "
        + ", ".join(sorted(pod.name for pod in draft.leaving)),
        Reason.NO_SLO: no_slo,
        Reason.ROLLING_OUT: _rolling_out(findings),
        Reason.GATEWAY_NOT_READY: f"no gateway pod is ready. See kubectl get pods -l {pods}",
    }
    if findings.autoscaler:
        messages[Reason.AUTOSCALER_BLIND] = _blind(findings)
    messages |= _of_model(findings)
    if snapshot.refusal is not None and snapshot.refusal.runs is not None:
        messages[Reason.ROLLED_BACK] = _rolled_back(snapshot.refusal, snapshot.fleet.name)
    if draft.split is not None and draft.split.state == RolloutState.SURGE_TOO_SMALL:
        messages[Reason.SURGE_TOO_SMALL] = draft.split.message
    if left := _types_left(findings):
        messages[Reason.GPU_TYPE_FULL] = left
    if findings.failing_pairs:
        messages[Reason.HANDOVERS_FAIL] = _handovers_fail(findings.failing_pairs)
    lacking = {**findings.below, **findings.missing}
    if missing := ", ".join(f"{n} {role}" for role, n in lacking.items() if n):
        waiting = f"waiting for pods to become ready: {missing}"
        messages |= dict.fromkeys((Reason.STARTING, Reason.PODS_NOT_READY), waiting)
    attainment = number((findings.goodput or {}).get("attainment"))
    if attainment is not None and spec.slo is not None:
        share = (
            f"{attainment:.1%} of requests met their targets; the goal, spec.slo.attainment, is "
            f"{spec.slo.attainment}"
        )
        messages |= dict.fromkeys((Reason.TARGETS_MET, Reason.TARGETS_MISSED), share)
    return messages


def _rolled_back(refusal: Refusal, fleet: str) -> str:
    runs = "" if refusal.runs is None else refusal.runs.revision
    why = refusal.mark.message.strip().rstrip(".") or "status.refused names it"
    return (
        f"revision {refusal.asked} of the spec is not run: {why}. Revision {runs} runs in its "
        f"place. Change the spec, or try it again with kubectl argosy rollout promote {fleet}"
    )


def _of_settings(findings: Findings) -> dict[Reason, str]:
    """What is said of gateways that may not use the settings of the spec."""
    snapshot, found = findings.snapshot, findings.settings
    settings = f"the settings in ConfigMap {names.settings(snapshot.fleet.name)}"
    messages = dict[Reason, str]()
    if found.unknown:
        messages[Reason.SETTINGS_PENDING] = (
            f"{_part(found.unknown, found.ready, 'does', 'do')} not say whether {settings} are in "
            f"use: port {names.GATEWAY_ADMIN_PORT} does not answer the operator. "
            f"{UNHEARD_S:.0f} s after the settings were written this is not waited for any more"
        )
    if found.pending:
        messages[Reason.SETTINGS_PENDING] = (
            f"{_part(found.pending, found.ready, 'uses', 'use')} older settings than those of the "
            "spec. Gateways read them every five seconds"
        )
    if found.refusing:
        refusing = [each.pod for each in found.refusing]
        messages[Reason.SETTINGS_REFUSED] = (
            f"{_part(refusing, found.ready, 'refuses', 'refuse')} {settings} and "
            f"{'goes' if len(refusing) == 1 else 'go'} on with older ones: "
            f"{found.refusing[0].why.strip().rstrip('.')}"
        )
    before = snapshot.fleet.status.conditions
    if is_rolled_out(before, snapshot.fleet.metadata.generation):
        # Gateways are not asked any more, and what was said of them stays.
        kept = next(c.message for c in before if c.type == ConditionType.ROLLED_OUT)
        if kept.startswith(_ALL_SERVE):
            messages[Reason.ROLLED_OUT] = kept
    elif found.silent:
        messages[Reason.ROLLED_OUT] = (
            f"{_ALL_SERVE}. {_part(found.silent, found.ready, 'does', 'do')} not answer the "
            f"operator on port {names.GATEWAY_ADMIN_PORT}, so whether {settings} are in use there "
            "is not known"
        )
    return messages


def _part(pods: Sequence[str], of: int, one: str, more: str) -> str:
    """As `2 of 3 gateways (a, b) use`, with a verb for one and for more."""
    named = ", ".join(pods[:MOST_NAMED]) + (", …" if len(pods) > MOST_NAMED else "")
    what = "gateway" if of == 1 else "gateways"
    return f"{len(pods)} of {of} {what} ({named}) {one if len(pods) == 1 else more}"


def _blind(findings: Findings) -> str:
    name = names.gateway(findings.snapshot.fleet.name)
    return (
        f"HorizontalPodAutoscaler {name} cannot scale: {findings.autoscaler}. Gateways stay as "
        "many as they are, and at least spec.routing.autoscaling.min. If this lasts, install a "
        "server of CPU metrics, such as metrics-server"
    )


def _of_model(findings: Findings) -> dict[Reason, str]:
    snapshot, draft = findings.snapshot, findings.draft
    model, job = snapshot.fleet.spec.model.uri, names.fetch_job(snapshot.fleet.name)
    if draft.model is not None or snapshot.fleet.fetched_model is not None:
        return {}
    live = live_job(snapshot)
    pods = () if live is None else pods_of(snapshot, live)
    state = f"it has no pod yet: if this lasts, kubectl describe job {job} says why"
    far = ""
    for pod in pods:
        since = rfc3339(pod.waits_since)
        if pod.phase == "Pending":
            state = f"pod {pod.name} waits to start since {since}. kubectl describe pod {pod.name} "
            state += "says for what"
            continue
        state = f"pod {pod.name} runs since {since}"
        state += f" and began again {pod.restarts} times" if pod.restarts else ""
        state += f". kubectl logs {pod.name} shows how far it is"
        if (progress := snapshot.fetch_progress.get(pod.name)) is not None:
            far = f"{_in_steps(progress)} are there; "
    what = f"Job {job} fetches {model} into claim {snapshot.fleet.model_claim}; {far}engine pods "
    return {Reason.FETCHING_MODEL: f"{what}start when it is there; {state}"}


def _in_steps(progress: FetchProgress) -> str:
    """As `3.0 of 15.2 GiB`: in twentieths, so that one fetch writes status twenty times at most."""
    here = progress.bytes * _STEPS // progress.of * progress.of / _STEPS
    unit, divisor = ("GiB", _GIB) if progress.of >= _GIB else ("MiB", _MIB)
    return f"{here / divisor:.1f} of {progress.of / divisor:.1f} {unit}"


def _rolling_out(findings: Findings) -> str:
    split, refusal = findings.draft.split, findings.snapshot.refusal
    if split is None:
        return "gateway pods are replaced; the older ones end once the new ones serve"
    back = ""
    if refusal is not None and refusal.runs is not None:
        back = f". Revision {refusal.asked} is refused: {refusal.mark.message}"
    return (
        f"pods of revision {findings.snapshot.revision} take the place of older ones "
        f"({findings.snapshot.fleet.spec.rollout.strategy}); waits for {split.message}{back}"
    )


def _types_left(findings: Findings) -> str:
    """Which roles run on which type because others had no room; "" for none."""
    snapshot = findings.snapshot
    left = [
        f"{role} runs on {settings.gpu_types[0]}, since pods found no node with "
        f"{' and '.join(shut)} ({rfc3339(max(shut.values()))})"
        for role, settings in snapshot.fleet.spec.active_roles()
        if settings.gpu_types and (shut := without_room(snapshot, role))
    ]
    return f"{'; '.join(left)}. It may go back after a day, if that is cheaper" if left else ""


_MOST_PAIRS = 4


def _handovers_fail(pairs: tuple[tuple[str, str, str], ...]) -> str:
    named = [f"{p} to {d} ({reason})" for p, d, reason in pairs[:_MOST_PAIRS]]
    if more := len(pairs) - len(named):
        named.append(f"{more} more")
    return (
        f"KV caches do not get from {', '.join(named)}. The gateways choose other pairs, and "
        "Argosy replaces a pod that is the cause. If this lasts, read the logs of these pods"
    )


CLOCK_STEPS = (
    (86_400.0, "1 day"),
    (3600.0, "1 hour"),
    (600.0, "10 minutes"),
    (120.0, "2 minutes"),
    (30.0, "30 seconds"),
)
"""Differences between two clocks that a message names, s. Few, so that a lasting difference gives
the same message each round. The last is well above the timeout of a query."""

_OR_WEIGHT = "or the share of this fleet in it by spec.autoscaling.gpuBudget.weight"

BUDGETS: dict[Whose, str] = {
    "object": "spec.autoscaling.gpuBudget.max allows. Raise it",
    "namespace": "the GPU budget of the namespace leaves to this fleet. Raise "
    f"operator.namespaceGpuBudgets in the values of the operator's chart, {_OR_WEIGHT}",
    "operator": "the GPU budget of all fleets leaves to this one. Raise operator.gpuBudget in the "
    f"values of the operator's chart, {_OR_WEIGHT}",
}
"""Whose budget binds → what it does, and what to raise."""


def messages_of_decision(decision: Decision | None) -> dict[Reason, str]:
    """Messages that the last decision makes more specific."""
    if decision is None:
        return {}
    messages: dict[Reason, str] = {}
    if lacks_metrics(decision):
        messages[Reason.METRICS_UNAVAILABLE] = decision.message
    if decision.gateways_alone:
        messages[Reason.GATEWAYS_ALONE] = alone_sentence(decision.gateways_alone)
    if decision.unknown:
        messages[Reason.SIGNALS_UNKNOWN] = (
            f"Prometheus has no samples of {', '.join(decision.unknown)}, so no replica of these "
            "roles is removed; replicas are still added. Check that Prometheus scrapes the engine "
            "pods"
        )
    if decision.relearning:
        messages[Reason.SIGNALS_UNKNOWN] = relearning_sentence(decision.relearning)
    if decision.lack is not None:
        why = (
            f"more replicas are needed than {BUDGETS[decision.lack.whose]}, or relax spec.slo. "
            "kubectl argosy explain has the GPUs that are missing"
        )
        messages[Reason.GPU_BUDGET] = why
    if decision.silent_gateways:
        silent = ", ".join(decision.silent_gateways)
        messages[Reason.GATEWAY_SILENT] = (
            f"Prometheus has no fresh samples of ready gateway pods: {silent}. No replica is "
            f"removed until it has. Check that it reaches port {names.GATEWAY_ADMIN_PORT} of each "
            "pod, and that relabelling sets the label pod"
        )
    beside = (_clock_message(decision.clock_skew_s), _twice_message(decision.scraped_twice))
    if said := "; ".join(filter(None, beside)):
        messages[Reason.MEASURED] = messages[Reason.IDLE] = said
        if Reason.METRICS_UNAVAILABLE in messages:
            messages[Reason.METRICS_UNAVAILABLE] += f"; {said}"
    return messages


def _twice_message(jobs: tuple[str, ...]) -> str:
    if not jobs:
        return ""
    return (
        f"several jobs of Prometheus scrape the same pods: {', '.join(jobs)}. The samples of one "
        "are used. Leave the fleet's pods out of the others"
    )


def _clock_message(skew_s: float) -> str:
    """Says that the operator's clock and Prometheus' differ, in steps of `CLOCK_STEPS`."""
    least = next((words for limit_s, words in CLOCK_STEPS if abs(skew_s) > limit_s), None)
    if least is None:
        return ""
    way = "ahead of" if skew_s > 0 else "behind"
    return (
        f"the operator's clock is more than {least} {way} Prometheus' clock. Decisions use "
        "Prometheus' clock; synchronize both with NTP"
    )
