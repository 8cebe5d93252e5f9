"""What `kubectl get` prints of each kind, and where the scale subresource finds its numbers."""

from typing import Any

_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _column(name: str, path: str, description: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description}


def _wide(name: str, path: str, description: str) -> dict[str, Any]:
    """A column of `-o wide` only."""
    return _column(name, path, description) | {"priority": 1}


FLEET_COLUMNS = [
    _column("Mode", ".status.mode", "Mode in effect"),
    _column("P", ".status.columns.prefill", "Prefill or colocated pods serving/desired"),
    _column("D", ".status.columns.decode", "Decode pods serving/desired"),
    _column("GPUs", ".status.columns.gpus", "GPUs held"),
    _column("SLO", ".status.columns.slo", "Met, AtRisk, Missed, Idle, Unknown or None"),
    _column("Attain", ".status.goodput.attainment", "Share of requests that met both targets"),
    _column("TTFT90", ".status.goodput.ttftP90", "90th percentile of time to first token"),
    _column("TPOT90", ".status.goodput.tpotP90", "90th percentile of time per output token"),
    _column("Reason", ".status.columns.reason", "What matters most now"),
    _AGE,
    _wide("Model", ".spec.model.uri", "The weights"),
    _wide("Revision", ".status.revision", "The revision that the spec asks for"),
    _wide("Policy", ".spec.autoscaling.policy", "Who decides the number of replicas"),
    _wide("URL", ".status.url", "The address of the OpenAI API inside the cluster"),
]
ROLE_COLUMNS = [
    _column("Fleet", ".spec.fleet", "The fleet"),
    _column("Role", ".spec.role", "The role"),
    _column("Wanted", ".spec.replicas", "Pods that the role should have", "integer"),
    _column("Pods", ".status.replicas", "Pods of the role", "integer"),
    _column("Ready", ".status.readyReplicas", "Ready pods of the role", "integer"),
    _column(
        "Bounds",
        '.status.conditions[?(@.type=="ScalingLimited")].reason',
        "AsSpecified, or why the role has another number of pods than it asks for",
    ),
    _AGE,
]
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
