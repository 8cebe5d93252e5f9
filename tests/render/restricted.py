"""The restricted profile of Pod Security, checked on a pod's spec.

After https://kubernetes.io/docs/concepts/security/pod-security-standards/ ; the one-machine cluster
enforces the original.
"""

from typing import Any

ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def offences(pod: dict[str, Any]) -> list[str]:
    """What the pod does that the profile forbids; ours besides: a read-only root file system."""
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    security = pod.get("securityContext", {})
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("seccompProfile")
    if security.get("runAsNonRoot") is not True or security.get("runAsUser") == 0:
        found.append("runAsNonRoot")
    for volume in pod.get("volumes", []):
        if not set(volume) - {"name"} <= ALLOWED_VOLUMES:
            found.append(f"volume {volume['name']}")
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append(f"{container['name']} privileges")
        if own.get("capabilities") != {"drop": ["ALL"]}:
            found.append(f"{container['name']} capabilities")
        if own.get("readOnlyRootFilesystem") is not True:
            found.append(f"{container['name']} root file system")
        if any("hostPort" in port for port in container.get("ports", [])):
            found.append(f"{container['name']} host port")
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        if not mounted <= {volume["name"] for volume in pod.get("volumes", [])}:
            found.append(f"{container['name']} mounts what is no volume")
    return found
