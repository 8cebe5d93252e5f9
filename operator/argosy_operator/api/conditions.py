"""The types of conditions, the reasons why they are what they are, and how their list is updated.

`core/status` decides which `DesiredCondition` each type gets; `upsert` turns them into the list of
conditions in status.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Any, Literal

# What a person runs to see more of a condition. Words in capitals are placeholders.
_SPEC = "kubectl get sd NAME -n NAMESPACE -o yaml"
_PODS = "kubectl get pods -n NAMESPACE -l serving.argosy.dev/fleet=NAME -o wide"
_POD = "kubectl describe pod POD -n NAMESPACE"
_POD_STATES = (_PODS, _POD)
_LOGS = "kubectl logs POD -n NAMESPACE --previous"
_EVENTS = "kubectl get events -n NAMESPACE --field-selector involvedObject.name=NAME"
_ROLES = "kubectl get sr -n NAMESPACE"
_AUTOSCALERS = "kubectl describe hpa -n NAMESPACE"
_GATEWAY_SETTINGS = (
    "kubectl get configmap NAME-gateway -n NAMESPACE -o yaml",
    "kubectl logs -n NAMESPACE -l \\\n"
    "  serving.argosy.dev/fleet=NAME,serving.argosy.dev/role=gateway --prefix --tail=50",
)
_FETCHING = "kubectl logs -n NAMESPACE job/NAME-fetch"
_JOB = "kubectl describe job -n NAMESPACE NAME-fetch"
_FETCH_STATES = (_FETCHING, _JOB)
_CLAIMS = "kubectl get pvc -n NAMESPACE"
_QUOTAS = "kubectl describe quota -n NAMESPACE"
_NAMESPACE = "kubectl get namespace NAMESPACE -o yaml"
_NODES = "kubectl describe nodes | grep -A 8 'Allocated resources'"
_EXPLAIN = "kubectl argosy explain NAME -n NAMESPACE"
_OPERATOR = (
    "kubectl logs -n OPERATOR_NAMESPACE --tail=200 \\\n"
    "  -l app.kubernetes.io/name=argosy,app.kubernetes.io/component=operator"
)


@unique
class Reason(StrEnum):
    """Why a condition is what it is. Each has its meaning, and what to do if a person is needed.

    `meaning` is also the condition's message where nothing more specific is known. `action` is ""
    for a reason that needs no person. `commands` show more; in them, words in capitals are
    placeholders.
    """

    meaning: str
    action: str
    commands: tuple[str, ...]

    def __new__(cls, value: str, meaning: str = "", action: str = "", *commands: str) -> "Reason":
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.meaning, reason.action, reason.commands = meaning, action, commands
        return reason

    # Ready, RolledOut, Servable, Reconciling, Progressing
    AS_SPECIFIED = ("AsSpecified", "everything is as the spec asks")
    STARTING = ("Starting", "pods are starting", "", _PODS, _POD)
    PODS_NOT_READY = (
        "PodsNotReady",
        "pods that served are no longer ready",
        "Find out why the pods are not ready: read their events and the log of their last "
        "container.",
        *_POD_STATES,
        _LOGS,
    )
    NO_PREFILL = (
        "NoPrefill",
        "no prefill pod is ready: decode pods compute the prompts themselves",
        "Find out why no prefill pod is ready. Until one is, prompts slow down the "
        "answers of others.",
        *_POD_STATES,
    )
    NO_DECODE = (
        "NoDecode",
        "no decode pod is ready for the revision of the ready prefill pods",
        "Find out why no decode pod is ready. Until one is, the fleet answers no request.",
        *_POD_STATES,
    )
    NO_PODS = (
        "NoPods",
        "no engine pod is ready",
        "Wait if the fleet was just made. Otherwise find out why its pods are not ready.",
        *_POD_STATES,
    )
    GATEWAY_NOT_READY = (
        "GatewayNotReady",
        "no gateway pod is ready",
        "Find out why no gateway pod is ready. Until one is, clients reach nothing.",
        *_POD_STATES,
    )
    SETTINGS_PENDING = (
        "GatewaySettingsPending",
        "a gateway does not use the settings of the spec yet, or does not say so",
        "Nothing in the first half a minute. If it lasts, the gateway cannot read its ConfigMap: "
        "its log says why. Let the operator connect to port 8081 of gateway pods.",
        *_GATEWAY_SETTINGS,
    )
    SETTINGS_REFUSED = (
        "GatewaySettingsRefused",
        "a gateway cannot use the settings of the spec, and goes on with older ones",
        "Correct the field that the message is about, or let the gateways run the operator's "
        "version (spec.imageUpdates: Follow).",
        *_GATEWAY_SETTINGS,
    )
    ROLLING_OUT = ("RollingOut", "pods of a new revision are starting", "", _PODS)
    SURGE_TOO_SMALL = (
        "SurgeTooSmall",
        "no pod of the new revision fits beside the last old ones",
        "Raise spec.rollout.maxSurgeGPUs to the number that the message names, or write "
        "spec.rollout.strategy: Recreate, with which the fleet answers nothing for a cold start.",
        _SPEC,
        _PODS,
    )
    ROLLOUT_PAUSED = (
        "RolloutPaused",
        "spec.rollout.paused is true: the pods of both revisions stay",
        "",
        _SPEC,
        _PODS,
    )
    ROLLED_BACK = (
        "RolledBack",
        "the spec's revision is refused, and an earlier one runs in its place",
        "Change the spec, or put it back. kubectl argosy rollout promote tries the refused "
        "revision again.",
        _SPEC,
        _PODS,
    )
    ROLLED_OUT = (
        "RolledOut",
        "pods of the spec's revision serve, and no others are left",
    )
    OUT_OF_BOUNDS = (
        "OutOfBounds",
        "the ServingRole asks for another number of pods than the spec allows",
        "Change spec.roles.<role>.replicas, or the bounds of its other scaler.",
        _ROLES,
    )
    PARKED = ("Parked", "every role has 0 replicas, as asked")
    SCALED_TO_ZERO = (
        "ScaledToZero",
        "no requests arrive: the fleet has no engine pods, and the next request starts them",
    )
    WAKING = (
        "Waking",
        "pods start because a request came to a fleet at zero; requests wait in the gateway",
    )
    PAUSED = ("Paused", "spec.paused is true", "", _SPEC)
    DELETING = (
        "Deleting",
        "the namespace is being deleted",
        "Make the fleet in another namespace if you still need it.",
        _NAMESPACE,
    )
    # Stalled: a person must act
    WRITE_FAILED = (
        "WriteFailed",
        "an object cannot be written",
        "Remove the cause that the message quotes; the operator tries again by itself.",
        _EVENTS,
        _OPERATOR,
    )
    INVALID_SPEC = (
        "InvalidSpec",
        "the spec is refused",
        "Correct the field that the message names.",
        _SPEC,
    )
    FORBIDDEN = (
        "Forbidden",
        "the API server refuses a call of the operator, or the fleet's pods",
        "Add the RBAC rule, make the object that is missing, or change the policy that refuses.",
        _EVENTS,
        _OPERATOR,
    )
    CLAIM_NOT_FOUND = (
        "ClaimNotFound",
        "the PersistentVolumeClaim of spec.model.uri does not exist",
        "Create the claim in the fleet's namespace, or correct spec.model.uri.",
        _CLAIMS,
        _SPEC,
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "an image cannot be pulled",
        "Correct the image's name or spec.model.uri, give the pods a pull secret, or mirror the "
        "image.",
        *_POD_STATES,
    )
    CONTAINER_CRASHING = (
        "ContainerCrashing",
        "a container keeps ending",
        "Read the log of the container that ended.",
        _PODS,
        _LOGS,
        _POD,
    )
    POD_NOT_STARTED = (
        "PodNotStarted",
        "a pod has not started, or a Job has made no pod, within spec.progressDeadline",
        "Read the events of the pod or of the Job: they name what it waits for.",
        *_POD_STATES,
        _JOB,
    )
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "the model is not where spec.model.uri says",
        "Put the weights on the volume, or correct the path in spec.model.uri.",
        _CLAIMS,
        _LOGS,
    )
    WEIGHTS_INVALID = (
        "WeightsInvalid",
        "the weights cannot be read",
        "Save the weights again as safetensors, or correct spec.model.uri.",
        _LOGS,
    )
    UNSUPPORTED_ARCHITECTURE = (
        "UnsupportedArchitecture",
        "the engine does not support the model's architecture",
        "Choose a model whose architecture the engine supports.",
        _LOGS,
    )
    SOURCE_FORBIDDEN = (
        "SourceForbidden",
        "the hub or the store refuses to give the model",
        "Put a token or keys with the right to read into the Secret that spec.model.fetch.template "
        "names. The Job reads it at its next start, within five minutes.",
        *_FETCH_STATES,
    )
    SOURCE_NOT_FOUND = (
        "SourceNotFound",
        "the hub or the store has no such model, or not this revision of it",
        "Correct spec.model.uri. If the commit has vanished, name one that exists.",
        _FETCHING,
    )
    SOURCE_UNREACHABLE = (
        "SourceUnreachable",
        "the hub or the store does not answer",
        "Let the pod reach it: name the proxy or the endpoint of your own in the variables of "
        "spec.model.fetch.template. The Job goes on by itself.",
        *_FETCH_STATES,
    )
    ONLY_PICKLES = (
        "OnlyPickles",
        "the model has no safetensors weights, only pickles, which can run code as they are read",
        "Choose a revision with *.safetensors files, or convert the weights.",
        _FETCHING,
    )
    FILES_INCOMPLETE = (
        "FilesIncomplete",
        "a file that came is not what its source says",
        "Look at what stands between the Job and the source, such as a proxy that cuts or changes "
        "answers, or a writer of the bucket. The Job tries again by itself.",
        _FETCHING,
    )
    VOLUME_FULL = (
        "VolumeFull",
        "the model does not fit into its claim",
        "Raise spec.model.fetch.size if the storage class can grow a claim, or name a larger one. "
        "Earlier commits stay in the claim: delete their folders if no pod serves them.",
        _CLAIMS,
        _FETCHING,
    )
    VOLUME_NOT_WRITABLE = (
        "VolumeNotWritable",
        "the Job cannot write into the claim",
        "Let the claim be mounted for writing by group 65532, or let the platform choose user ids "
        "where it gives them, as docs/how-to/pods.md says.",
        _CLAIMS,
        _FETCHING,
    )
    ACCOUNT_NOT_FOUND = (
        "ServiceAccountNotFound",
        "the ServiceAccount of the Job that fetches the model does not exist",
        "Create it in the fleet's namespace, or correct spec.model.fetch.serviceAccountName. The "
        "Job goes on by itself.",
        *_FETCH_STATES,
    )
    FETCHING_MODEL = (
        "FetchingModel",
        "a Job fetches the model; engine pods start when it is there",
    )
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "an engine runs out of memory",
        "Raise the memory in spec.roles.<role>.resources, or lower spec.engine.maxModelLen.",
        *_POD_STATES,
        _LOGS,
    )
    BAD_ARGUMENT = (
        "BadArgument",
        "the engine refuses one of its arguments",
        "Correct spec.engine.",
        _SPEC,
        _LOGS,
    )
    # SLOMet, SLOFeasible
    TARGETS_MET = ("TargetsMet", "the goal of spec.slo is met")
    TARGETS_MISSED = (
        "TargetsMissed",
        "fewer requests than the goal of spec.slo meet its targets",
        "Read why the fleet has no more replicas. Wait if replicas are being added.",
        _EXPLAIN,
    )
    NO_TRAFFIC = ("NoTraffic", "no request was answered within the window")
    NO_SLO = ("NoSLO", "spec.slo is not set")
    FLOOR_ABOVE_TARGET = (
        "FloorAboveTarget",
        "one request alone misses a target of spec.slo",
        "Raise the target, or serve on faster GPUs. More replicas do not help.",
        _EXPLAIN,
    )
    MAX_REPLICAS_BOUND = (
        "MaxReplicasBound",
        "replicas.max allows fewer replicas than are needed",
        "Raise the role's replicas.max, or the max of the schedule that the decision names, or "
        "accept that targets are missed at this load.",
        _EXPLAIN,
    )
    # ErrorBudgetBurning
    BURNING_FAST = (
        "BurningFast",
        "requests miss their targets so often that the error budget of 30 days is gone in days: "
        "status.errorBudget has the rates",
        "Act now: find out why requests miss, with the other conditions and with the reasons in "
        "status.goodput.misses.",
        _EXPLAIN,
        _PODS,
    )
    BURNING_SLOWLY = (
        "BurningSlowly",
        "requests miss their targets more often than the error budget of 30 days allows: "
        "status.errorBudget has the rates",
        "Find out in the next days why requests miss: raise what limits the replicas, or relax "
        "spec.slo.",
        _EXPLAIN,
    )
    # ScalingActive
    SIGNALS_UNKNOWN = (
        "SignalsUnknown",
        "a metric that a role's size depends on is unknown: the role loses no replicas",
        "Find out why the metric that the message names is missing. Until then the role "
        "keeps its replicas.",
        _EXPLAIN,
        _PODS,
    )
    GATEWAYS_ALONE = (
        "GatewaysAlone",
        "Prometheus has no usable metrics: gateways say what their load is, by which replicas are "
        "added and none is removed",
        "Mend Prometheus: the message says what is wrong with it. Until then no replica is "
        "removed, and the share of the requests that meets its targets is unknown.",
        _EXPLAIN,
    )
    EXTERNAL_OWNER = (
        "ExternalOwner",
        "spec.autoscaling.policy is External: others scale the ServingRoles",
    )
    POLICY_NONE = ("PolicyNone", "spec.autoscaling.policy is None: replicas stay at their minimum")
    METRICS_UNAVAILABLE = (
        "MetricsUnavailable",
        "the metrics are not available: no replica is removed",
        "Read the condition MetricsAvailable, whose reason is more specific.",
        _EXPLAIN,
        _OPERATOR,
    )
    # GatewayScalingActive
    AUTOSCALER_BLIND = (
        "AutoscalerBlind",
        "the HorizontalPodAutoscaler of the gateways cannot scale: they stay as many as they are, "
        "and at least routing.autoscaling.min",
        "Nothing in the first minute of a pod. If it lasts, install a server of CPU metrics "
        "(metrics.k8s.io), such as metrics-server, or remove a second HorizontalPodAutoscaler of "
        "the same Deployment.",
        _AUTOSCALERS,
        "kubectl get apiservice v1beta1.metrics.k8s.io",
        "kubectl top pods -n NAMESPACE --containers",
    )
    # MetricsAvailable
    MEASURED = ("Measured", "Prometheus has fresh samples of every Ready gateway")
    IDLE = ("Idle", "every Ready gateway reports, and no request arrives")
    NO_PROMETHEUS = (
        "NoPrometheus",
        "no address of Prometheus is set",
        "Set prometheus.url in the values of the operator's chart, or spec.metrics.prometheus.url.",
        _SPEC,
    )
    PROMETHEUS_NOT_ALLOWED = (
        "PrometheusNotAllowed",
        "spec.metrics.prometheus.url is not in the allow-list",
        "Leave spec.metrics.prometheus.url out, or have the address added to the chart "
        "value prometheus.allowed.",
        _SPEC,
    )
    PROMETHEUS_UNREACHABLE = (
        "PrometheusUnreachable",
        "Prometheus does not answer",
        "Find out why the operator's pod gets no answer from that address.",
        _OPERATOR,
    )
    NO_TARGETS = (
        "NoTargets",
        "Prometheus scrapes no gateway of this fleet",
        "Make Prometheus scrape the fleet's pods, with the labels that the operator queries.",
        _PODS,
    )
    GATEWAY_SILENT = (
        "GatewaySilent",
        "a Ready gateway has no fresh samples in Prometheus",
        "Find out why Prometheus does not scrape that gateway pod.",
        _PODS,
    )
    STALE = (
        "Stale",
        "the newest samples are too old",
        "Make spec.metrics.scrapeInterval what Prometheus uses, and compare the clocks of "
        "the machines.",
        _SPEC,
    )
    NOT_A_NUMBER = (
        "NotANumber",
        "a metric is NaN, infinite or negative",
        "Find out which program or recording rule writes the metric that the message names.",
        _OPERATOR,
    )
    UNKNOWN = ("Unknown", "not checked yet")
    # CapacityLimited
    UNSCHEDULABLE = (
        "Unschedulable",
        "no node has room for a pod",
        "Add nodes, or lower the role's replicas or resources.",
        *_POD_STATES,
        _NODES,
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "a ResourceQuota is used up",
        "Raise the quota, or lower the roles' replicas or resources.",
        _QUOTAS,
    )
    GPU_TYPE_FULL = (
        "GPUTypeFull",
        "one of a role's gpuTypes had no room, and the role runs on another",
        "Add nodes with that type, or take it off the role's gpuTypes.",
        *_POD_STATES,
        _NODES,
    )
    GPU_BUDGET = (
        "GPUBudget",
        "the GPU budget is used up",
        "Raise the budget that the message names, or accept that targets are missed at this load.",
        _EXPLAIN,
    )
    UNREADABLE_NUMBER = (
        "UnreadableNumber",
        "a pod has a limit that is not a number",
        "Find out who changes the fleet's pods, and correct the limit there.",
        _POD,
    )
    # Draining, NameConflict, FieldConflict
    PODS_LEAVING = ("PodsLeaving", "pods finish their answers and leave", "", _PODS)
    FOREIGN_OBJECT = (
        "ForeignObject",
        "an object of another owner has a name that this fleet needs",
        "Delete the object if it is not needed, or give the fleet another name.",
        _EVENTS,
    )
    PUT_BACK_AGAIN = (
        "PutBackAgain",
        "another writer changes a field each time that Argosy has put it back",
        "Stop the other writer, or change the ServingDeployment.",
        _EVENTS,
    )
    # PeersVerified
    NOT_VERIFIED = ("NotVerified", "engine pods serve everyone who reaches them")
    KEYS_UNKNOWN = (
        "KeysUnknown",
        "the public keys of the cluster's service accounts cannot be read: new engine pods do not "
        "start",
        "Let the operator's account read /openid/v1/jwks and /.well-known/openid-configuration: "
        "bind it to the ClusterRole system:service-account-issuer-discovery. Or set "
        "spec.security.verifyPeers to false, and engine pods serve everyone who reaches them.",
        "kubectl get clusterrolebinding system:service-account-issuer-discovery -o yaml",
        _OPERATOR,
    )
    # TransportSecured
    NO_CERTIFICATE = (
        "NoCertificate",
        "requests and KV caches travel between the pods in the clear",
        "Name a Secret of the type kubernetes.io/tls in spec.security.tls.secretName.",
    )
    CERTIFICATE_NOT_USED = (
        "CertificateNotUsed",
        "pods without the certificate still run, or no engine pod has started with it",
        "Nothing while pods are replaced. If it lasts, see what a pod that does not start waits "
        "for: the Secret of spec.security.tls must exist, with tls.crt, tls.key and ca.crt.",
        *_POD_STATES,
    )
    # KVTransferHealthy
    HANDOVERS_FAIL = (
        "HandoversFail",
        "a prefill and a decode pod do not hand over KV caches",
        "Nothing at first: Argosy replaces a pod that is the cause, see the Event Recycled. If it "
        "lasts, read the log of both pods, and check the network between them on port 8002.",
        _PODS,
        "kubectl logs POD -n NAMESPACE",
    )


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
