"""A fleet's replicas and GPUs as its pods show them, apart from what the operator says of itself.

Pods carry what the kubelet and the scheduler wrote: readiness, node, restarts. The status of a
ServingDeployment is written by the product that the demo judges, so no figure is read from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from local.demo.kube import Kube

FLEET, ROLE = "serving.argosy.dev/fleet", "serving.argosy.dev/role"
GPU = "nvidia.com/gpu"
ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Replicas:
    """One role at one moment."""

    ready: int = 0
    """Pods whose condition Ready is True and that are not being deleted."""
    desired: int = 0
    """Sum of `spec.replicas` of the role's Deployments."""
    present: int = 0
    """Pods that have not ended, in whatever state."""


@dataclass(frozen=True, slots=True)
class Pods:
    """A fleet's pods at one moment."""

    roles: dict[str, Replicas]
    """By role."""
    gpus: int
    """GPUs that pods on a node hold until they have ended, draining ones included."""
    names: dict[str, frozenset[str]]
    """Names of the pods by role, gateways included."""
    restarts: dict[str, int]
    """Container restarts of each pod, by its uid."""


def items(kube: Kube, path: str, **query: str) -> list[dict[str, Any]]:
    """The objects of a list; empty if its kind is not there."""
    found = kube.get(path, **query)
    return [] if found is None else list(found["items"])


def look(kube: Kube, namespace: str, fleet: str) -> Pods:
    """Ask the API server for the fleet's pods and Deployments."""
    label = f"{FLEET}={fleet}"
    pods = items(kube, f"/api/v1/namespaces/{namespace}/pods", labelSelector=label)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    return count(pods, items(kube, path, labelSelector=label))


def count(pods: list[dict[str, Any]], deployments: list[dict[str, Any]]) -> Pods:
    """Count Pod and Deployment objects as the API server sends them."""
    roles = {
        role: Replicas(
            ready=sum(is_ready(pod) for pod in _of(role, pods)),
            desired=sum(d["spec"].get("replicas", 1) for d in _of(role, deployments)),
            present=sum(not _ended(pod) for pod in _of(role, pods)),
        )
        for role in ROLES
    }
    names: dict[str, set[str]] = {}
    for pod in pods:
        names.setdefault(_role(pod), set()).add(pod["metadata"]["name"])
    return Pods(
        roles,
        gpus=sum(_gpus(pod) for pod in pods),
        names={role: frozenset(found) for role, found in names.items()},
        restarts=restarts(pods),
    )


def restarts(pods: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Container restarts of each pod, by its uid."""
    return {
        pod["metadata"]["uid"]: sum(
            state["restartCount"] for state in pod.get("status", {}).get("containerStatuses", ())
        )
        for pod in pods
    }


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether the pod is Ready and is not being deleted."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"] and not _ended(pod)


def _of(role: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if _role(one) == role]


def _role(found: dict[str, Any]) -> str:
    return str(found["metadata"].get("labels", {}).get(ROLE, ""))


def _ended(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _gpus(pod: dict[str, Any]) -> int:
    if _ended(pod) or not pod["spec"].get("nodeName"):
        return 0
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return sum(int(limit.get(GPU, 0)) for limit in limits)
