"""In place of a gateway: an InferencePool, and the endpoint picker that chooses its pods.

The pool is what an HTTPRoute of the cluster's gateway names. That gateway asks the picker, an
external processor of Envoy, which pod a request goes to. Both APIs are those of the Gateway API
Inference Extension (inference.networking.k8s.io).

The picker may read the pods, pools and objectives of its namespace and nothing else.
"""

import json

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.revision import whole_seconds
from argosy_operator.render.common import (
    GRACE_MARGIN_S,
    access,
    container_security,
    front_labels,
    metadata,
    pod_security,
)
from argosy_operator.render.engines.table import kind_of
from argosy_operator.render.images import Images
from argosy_operator.render.peers import Callers

GROUP = "inference.networking.k8s.io"
OBJECTIVES = "inference.networking.x-k8s.io"

PLUGINS = {
    "apiVersion": f"{OBJECTIVES}/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "kv-cache-utilization-scorer"},
        {"type": "prefix-cache-scorer"},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "queue-scorer", "weight": 2},
                {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
                {"pluginRef": "prefix-cache-scorer", "weight": 3},
            ],
        }
    ],
}
"""The scorers and weights that the extension's own chart sets."""

READS_METRICS_EVERY = "200ms"
"""The picker's default, 50ms, would cost each engine 20 pages of metrics a second. It trusts
numbers that are at most two seconds old."""


def objects(
    fleet: ServingDeployment, images: Images, *, live: Object | None = None
) -> list[Object]:
    """All objects of the pool, in the order in which to apply them. `live` is the picker's
    Deployment as it exists."""
    return [
        *_access(fleet, images),
        _service(fleet),
        _pool(fleet),
        _deployment(fleet, images, live),
    ]


def _metadata(fleet: ServingDeployment, name: str | None = None) -> Object:
    return metadata(fleet, name or names.picker(fleet.name), names.PICKER_ROLE)


def _pool(fleet: ServingDeployment) -> Object:
    """Every pod of the pool computes whole answers, so a gateway without its picker may choose any
    of them: FailOpen."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "InferencePool",
        "metadata": _metadata(fleet, names.pool(fleet.name)),
        "spec": {
            "selector": {"matchLabels": names.selector(fleet.name, "colocated")},
            "targetPorts": [{"number": names.API_PORT}],
            "endpointPickerRef": {
                "kind": "Service",
                "name": names.picker(fleet.name),
                "port": {"number": names.PICKER_PORT},
                "failureMode": "FailOpen",
            },
        },
    }


def _access(fleet: ServingDeployment, images: Images) -> list[Object]:
    read = {"verbs": ["get", "list", "watch"]}
    rules = [
        {"apiGroups": [""], "resources": ["pods"], **read},
        {"apiGroups": [GROUP], "resources": ["inferencepools"], **read},
        {"apiGroups": [OBJECTIVES], "resources": ["inferenceobjectives"], **read},
    ]
    accounts = Callers.of(fleet, images).gateways
    return access(fleet, names.picker(fleet.name), names.PICKER_ROLE, rules, accounts)


def _service(fleet: ServingDeployment) -> Object:
    port = {
        "name": "grpc-ext-proc",
        "port": names.PICKER_PORT,
        "targetPort": names.PICKER_PORT,
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(fleet),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(fleet.name, names.PICKER_ROLE),
            "ports": [port],
        },
    }


def _deployment(fleet: ServingDeployment, images: Images, live: Object | None) -> Object:
    """One pod: two would each know half of the prompts that are in the engines' caches."""
    drain_s = whole_seconds(fleet.spec.drain.timeout.seconds)
    selector = names.selector(fleet.name, names.PICKER_ROLE)
    template: Object = {
        "metadata": {"labels": front_labels(fleet, names.PICKER_ROLE, images.picker, live)},
        "spec": {
            "serviceAccountName": names.picker(fleet.name),
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            # It is part of every request that it let through, until the answer ends.
            "terminationGracePeriodSeconds": drain_s + GRACE_MARGIN_S,
            "containers": [_container(fleet, images)],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(fleet),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": template,
        },
    }


def _container(fleet: ServingDeployment, images: Images) -> Object:
    probe = {"grpc": {"port": names.PICKER_HEALTH_PORT, "service": "inference-extension"}}
    return {
        "name": "picker",
        "image": images.picker,
        # The image's entry point is the program: its path differs between pickers.
        "args": _flags(fleet),
        "ports": [
            {"name": "grpc", "containerPort": names.PICKER_PORT},
            {"name": "health", "containerPort": names.PICKER_HEALTH_PORT},
            {"name": "metrics", "containerPort": names.PICKER_METRICS_PORT},
        ],
        "securityContext": container_security(),
        "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 2, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 3},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _flags(fleet: ServingDeployment) -> list[str]:
    """Flags of the reference picker. It serves TLS with a certificate of its own making, which
    gateways that support InferencePools expect and do not verify."""
    flags = {
        "--pool-name": names.pool(fleet.name),
        "--pool-namespace": fleet.namespace,
        "--config-text": json.dumps(PLUGINS),
        "--model-server-metrics-port": kind_of(fleet).metrics.port,
        "--kv-cache-usage-percentage-metric": "vllm:kv_cache_usage_perc",
        "--lora-info-metric": "",
        "--refresh-metrics-interval": READS_METRICS_EVERY,
        "--metrics-port": names.PICKER_METRICS_PORT,
        # To check who reads its metrics it would need a ClusterRole.
        "--metrics-endpoint-auth": "false",
        "--enable-pprof": "false",
        "--tracing": "false",
        "--zap-encoder": "json",
    }
    return [f"{flag}={value}" for flag, value in flags.items()]
