"""The reasons that are about gateways alone, as `Reason` takes them: word, meaning, what to do,
commands."""

from argosy_operator.api.conditions import kubectl

GATEWAY_NOT_READY = (
    "GatewayNotReady",
    "no gateway pod is ready",
    "Find out why no gateway pod is ready. Until one is, clients reach nothing.",
    *kubectl.POD_STATES,
)
SETTINGS_PENDING = (
    "GatewaySettingsPending",
    "a gateway does not use the settings of the spec yet",
    "Nothing in the first ten seconds. If it lasts, the gateway cannot read its ConfigMap: its log "
    "says why.",
    *kubectl.GATEWAY_SETTINGS,
)
SETTINGS_REFUSED = (
    "GatewaySettingsRefused",
    "a gateway cannot use the settings of the spec, and goes on with older ones",
    "Correct the field that the message is about, or let the gateways run the operator's version "
    "(spec.imageUpdates: Follow).",
    *kubectl.GATEWAY_SETTINGS,
)
SETTINGS_UNKNOWN = (
    "GatewaySettingsUnknown",
    "a gateway does not tell the operator which settings it uses",
    "Nothing: it is waited for no longer than half a minute. To be sure of edits, let the operator "
    "connect to port 8081 of gateway pods.",
    *kubectl.GATEWAY_SETTINGS,
)
FIXED_NUMBER = (
    "FixedNumber",
    "spec.routing.autoscaling is not set: the number of gateways is spec.routing.replicas",
)
SCALED_BY_OTHERS = (
    "ScaledByOthers",
    "spec.routing.autoscaling.policy is External: another scaler sets the number of gateways",
    "",
    kubectl.AUTOSCALERS,
)
AUTOSCALER_SILENT = (
    "AutoscalerSilent",
    "the HorizontalPodAutoscaler of the gateways has not said yet whether it scales",
    "",
    kubectl.AUTOSCALERS,
)
AUTOSCALER_BLIND = (
    "AutoscalerBlind",
    "the HorizontalPodAutoscaler of the gateways cannot scale: they stay as many as they are, and "
    "at least routing.autoscaling.min",
    "Nothing in the first minute of a pod. If it lasts, install a server of CPU metrics "
    "(metrics.k8s.io), such as metrics-server, or remove a second HorizontalPodAutoscaler of the "
    "same Deployment.",
    kubectl.AUTOSCALERS,
    "kubectl get apiservice v1beta1.metrics.k8s.io",
    "kubectl top pods -n NAMESPACE --containers",
)
FOLLOWING_CPU = (
    "FollowingCPU",
    "the number of gateways follows the CPU that they use",
    "",
    kubectl.AUTOSCALERS,
)
