"""The truth table of conditions: which facts give which condition, reason and status.

For each condition type the first row whose facts hold applies; the last row of a type has no facts.
`facts.py` finds the facts of a round, `sentences.py` writes the messages.
`docs/reference/conditions.md` is printed from this table; tests/core/status brings about every row,
in worlds written by hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique

from argosy_operator.api.conditions import (
    ConditionStatus,
    ConditionType,
    DesiredCondition,
    Reason,
    with_runbook,
)
from argosy_operator.core.status.problems import CAPACITY, FETCH_FAILURES, LOAD_FAILURES
from argosy_operator.core.steps.failures import STUCK_S


@unique
class Fact(StrEnum):
    """What can be true of a fleet. The value is the fact in words, as the documentation shows it.

    A `Reason` is used as a fact too: it holds when a problem with this reason was found.
    """

    # The spec
    PAUSED = "spec.paused is true"
    ZERO_REPLICAS = "every role has 0 replicas, as the spec asks"
    AT_ZERO = "nobody uses the fleet, and by spec.autoscaling.scaleToZero it has no replicas"
    WAKING = "the fleet was at zero before, and has not served since"
    DISAGGREGATED = "spec.mode is disaggregated"
    SLO_SET = "spec.slo is set"
    POLICY_EXTERNAL = "spec.autoscaling.policy is External"
    ADVISORY = "spec.autoscaling.advisory is true"
    POLICY_NONE = "spec.autoscaling.policy is None"
    LAW_SCALED = "spec.autoscaling.policy is Goodput and spec.slo is set"
    MODEL_IN_PLACE = "spec.model.uri needs no fetching, and no Job of a fetching is left"
    MODEL_MISSING = "spec.model.uri is to be fetched, and the model is not there yet"
    # Pods
    # One colocated pod, or a prefill and a decode pod of one revision.
    SERVABLE = "a complete set of engine pods serves"
    WAS_SERVING = "the fleet answered requests before this round"
    PREFILL_SERVES = "a prefill pod serves"
    DECODE_SERVES = "a decode pod serves"
    REVISIONS_DIFFER = "prefill and decode pods serve, but none of them are of one revision"
    DECODE_ALONE = "a disaggregated fleet has lost its prefill pods, and a decode pod serves"
    GATEWAY_READY = "a gateway pod is ready"
    PODS_MISSING = "fewer pods serve than are wanted"
    BELOW_MINIMUM = "fewer engine or gateway pods serve than the least that the spec asks for"
    ROLLING_OUT = "pods of an older revision or mode still exist"
    FRONT_ROLLING = "gateway pods are not as the spec asks, or older ones still exist"
    ROLLED_OUT_BEFORE = "RolledOut was True of this metadata.generation before"
    PODS_LEAVING = "pods are draining"
    GPU_TYPE_LEFT = "within a day a role has left one of its gpuTypes, which had no room"
    # A role by itself
    ROLE_LACKS_PODS = "fewer pods of the role serve than it is to have"
    ASKS_FOR_MORE = "others scale the ServingRole, and it asks for more than replicas.max"
    ASKS_FOR_LESS = "others scale the ServingRole, and it asks for less than replicas.min"
    # Objects of the API server
    NAME_TAKEN = "an object with another owner has a name that the fleet needs"
    SERVICE_NAME_TAKEN = "a Service with another owner has the fleet's name"
    WRITE_FAILS = "an object cannot be written"
    DEPLOYMENT_WRITE_FAILS = "a Deployment cannot be written"
    WRITE_STUCK = f"an object could not be written for {STUCK_S / 60:.0f} minutes"
    FIELD_CONTESTED = "another writer keeps changing what the operator writes"
    # Who may call the engines
    VERIFICATION_OFF = "spec.security.verifyPeers is false"
    OTHER_ENGINE = "spec.engine.type is not argosy"
    KEYS_UNKNOWN = "the API server has not said who signs its tokens"
    PROOF_NOT_REQUIRED = "some gateway or engine pod shows or verifies no token yet"
    NO_TLS = "spec.security.tls is not set"
    CERTIFICATE_NOT_USED = "a pod runs without the certificate"
    ENGINE_STARTED = "an engine pod has started"
    WAS_ENCRYPTED = "the status before this round said that calls are encrypted"
    # Gateways
    HANDOVERS_FAIL = "a gateway names pods whose handovers failed twice in a row"
    GATEWAYS_SCALED = "spec.routing.autoscaling is set"
    GATEWAYS_BY_OTHERS = "spec.routing.autoscaling.policy is External"
    AUTOSCALER_ACTIVE = "the gateways' HorizontalPodAutoscaler says that it scales"
    AUTOSCALER_BLIND = "the gateways' HorizontalPodAutoscaler says that it cannot scale"
    SETTINGS_PENDING = "a ready gateway does not use the settings of the spec"
    SETTINGS_REFUSED = "a ready gateway cannot use the settings of the spec"
    SETTINGS_UNKNOWN = "a ready gateway does not answer, and the settings are new"
    # The scaling law's last decision, and what it measured
    DECIDED = "the scaling law has decided since the operator started"
    METRICS_UNAVAILABLE = "the last decision had no usable metrics"
    GATEWAYS_ALONE = "Prometheus has no usable metrics, and the gateways say what their load is"
    GATEWAY_SILENT = "Prometheus has no fresh samples of some ready gateway pod"
    NO_REQUESTS = "no request arrives"
    ATTAINMENT_KNOWN = "the share of requests within spec.slo is measured"
    GOAL_MET = "that share is at least spec.slo.attainment"
    ERRORS_KNOWN = "requests were judged, and their burn rates are known"
    BURNS_FAST = "status.errorBudget asks for a page, or did and both windows still burn at half"
    BURNS_SLOWLY = "status.errorBudget asks for a ticket, or did and both still burn at half"
    SIZED = "the last decision sized a role from its load"
    GPU_BUDGET_BOUND = "a GPU budget limited the last decision"
    MAX_REPLICAS_BOUND = (
        "a role's replicas.max, or an open schedule's max, limited the last decision"
    )
    TTFT_UNREACHABLE = "a request alone in the fleet misses spec.slo.ttft.target"
    TPOT_UNREACHABLE = "a request alone in the fleet misses spec.slo.tpot.target"
    CAPACITY_RELEARNT = "the capacity of a replica is being measured again"
    SIGNALS_UNKNOWN = "a metric that a role's size depends on is unknown"


@dataclass(frozen=True, slots=True)
class Overdue:
    """A problem that waiting does not solve, or that has lasted for spec.progressDeadline."""

    reason: Reason


Facts = frozenset[Fact | Reason | Overdue]


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

METRICS_PROBLEMS = (
    Reason.NO_PROMETHEUS,
    Reason.PROMETHEUS_NOT_ALLOWED,
    Reason.PROMETHEUS_UNREACHABLE,
    Reason.NO_TARGETS,
    Reason.GATEWAY_SILENT,
    Reason.STALE,
    Reason.NOT_A_NUMBER,
)
"""Why metrics are unavailable, where the cause has a reason of its own."""

_MOOT = (Fact.ROLLED_OUT_BEFORE, Fact.ROLLING_OUT, Fact.FRONT_ROLLING)
"""While one of these holds, refused settings do not make the fleet Stalled."""

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
            Reason.REVISIONS_DIFFER,
            when=(Fact.DECODE_ALONE, Fact.GATEWAY_READY, Fact.REVISIONS_DIFFER),
            unless=(Fact.SERVICE_NAME_TAKEN,),
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
        ConditionRow("False", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("False", Reason.ROLLING_OUT, when=(Fact.FRONT_ROLLING,)),
        ConditionRow("True", Reason.ROLLED_OUT, when=(Fact.ROLLED_OUT_BEFORE,)),
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED, Fact.SETTINGS_PENDING)),
        ConditionRow("False", Reason.STARTING, when=(Fact.BELOW_MINIMUM,)),
        ConditionRow("False", Reason.GATEWAY_NOT_READY, unless=(Fact.GATEWAY_READY,)),
        ConditionRow("False", Reason.SETTINGS_REFUSED, when=(Fact.SETTINGS_REFUSED,)),
        ConditionRow("False", Reason.SETTINGS_PENDING, when=(Fact.SETTINGS_PENDING,)),
        ConditionRow("False", Reason.SETTINGS_UNKNOWN, when=(Fact.SETTINGS_UNKNOWN,)),
        ConditionRow("True", Reason.ROLLED_OUT),
    ),
    # Is there one complete pair of pods of one revision, or one colocated pod?
    ConditionType.SERVABLE: (
        ConditionRow("True", Reason.AS_SPECIFIED, when=(Fact.SERVABLE,)),
        ConditionRow("False", Reason.PARKED, when=(Fact.ZERO_REPLICAS,)),
        ConditionRow("False", Reason.SCALED_TO_ZERO, when=(Fact.AT_ZERO,)),
        ConditionRow("False", Reason.WAKING, when=(Fact.WAKING,)),
        ConditionRow(
            "False", Reason.REVISIONS_DIFFER, when=(Fact.DISAGGREGATED, Fact.REVISIONS_DIFFER)
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
        ConditionRow("True", Reason.WRITE_FAILED, when=(Fact.WRITE_FAILS,)),
        ConditionRow("True", Reason.FETCHING_MODEL, when=(Fact.MODEL_MISSING,)),
        ConditionRow("True", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("True", Reason.ROLLING_OUT, when=(Fact.FRONT_ROLLING,)),
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
                (Fact.SETTINGS_UNKNOWN, Reason.SETTINGS_UNKNOWN),
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
        ConditionRow("False", Reason.AS_SPECIFIED, meaning="no person needs to act"),
    ),
    # Are pods being added, replaced or removed?
    ConditionType.PROGRESSING: (
        ConditionRow("False", Reason.PAUSED, when=(Fact.PAUSED,)),
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
        ConditionRow("True", Reason.FETCHED),
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
        ConditionRow("False", Reason.TTFT_FLOOR_ABOVE_TARGET, when=(Fact.TTFT_UNREACHABLE,)),
        ConditionRow("False", Reason.TPOT_FLOOR_ABOVE_TARGET, when=(Fact.TPOT_UNREACHABLE,)),
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
        ConditionRow("False", Reason.ADVISORY, when=(Fact.ADVISORY,)),
        ConditionRow("True", Reason.SCALED_TO_ZERO, when=(Fact.AT_ZERO,)),
        ConditionRow("False", Reason.ROLLING_OUT, when=(Fact.ROLLING_OUT,)),
        ConditionRow("False", Reason.METRICS_UNAVAILABLE, when=(Fact.METRICS_UNAVAILABLE,)),
        ConditionRow("True", Reason.GATEWAYS_ALONE, when=(Fact.GATEWAYS_ALONE,)),
        ConditionRow("True", Reason.CAPACITY_RELEARNT, when=(Fact.CAPACITY_RELEARNT,)),
        ConditionRow("True", Reason.SIGNALS_UNKNOWN, when=(Fact.SIGNALS_UNKNOWN,)),
        ConditionRow("True", Reason.FOLLOWING_GOODPUT),
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
        ConditionRow("False", Reason.VERIFICATION_OFF, when=(Fact.VERIFICATION_OFF,)),
        ConditionRow("False", Reason.ENGINE_ASKS_NO_TOKEN, when=(Fact.OTHER_ENGINE,)),
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
        ConditionRow("True", Reason.ABOVE_MAXIMUM, when=(Fact.ASKS_FOR_MORE,)),
        ConditionRow("True", Reason.BELOW_MINIMUM, when=(Fact.ASKS_FOR_LESS,)),
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
