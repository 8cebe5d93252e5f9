"""What the children of a fleet have in common: metadata, and the restricted Pod Security profile.

All children are in the fleet's namespace and the fleet owns them. Kubernetes deletes them with the
fleet, even when the operator is uninstalled.
"""

from collections.abc import Iterable, Mapping

from argosy_operator.api.v1alpha1 import API_VERSION, ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object

UID = 65532
"""User of the images. Numeric, so that the kubelet can check runAsNonRoot without the image."""

HUNG_GRACE_S = 10
"""From SIGTERM to SIGKILL for a process that hangs, s. Shorter than a drain: its requests get no
answer here and are sent to another pod once it is gone."""

GRACE_MARGIN_S = 10
"""Between a program's own drain timeout and SIGKILL, s."""


DEREGISTER_S = 5
"""Between a pod's deletion and SIGTERM, s: what sends it requests needs a moment to follow."""

MOUNTS = "/var/run/argosy"
TOKEN_FILE = f"{MOUNTS}/{names.TOKEN_VOLUME}/token"
TLS_DIR = f"{MOUNTS}/{names.TLS_VOLUME}"
TOKEN_S = 24 * 3600
"""How long a token counts, s. The kubelet renews it after 80 % of it; the control plane may be away
for the rest."""


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
    would treat the children as their own objects."""
    return {
        "name": name,
        "namespace": fleet.namespace,
        "labels": names.labels(fleet.name, role, revision),
        "ownerReferences": owner_references(fleet),
    }


def fleet_metadata(fleet: ServingDeployment, name: str) -> Object:
    """Metadata of a child that belongs to several roles."""
    labels = names.recommended(fleet.name) | {names.FLEET: fleet.name}
    return {
        "name": name,
        "namespace": fleet.namespace,
        "labels": labels,
        "ownerReferences": owner_references(fleet),
    }


def access(
    fleet: ServingDeployment, name: str, role: str, rules: list[Object], accounts: Iterable[str]
) -> list[Object]:
    """A ServiceAccount, and the rights that it and other `accounts` have in the namespace."""
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(fleet, name, role)},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": metadata(fleet, name, role),
            "rules": rules,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(fleet, name, role),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": account, "namespace": fleet.namespace}
                for account in sorted({name, *accounts})
            ],
        },
    ]


def token_volume(fleet: ServingDeployment) -> Object:
    """The pod's own token for calls of engines; the kubelet renews it."""
    token = {
        "audience": names.audience(fleet.namespace, fleet.name),
        "expirationSeconds": TOKEN_S,
        "path": "token",
    }
    return {
        "name": names.TOKEN_VOLUME,
        "projected": {"sources": [{"serviceAccountToken": token}]},
    }


def tls_volume(secret: str) -> Object:
    """The certificate; only these keys, so that no other Secret can be mounted by its name."""
    items = [{"key": key, "path": key} for key in ("tls.crt", "tls.key", "ca.crt")]
    return {"name": names.TLS_VOLUME, "secret": {"secretName": secret, "items": items}}


def read_only_mount(volume: str) -> Object:
    """Where a volume of ours is mounted."""
    return {"name": volume, "mountPath": f"{MOUNTS}/{volume}", "readOnly": True}


def scrape_annotations(port: int, path: str = "/metrics") -> dict[str, str]:
    """The annotations that the usual pod discovery of Prometheus reads."""
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
    """Name, address and namespace of the pod, from the downward API."""
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
    """An HTTP probe. Fields with Kubernetes' default are left out."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_s,
    }


def liveness_probe(path: str, port: int) -> Object:
    """For a page that fails when the process hangs.

    A process that hangs finishes no answer and ignores SIGTERM, so it gets `HUNG_GRACE_S` instead
    of the time of a drain.
    """
    probe = http_probe(path, port, period_s=10, failures=3, timeout_s=5)
    return {**probe, "terminationGracePeriodSeconds": HUNG_GRACE_S}


def spread(selector: dict[str, str]) -> list[Object]:
    """Prefer different nodes for these pods; never leave one unscheduled for that."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
    ]


def disruption_budget(fleet: ServingDeployment, name: str, role: str) -> Object:
    """Evict at most one pod of the role at a time. Pods that are not ready never block."""
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


# A newer operator may render pods otherwise, and replaces none for it. Each Deployment notes what
# its pod template was made from (`names.INPUTS`), and by which number of the rendering code
# (`names.TEMPLATE`). Where only the number differs, the template stands, whichever is newer.


def noted(deployment: Object, made_of: str, template: int) -> Object:
    """The rendered Deployment with a note of the digest of its inputs and of the number of its
    template."""
    meta = deployment["metadata"]
    notes = {names.INPUTS: made_of, names.TEMPLATE: str(template)}
    annotations = (meta.get("annotations") or {}) | notes
    return {**deployment, "metadata": {**meta, "annotations": annotations}}


def standing(rendered: Object, live: Object | None) -> Object:
    """What to apply: `rendered`, with the pod template of `live` if another number of the rendering
    code made it from the same inputs."""
    if live is None or _note(live, names.INPUTS) != _note(rendered, names.INPUTS):
        return rendered
    number = _note(live, names.TEMPLATE)
    if number == _note(rendered, names.TEMPLATE):
        return rendered
    meta = rendered["metadata"]
    annotations = meta["annotations"] | {names.TEMPLATE: number}
    spec = {**rendered["spec"], "template": live["spec"]["template"]}
    return {**rendered, "metadata": {**meta, "annotations": annotations}, "spec": spec}


def _note(deployment: Object, name: str) -> str | None:
    return (deployment["metadata"].get("annotations") or {}).get(name)
