"""The reasons of conditions: what each one means, and what a person does about it.

`core/status` chooses them. Each has a page, `docs/runbook/<reason>.md`, whose first part is
generated from the texts here. A new reason is a change of the API: alerts and scripts match on it.
"""

from enum import StrEnum, unique

from argosy_operator.api.conditions import fetching, gateways, kubectl, pods


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
    STARTING = ("Starting", "pods are starting", "", kubectl.PODS, kubectl.POD)
    PODS_NOT_READY = (
        "PodsNotReady",
        "pods that served are no longer ready",
        "Find out why the pods are not ready: read their events and the log of their last "
        "container.",
        *kubectl.POD_STATES,
        kubectl.LOGS,
    )
    NO_PREFILL = (
        "NoPrefill",
        "no prefill pod is ready: decode pods compute the prompts themselves",
        "Find out why no prefill pod is ready. Until one is, prompts slow down the "
        "answers of others.",
        *kubectl.POD_STATES,
    )
    REVISIONS_DIFFER = (
        "RevisionsDiffer",
        "prefill and decode pods are of different revisions, and only pods of one work together: "
        "decode pods compute the prompts themselves",
        "Wait while pods of the new revision start. If it lasts, find out why they are not ready.",
        *kubectl.POD_STATES,
    )
    NO_DECODE = (
        "NoDecode",
        "no decode pod is ready for the revision of the ready prefill pods",
        "Find out why no decode pod is ready. Until one is, the fleet answers no request.",
        *kubectl.POD_STATES,
    )
    NO_PODS = (
        "NoPods",
        "no engine pod is ready",
        "Wait if the fleet was just made. Otherwise find out why its pods are not ready.",
        *kubectl.POD_STATES,
    )
    GATEWAY_NOT_READY = gateways.GATEWAY_NOT_READY
    SETTINGS_PENDING = gateways.SETTINGS_PENDING
    SETTINGS_REFUSED = gateways.SETTINGS_REFUSED
    SETTINGS_UNKNOWN = gateways.SETTINGS_UNKNOWN
    SCALING = ("Scaling", "pods that are no longer needed finish their answers")
    ROLLING_OUT = ("RollingOut", "pods of a new revision are starting", "", kubectl.PODS)
    ROLLED_OUT = (
        "RolledOut",
        "pods of the spec's revision serve, and no others are left",
        "",
        kubectl.PODS,
    )
    ABOVE_MAXIMUM = (
        "AboveMaximum",
        "the ServingRole asks for more pods than the spec allows",
        "Raise spec.roles.<role>.replicas.max, or make its other scaler ask for less.",
        kubectl.ROLES,
    )
    BELOW_MINIMUM = (
        "BelowMinimum",
        "the ServingRole asks for fewer pods than the spec allows",
        "Lower spec.roles.<role>.replicas.min, or make its other scaler ask for more.",
        kubectl.ROLES,
    )
    WITHIN_BOUNDS = ("WithinBounds", "the spec's bounds allow what the ServingRole asks for")
    PARKED = ("Parked", "every role has 0 replicas, as asked")
    SCALED_TO_ZERO = (
        "ScaledToZero",
        "nobody uses the fleet: it has no engine pods, and the next request starts them",
        "",
        kubectl.EXPLAIN,
    )
    WAKING = (
        "Waking",
        "pods start because a request came to a fleet at zero; requests wait in the gateway",
        "",
        kubectl.PODS,
    )
    PAUSED = ("Paused", "spec.paused is true", "", kubectl.SPEC)
    DELETING = (
        "Deleting",
        "the namespace is being deleted",
        "Make the fleet in another namespace if you still need it.",
        kubectl.NAMESPACE,
    )
    # Stalled: a person must act
    NOT_STALLED = ("NotStalled", "no person needs to act")
    WRITE_FAILED = (
        "WriteFailed",
        "an object cannot be written",
        "Remove the cause that the message quotes; the operator tries again by itself.",
        kubectl.EVENTS,
        kubectl.OPERATOR,
    )
    INVALID_SPEC = (
        "InvalidSpec",
        "the spec is refused",
        "Correct the field that the message names.",
        kubectl.SPEC,
    )
    POOLS_UNKNOWN = (
        "InferencePoolsUnknown",
        "the cluster has no InferencePools, which routing.gateway epp needs",
        "Install the Gateway API Inference Extension; the operator tries again within a minute.",
        f"kubectl apply -f {kubectl.POOLS_MANIFEST}",
        "kubectl get crd inferencepools.inference.networking.k8s.io",
    )
    FORBIDDEN = (
        "Forbidden",
        "the API server refuses a call of the operator, or the fleet's pods",
        "Add the RBAC rule, make the object that is missing, or change the policy that refuses.",
        kubectl.EVENTS,
        kubectl.OPERATOR,
    )
    CLAIM_NOT_FOUND = (
        "ClaimNotFound",
        "the PersistentVolumeClaim of spec.model.uri does not exist",
        "Create the claim in the fleet's namespace, or correct spec.model.uri.",
        kubectl.CLAIMS,
        kubectl.SPEC,
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "an image cannot be pulled",
        "Correct the image's name or spec.model.uri, give the pods a pull secret, or mirror the "
        "image.",
        *kubectl.POD_STATES,
    )
    CONTAINER_CRASHING = (
        "ContainerCrashing",
        "a container keeps ending",
        "Read the log of the container that ended.",
        kubectl.PODS,
        kubectl.LOGS,
        kubectl.POD,
    )
    POD_NOT_STARTED = pods.POD_NOT_STARTED
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "the model is not where spec.model.uri says",
        "Put the weights on the volume, or correct the path in spec.model.uri.",
        kubectl.CLAIMS,
        kubectl.LOGS,
    )
    WEIGHTS_INVALID = (
        "WeightsInvalid",
        "the weights cannot be read",
        "Save the weights again as safetensors, or correct spec.model.uri.",
        kubectl.LOGS,
    )
    UNSUPPORTED_ARCHITECTURE = (
        "UnsupportedArchitecture",
        "the engine does not support the model's architecture",
        "Choose a model whose architecture the engine supports.",
        kubectl.LOGS,
    )
    SOURCE_FORBIDDEN = fetching.SOURCE_FORBIDDEN
    SOURCE_NOT_FOUND = fetching.SOURCE_NOT_FOUND
    SOURCE_UNREACHABLE = fetching.SOURCE_UNREACHABLE
    ONLY_PICKLES = fetching.ONLY_PICKLES
    FILES_INCOMPLETE = fetching.FILES_INCOMPLETE
    VOLUME_FULL = fetching.VOLUME_FULL
    VOLUME_NOT_WRITABLE = fetching.VOLUME_NOT_WRITABLE
    ACCOUNT_NOT_FOUND = fetching.ACCOUNT_NOT_FOUND
    FETCHING_MODEL = fetching.FETCHING_MODEL
    FETCHED = fetching.FETCHED
    IN_PLACE = fetching.IN_PLACE
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "an engine runs out of memory",
        "Raise the memory in spec.roles.<role>.resources, or lower spec.engine.maxModelLen.",
        *kubectl.POD_STATES,
        kubectl.LOGS,
    )
    BAD_ARGUMENT = (
        "BadArgument",
        "the engine refuses one of its arguments",
        "Correct spec.engine.",
        kubectl.SPEC,
        kubectl.LOGS,
    )
    # SLOMet, SLOFeasible
    TARGETS_MET = ("TargetsMet", "the goal of spec.slo is met")
    TARGETS_MISSED = (
        "TargetsMissed",
        "fewer requests than the goal of spec.slo meet its targets",
        "Read why the fleet has no more replicas. Wait if replicas are being added.",
        kubectl.EXPLAIN,
    )
    NO_TRAFFIC = ("NoTraffic", "no request was answered within the window")
    NO_SLO = ("NoSLO", "spec.slo is not set")
    WITHIN_REACH = (
        "WithinReach",
        "one request alone meets the targets, and the allowed replicas are enough",
    )
    TTFT_FLOOR_ABOVE_TARGET = (
        "TTFTFloorAboveTarget",
        "one prompt alone takes longer than spec.slo.ttft.target",
        "Raise spec.slo.ttft.target, or serve on faster GPUs. More replicas do not help.",
        kubectl.EXPLAIN,
    )
    TPOT_FLOOR_ABOVE_TARGET = (
        "TPOTFloorAboveTarget",
        "one request alone misses spec.slo.tpot.target",
        "Raise spec.slo.tpot.target, or serve on faster GPUs. More replicas do not help.",
        kubectl.EXPLAIN,
    )
    BUDGET_BOUND = (
        "BudgetBound",
        "the GPU budget allows fewer replicas than are needed",
        "Raise the budget that the message names, or accept that targets are missed at this load.",
        kubectl.EXPLAIN,
    )
    MAX_REPLICAS_BOUND = (
        "MaxReplicasBound",
        "replicas.max allows fewer replicas than are needed",
        "Raise the role's replicas.max, or the max of the schedule that the decision names, or "
        "accept that targets are missed at this load.",
        kubectl.EXPLAIN,
    )
    # ErrorBudgetBurning
    BURNING_FAST = (
        "BurningFast",
        "requests miss their targets so often that the error budget of 30 days is gone in days: "
        "status.errorBudget has the rates",
        "Act now: find out why requests miss, with the other conditions and with the reasons in "
        "status.goodput.misses.",
        kubectl.EXPLAIN,
        kubectl.PODS,
    )
    BURNING_SLOWLY = (
        "BurningSlowly",
        "requests miss their targets more often than the error budget of 30 days allows: "
        "status.errorBudget has the rates",
        "Find out in the next days why requests miss: raise what limits the replicas, or relax "
        "spec.slo.",
        kubectl.EXPLAIN,
    )
    WITHIN_BUDGET = ("WithinBudget", "the error budget lasts at the rate of now")
    # ScalingActive
    FOLLOWING_GOODPUT = (
        "FollowingGoodput",
        "replicas follow the measured load and spec.slo",
        "",
        kubectl.EXPLAIN,
    )
    CAPACITY_RELEARNT = (
        "CapacityRelearnt",
        "the measured capacity of a replica was not usable and is measured again: until then no "
        "replica is removed",
        "",
        kubectl.EXPLAIN,
    )
    SIGNALS_UNKNOWN = (
        "SignalsUnknown",
        "a metric that a role's size depends on is unknown: the role loses no replicas",
        "Find out why the metric that the message names is missing. Until then the role "
        "keeps its replicas.",
        kubectl.EXPLAIN,
        kubectl.PODS,
    )
    GATEWAYS_ALONE = (
        "GatewaysAlone",
        "Prometheus has no usable metrics: gateways say what their load is, by which replicas are "
        "added and none is removed",
        "Mend Prometheus: the message says what is wrong with it. Until then no replica is "
        "removed, and nobody knows which share of the requests meets its targets.",
        kubectl.EXPLAIN,
    )
    EXTERNAL_OWNER = (
        "ExternalOwner",
        "spec.autoscaling.policy is External: others scale the ServingRoles",
        "",
        kubectl.ROLES,
    )
    ADVISORY = (
        "Advisory",
        "spec.autoscaling.advisory is true: decisions are shown in status.autoscaling.advice, and "
        "others scale the ServingRoles",
        "",
        kubectl.EXPLAIN,
        kubectl.ROLES,
    )
    POLICY_NONE = ("PolicyNone", "spec.autoscaling.policy is None: replicas stay at their minimum")
    METRICS_UNAVAILABLE = (
        "MetricsUnavailable",
        "the metrics are not available: no replica is removed",
        "Read the condition MetricsAvailable, whose reason is more specific.",
        kubectl.EXPLAIN,
        kubectl.OPERATOR,
    )
    # GatewayScalingActive
    FIXED_NUMBER = gateways.FIXED_NUMBER
    SCALED_BY_OTHERS = gateways.SCALED_BY_OTHERS
    AUTOSCALER_SILENT = gateways.AUTOSCALER_SILENT
    AUTOSCALER_BLIND = gateways.AUTOSCALER_BLIND
    FOLLOWING_CPU = gateways.FOLLOWING_CPU
    # MetricsAvailable
    MEASURED = ("Measured", "Prometheus has fresh samples of every Ready gateway")
    IDLE = ("Idle", "every Ready gateway reports, and no request arrives")
    NO_PROMETHEUS = (
        "NoPrometheus",
        "no address of Prometheus is set",
        "Set prometheus.url in the values of the operator's chart, or spec.metrics.prometheus.url.",
        kubectl.SPEC,
    )
    PROMETHEUS_NOT_ALLOWED = (
        "PrometheusNotAllowed",
        "spec.metrics.prometheus.url is not in the allow-list",
        "Leave spec.metrics.prometheus.url out, or have the address added to the chart "
        "value prometheus.allowed.",
        kubectl.SPEC,
    )
    PROMETHEUS_UNREACHABLE = (
        "PrometheusUnreachable",
        "Prometheus does not answer",
        "Find out why the operator's pod gets no answer from that address.",
        kubectl.OPERATOR,
    )
    NO_TARGETS = (
        "NoTargets",
        "Prometheus scrapes no gateway of this fleet",
        "Make Prometheus scrape the fleet's pods, with the labels that the operator queries.",
        kubectl.PODS,
    )
    GATEWAY_SILENT = (
        "GatewaySilent",
        "a Ready gateway has no fresh samples in Prometheus",
        "Find out why Prometheus does not scrape that gateway pod.",
        kubectl.PODS,
    )
    STALE = (
        "Stale",
        "the newest samples are too old",
        "Make spec.metrics.scrapeInterval what Prometheus uses, and compare the clocks of "
        "the machines.",
        kubectl.SPEC,
    )
    NOT_A_NUMBER = (
        "NotANumber",
        "a metric is NaN, infinite or negative",
        "Find out which program or recording rule writes the metric that the message names.",
        kubectl.OPERATOR,
    )
    UNKNOWN = ("Unknown", "not checked yet")
    # CapacityLimited
    ENOUGH = ("Enough", "no pod lacks a node, quota or GPUs")
    UNSCHEDULABLE = pods.UNSCHEDULABLE
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "a ResourceQuota is used up",
        "Raise the quota, or lower the roles' replicas or resources.",
        kubectl.QUOTAS,
    )
    GPU_TYPE_FULL = (
        "GPUTypeFull",
        "one of a role's gpuTypes had no room, and the role runs on another",
        "Add nodes with that type, or take it off the role's gpuTypes.",
        *kubectl.POD_STATES,
        kubectl.NODES,
    )
    GPU_BUDGET = (
        "GPUBudget",
        "the GPU budget is used up",
        "Raise the budget that the message names, or accept that targets are missed at this load.",
        kubectl.EXPLAIN,
    )
    UNREADABLE_NUMBER = (
        "UnreadableNumber",
        "a pod has a limit that is not a number",
        "Find out who changes the fleet's pods, and correct the limit there.",
        kubectl.POD,
    )
    # Draining, NameConflict, FieldConflict
    PODS_LEAVING = ("PodsLeaving", "pods finish their answers and leave", "", kubectl.PODS)
    NOTHING_LEAVES = ("NothingLeaves", "no pod is leaving")
    FOREIGN_OBJECT = (
        "ForeignObject",
        "an object of another owner has a name that this fleet needs",
        "Delete the object if it is not needed, or give the fleet another name.",
        kubectl.EVENTS,
    )
    NO_CONFLICT = ("NoConflict", "no object of another owner has a name that this fleet needs")
    TWO_INSTALLS = (
        "TwoInstalls",
        "two installs of the operator are told to look after this fleet: one of them stays still",
        "Give the installs different namespaces (chart value rbac.namespaced), or remove one.",
        kubectl.SPEC,
        kubectl.LEASES,
    )
    ONE_INSTALL = ("OneInstall", "one install of the operator looks after this fleet")
    PUT_BACK_AGAIN = (
        "PutBackAgain",
        "another writer changes a field each time that Argosy has put it back",
        "Stop the other writer, or change the ServingDeployment.",
        kubectl.EVENTS,
    )
    NO_CONTEST = ("NoContest", "no other writer keeps changing what Argosy writes")
    # PeersVerified
    VERIFIED = ("Verified", "engine pods serve only callers that prove who they are")
    VERIFICATION_OFF = (
        "VerificationOff",
        "spec.security.verifyPeers is false: engine pods serve everyone who reaches them",
        "",
        kubectl.SPEC,
    )
    ENGINE_ASKS_NO_TOKEN = (
        "EngineAsksNoToken",
        "engines of spec.engine.type vllm and sglang ask their callers for no token: they serve "
        "everyone who reaches them",
        "",
        kubectl.SPEC,
    )
    KEYS_UNKNOWN = (
        "KeysUnknown",
        "the public keys of the cluster's service accounts cannot be read: new engine pods do not "
        "start",
        "Let the operator's account read /openid/v1/jwks and /.well-known/openid-configuration: "
        "bind it to the ClusterRole system:service-account-issuer-discovery. Or set "
        "spec.security.verifyPeers to false, and engine pods serve everyone who reaches them.",
        "kubectl get clusterrolebinding system:service-account-issuer-discovery -o yaml",
        kubectl.OPERATOR,
    )
    OLDER_TEMPLATE = (
        "OlderTemplate",
        "the engine pods were made by an older operator and serve everyone who reaches them, until "
        "the fleet's next revision",
        "Nothing, if the next change of spec.engine or of the engine image comes soon. To have new "
        "pods now, add a variable to spec.engine.env.",
        kubectl.PODS,
    )
    PROOF_NOT_REQUIRED = (
        "ProofNotRequired",
        "pods that show no token are being replaced; until then calls without one are served",
        "",
        kubectl.PODS,
    )
    # TransportSecured
    ENCRYPTED = ("Encrypted", "engine pods take only calls with TLS and a certificate")
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
        *kubectl.POD_STATES,
    )
    # KVTransferHealthy
    HANDOVERS_FAIL = (
        "HandoversFail",
        "a prefill and a decode pod do not hand over KV caches",
        "Nothing at first: Argosy replaces a pod that is the cause, see the Event Recycled. If it "
        "lasts, read the log of both pods, and check the network between them on port 8002.",
        kubectl.PODS,
        "kubectl logs POD -n NAMESPACE",
    )
    NO_HANDOVER_FAILS = ("NoHandoverFails", "no gateway knows a pair of pods that fails")
