"""What all children of a fleet have in common: metadata, and the restricted Pod Security profile.

Everything here is a function of values; `ports` applies the results. All children live in the
fleet's namespace and are owned by it, so that Kubernetes removes them with the fleet, with the
operator gone, too.
"""

from collections.abc import Mapping

from argosy_operator.api.v1alpha1 import API_VERSION, ServingDeployment
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import Object

UID = 65532  # the images' user; numeric, so that runAsNonRoot can be checked without the image

HUNG_GRACE_S = 10
"""From SIGTERM to SIGKILL for a process that hangs: in the time of a drain its requests, which
could be answered elsewhere, would wait in vain."""


GRACE_MARGIN_S = 10
"""Between a program's own drain timeout and SIGKILL, s."""


def owner_references(fleet: ServingDeployment) -> list[Object]:
    """One controller reference; blockOwnerDeletion would need rights on finalizers."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ServingDeployment",
            "name": fleet.name,
            "uid": fleet.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def metadata(fleet: ServingDeployment, name: str, role: str, revision: str | None = None) -> Object:
    """Metadata of a child. Labels and annotations of the fleet are not copied: Argo CD and Flux
    would take the children for their own."""
    return {
        "name": name,
        "namespace": fleet.namespace,
        "labels": names.labels(fleet.name, role, revision),
        "ownerReferences": owner_references(fleet),
    }


def scrape_annotations(port: int, path: str = "/metrics") -> dict[str, str]:
    """What Prometheus' customary pod discovery looks for."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": path,
    }


def pod_security() -> Object:
    """The pod's part of the restricted profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """The container's part of the restricted profile, with a read-only root file system."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def identity_env() -> list[Object]:
    """Who the pod is, by the downward API."""
    paths = {
        "POD_NAME": "metadata.name",
        "POD_IP": "status.podIP",
        "POD_NAMESPACE": "metadata.namespace",
    }
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ]


def http_probe(path: str, port: int, *, period_s: int, failures: int, timeout_s: int = 2) -> Object:
    """An HTTP probe by number of port; nothing but what differs from Kubernetes' defaults."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_s,
    }


def liveness_probe(path: str, port: int) -> Object:
    """For a page that fails when nothing progresses: such a process finishes no answer, and does
    not hear SIGTERM either. It gets `HUNG_GRACE_S` instead of the time that a drain may take."""
    probe = http_probe(path, port, period_s=10, failures=3, timeout_s=5)
    return {**probe, "terminationGracePeriodSeconds": HUNG_GRACE_S}


def spread(selector: dict[str, str]) -> list[Object]:
    """Pods on different nodes where that is possible, and anywhere where it is not."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
    ]


def disruption_budget(fleet: ServingDeployment, name: str, role: str) -> Object:
    """At most one pod of the role is evicted at a time; pods that are not ready never block."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(fleet, name, role),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(fleet.name, role)},
        },
    }


def command_line(flags: Mapping[str, object]) -> list[str]:
    """Flags and values as arguments; a flag whose value is None is left out."""
    return [text for flag, v in flags.items() if v is not None for text in (flag, str(v))]
