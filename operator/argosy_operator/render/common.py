"""What the children of a fleet have in common: metadata, pod security, images and templates.

All children are in the fleet's namespace and the fleet owns them. Kubernetes deletes them with the
fleet, even when the operator is uninstalled. Templates of users are laid over a rendered pod, the
farthest first: that of the operator's installation, fields of the spec such as engine.env, the
fleet's, and that of the role; `core/snapshot/template.py` says what they may not change. A fleet
keeps the images that it runs when the operator gets others (`spec.imageUpdates`), so that an
upgrade of the operator replaces no pod.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import API_VERSION, ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, seconds
from argosy_operator.core.snapshot.template import asked_of, installed_of, merge, resolve

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
PEERS_FILE = "peers.json"
PEERS_PATH = f"{MOUNTS}/{names.PEERS_VOLUME}/{PEERS_FILE}"
"""Of the file of callers in the engine's container."""
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


def note_inputs(deployment: Object, made_of: str, template: int) -> Object:
    """The rendered Deployment with a note of the digest of its inputs and of the number of its
    template."""
    meta = deployment["metadata"]
    notes = {names.INPUTS: made_of, names.TEMPLATE: str(template)}
    annotations = (meta.get("annotations") or {}) | notes
    return {**deployment, "metadata": {**meta, "annotations": annotations}}


def keep_template(rendered: Object, live: Object | None) -> Object:
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


REQUESTS: Mapping[str, Mapping[str, str]] = {
    names.ENGINE_CONTAINER: {"cpu": "100m", "memory": "256Mi"},
    names.GATEWAY_ROLE: {"cpu": "100m", "memory": "128Mi"},
    names.FETCH_ROLE: {"cpu": "100m", "memory": "128Mi"},
}
"""What a container requests of which nothing else is said: what it uses at rest. With any request a
pod is not BestEffort, so it is not the first that a node in need ends."""


def template_of(
    fleet: ServingDeployment, role: str, installed: PodTemplate, own: Object | None = None
) -> Object:
    """Return what is laid over the pods of a role; gateway and fetch are roles here. `own` is what
    other fields of the spec say of them."""
    far = merge(installed_of(installed, role), own or {})
    merged: Object = merge(far, asked_of(fleet.spec, role))
    return merged


def lay_over(pod: Object, template: Object, selector: Mapping[str, str]) -> Object:
    """Return the rendered pod with the template over it. `selector` are the labels of the pods that
    are spread, where a constraint does not say of which."""
    whole: Object = resolve(merge(pod, template))
    spec = whole["spec"]
    for spread in spec.get("topologySpreadConstraints") or ():
        if isinstance(spread, dict):
            spread.setdefault("labelSelector", {"matchLabels": dict(selector)})
    container = spec["containers"][0]
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    default = REQUESTS.get(container["name"], {})
    requests = {k: v for k, v in default.items() if k not in requests | limits} | requests
    parts = resources | {"requests": requests, "limits": limits}
    container["resources"] = {name: part for name, part in parts.items() if part}
    return whole


def installed_with(live: Object | None, now: PodTemplate) -> PodTemplate:
    """Return the template of the installation with which an engine Deployment was made.

    Neither another value of the chart nor a newer operator replaces engine pods: these come with
    the fleet's next revision. `live` is the Deployment as it exists, None for a new one, which gets
    the template of now. So does one whose annotation cannot be read.
    """
    if live is None:
        return now
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(names.INSTALLED)
    try:
        return PodTemplate() if text is None else PodTemplate.model_validate_json(text)
    except ValueError:
        return now


def installed_by_gateways(deployments: Iterable[Object], now: PodTemplate) -> PodTemplate:
    """Return the template of the installation as a fleet's gateways note it, `now` without any."""
    for deployment in deployments:
        role = (deployment["metadata"].get("labels") or {}).get(names.ROLE)
        if role == names.GATEWAY_ROLE:
            return installed_with(deployment, now)
    return now


def note_installed(installed: PodTemplate) -> dict[str, str]:
    """Return the annotation from which `installed_with` reads the template again."""
    body = installed.model_dump(exclude_defaults=True)
    if not body:
        return {}
    return {names.INSTALLED: json.dumps(body, sort_keys=True, separators=(",", ":"))}


@dataclass(frozen=True, slots=True)
class Images:
    """What the operator was installed with: images, as in a container's `image`.

    imagePullPolicy is not set: Kubernetes pulls always for the tag latest, else if not present.
    """

    engine: str
    """For fleets without spec.engine.image."""
    gateway: str
    template: PodTemplate = field(default_factory=PodTemplate)
    """What the fleets' own templates are laid over."""
    fetch: str = field(kw_only=True)
    """Of the Jobs that fetch models."""

    def having(self, others: Mapping[str, str]) -> "Images":
        """The same with `others`, by container."""
        return replace(
            self,
            engine=others.get("engine", self.engine),
            gateway=others.get("gateway", self.gateway),
        )


def kept_images(fleet: ServingDeployment, deployments: Iterable[Object], default: Images) -> Images:
    """Return the images that the fleet has or rolls out, `default` where it has none.

    The status has them since the fleet's first round; without it, such as after a restore, those of
    the newest of the fleet's `deployments` count.
    """
    said, chosen = fleet.status.images, dict[str, str]()
    newest_first = sorted(deployments, key=_made_at, reverse=True)
    for container in ("engine", "gateway"):
        images = filter(None, (_image(deployment, container) for deployment in newest_first))
        noted = getattr(said, container) if said is not None else None
        chosen[container] = noted or next(images, str(getattr(default, container)))
    return default.having(chosen)


def choose_images(
    fleet: ServingDeployment, deployments: Iterable[Object], default: Images, *, follows: bool
) -> tuple[Images, dict[str, str]]:
    """The images to render, and the operator's default ones that the fleet does not take.

    `follows`: it takes them now, whatever the spec says.
    """
    images = kept_images(fleet, deployments, default)
    others = newer_images(fleet, images, default)
    if follows or fleet.spec.image_updates == "Follow":
        return images.having(others), {}
    return images, others


def pod_images(fleet: ServingDeployment, images: Images) -> dict[str, str]:
    """The images that the fleet's pods are rendered with, by container."""
    return {"engine": fleet.spec.engine.image or images.engine, "gateway": images.gateway}


def newer_images(fleet: ServingDeployment, used: Images, default: Images) -> dict[str, str]:
    """The operator's default images that the fleet does not have, by container."""
    asked = ("gateway",) if fleet.spec.engine.image else ("engine", "gateway")
    others = {name: getattr(default, name) for name in asked}
    return {name: image for name, image in others.items() if image != getattr(used, name)}


def _image(deployment: Object, container: str) -> str:
    template = deployment["spec"].get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    return str(next((c.get("image", "") for c in containers if c["name"] == container), ""))


def _made_at(deployment: Object) -> tuple[float, str]:
    meta = deployment["metadata"]
    return seconds(meta.get("creationTimestamp")) or 0.0, str(meta["name"])
