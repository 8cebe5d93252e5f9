"""The templates that users write over Argosy's pods: merged for each kind of pod, and checked.

`spec.template` is of all pods. Over it comes the template of the pod's own: of its role, of
`spec.routing` for gateways, of `spec.model.fetch` for the Job that fetches the model. What the
promises of Argosy rest on stays as it is rendered: a template that changes it is used without that
field, and `refusals` name it. What Kubernetes refuses comes back from the API server.

`merge` is Kubernetes' strategic merge. Maps are merged by key, and lists whose items have a key are
merged by it: an item with a known key is merged into the one that is there, and others follow it.
All other lists are replaced. `null` deletes a field. `$patch: replace` in a map, or as an item of a
list, replaces it whole; `$patch: delete` in an item deletes that item. Two lists differ from
kubectl's merge, because the original would not do what was meant. A variable or a volume with a new
source replaces the old one: it can have only one. Tolerations are added.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeploymentSpec
from argosy_operator.api.v1alpha1.engine import RENDERED_ENV
from argosy_operator.api.v1alpha1.roles import NVIDIA
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.names import (
    CONTAINERS,
    ENGINE_CONTAINER,
    FETCH_ROLE,
    GATEWAY_ROLE,
)
from argosy_operator.core.snapshot.objects import Object, Place

_OWN = {
    "labels": ("serving.argosy.dev/", "app.kubernetes.io/", names.TEMPLATE_HASH),
    "annotations": ("serving.argosy.dev/", "prometheus.io/", names.DELETION_COST),
}
"""What keys begin with that the operator or Kubernetes writes."""
OWN_PORTS = (
    *(names.API_PORT, names.ADMIN_PORT, names.KV_PORT),
    *(names.GATEWAY_PORT, names.GATEWAY_ADMIN_PORT),
)
OWN_VOLUMES = (
    *("role", "weights", names.PEERS_VOLUME, names.TOKEN_VOLUME, names.TLS_VOLUME),
    *(f"adapters-{number}" for number in range(32)),
)
"""Volumes whose content Argosy chooses. A template may change the others, tmp and shm."""
OWN_PATHS = ("/models", "/etc/argosy", "/var/run/argosy")
"""Where these are mounted. Nothing else is mounted there or below."""
_OWN_FOLDERS = tuple(f"{path}/" for path in OWN_PATHS)

_PROGRAM = "Argosy writes how its container is started"
_PROBES = "Argosy's probes say when a pod takes requests and when it hangs: leave it out"
_OF_CONTAINER: Mapping[str, str] = {
    "command": f"{_PROGRAM}: write arguments of the engine into spec.engine.args",
    "args": f"{_PROGRAM}: write arguments of the engine into spec.engine.args",
    "startupProbe": _PROBES,
    "readinessProbe": _PROBES,
    "livenessProbe": _PROBES,
    "lifecycle": "pods leave as spec.drain says, which a hook would delay: leave it out",
    "terminationMessagePath": "Argosy reads there why its container ended: leave it out",
    "terminationMessagePolicy": "Argosy reads there why its container ended: leave it out",
}
_IMAGES: Mapping[str, str] = {
    ENGINE_CONTAINER: "write spec.engine.image, whose change makes a new revision",
    GATEWAY_ROLE: "it is a value of the operator's chart, images.gateway",
    FETCH_ROLE: "it is a value of the operator's chart, images.fetch",
}
_OF_POD: Mapping[str, str] = {
    "terminationGracePeriodSeconds": "it follows from the time of a drain: write "
    "spec.drain.timeout",
    "restartPolicy": "Argosy's pods are started again when they end: leave it out",
}
_OF_PODS: Mapping[tuple[tuple[str, ...], str], str] = {
    (
        (GATEWAY_ROLE,),
        "automountServiceAccountToken",
    ): "gateways find the fleet's pods with that token: leave it out",
    ((FETCH_ROLE,), "serviceAccountName"): "write spec.model.fetch.serviceAccountName",
}
_FOUND_BY = (
    "Argosy and Kubernetes find pods and their metrics by what they write themselves: choose a "
    "domain of your own"
)
_Path = tuple[Any, ...]
"""Of a part below the template. Items of lists stand with the value of their key."""
_PLACING = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "schedulerName",
    "imagePullSecrets",
    "securityContext",
)
"""Fields of an engine's pod that the Job's pod has, too: a claim may be of one zone, and its files
are for their user."""

_NOT_OF_JOB = ("serviceAccountName", "resourceClaims", "runtimeClassName")
"""Fields of the template of all pods that the Job's pod does not have: it uses no device, and its
account is that of spec.model.fetch."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field of a template that is not used."""

    place: Place
    """The field, as the user wrote it."""
    sentence: str
    """Why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One template, and what it may not change."""

    place: Place
    template: PodTemplate
    of: tuple[str, ...]
    """Those of `CONTAINERS` that its pods have."""
    gpus: frozenset[str] = frozenset()
    """Resources by which nodes offer GPUs."""
    labels: frozenset[str] = frozenset()
    """Labels of nodes by which the role's GPU types are told apart."""


def asked_of(spec: ServingDeploymentSpec, role: str) -> Object:
    """Return what the fleet's templates ask of the pods of a role; gateway and fetch are roles
    here. An empty map is nothing."""
    layers = _layers(spec)
    fleet = _only(_clean(layers[""])[0], role)
    if role == GATEWAY_ROLE:
        return _joined(fleet, _clean(layers[GATEWAY_ROLE])[0])
    if role == FETCH_ROLE:
        first, _ = next(spec.active_roles())
        engine = _clean(layers[first])[0].get("spec", {})
        placing = {"spec": {name: engine[name] for name in _PLACING if name in engine}}
        return _joined(_joined(fleet, placing), _clean(layers[FETCH_ROLE])[0])
    # A pod that may change its role has one template.
    own = "prefill" if spec.flips_roles else role
    return _joined(fleet, _clean(layers[own])[0])


def installed_of(template: PodTemplate, role: str) -> Object:
    """Return what the operator's installation asks of the pods of a role."""
    return _only(_clean(_Layer((), template, CONTAINERS, frozenset({NVIDIA})))[0], role)


def refusals_of_installed(template: PodTemplate) -> Iterator[Refusal]:
    """Yield what is not used of the template of the operator's installation."""
    yield from _clean(_Layer(("podTemplate",), template, CONTAINERS, frozenset({NVIDIA})))[1]


def refusals(spec: ServingDeploymentSpec) -> Iterator[Refusal]:
    """Yield what is not used of the fleet's templates."""
    for layer in _layers(spec).values():
        yield from _clean(layer)[1]
    prefill, decode = spec.roles.prefill, spec.roles.decode
    if spec.flips_roles and prefill.template != decode.template:
        yield Refusal(
            ("spec", "roles", "decode", "template"),
            "a pod that changes its role keeps its template, so that of prefill is used for both: "
            "write the same for decode, or write spec.template",
        )
    for role, settings in spec.active_roles():
        if settings.resources.gpu_from == "Claims" and not _claims(asked_of(spec, role)):
            yield Refusal(
                ("spec", "roles", role, "resources", "gpuFrom"),
                "no template of the role has resourceClaims, which bring the GPUs: write them into "
                f"spec.roles.{role}.template, or write gpuFrom: Resource",
            )


def account_of(asked: Object) -> str | None:
    """Return the ServiceAccount that a template names."""
    account = asked.get("spec", {}).get("serviceAccountName")
    return account if isinstance(account, str) and account else None


def _claims(asked: Object) -> object:
    return asked.get("spec", {}).get("resourceClaims")


def _layers(spec: ServingDeploymentSpec) -> dict[str, _Layer]:
    """The fleet's templates by role; "" is the one of all pods."""
    nothing = PodTemplate()
    found: dict[str, _Layer] = {}
    gpus, labels = frozenset[str](), frozenset[str]()
    for name in names.ENGINE_ROLES:
        role = spec.role(name)
        own = {NVIDIA, role.resources.gpu_resource or NVIDIA}
        of_nodes = frozenset(label for kind in spec.types_of(name) for label in kind.node_selector)
        place = ("spec", "roles", name, "template")
        template = role.template or nothing
        found[name] = _Layer(place, template, (ENGINE_CONTAINER,), frozenset(own), of_nodes)
        if name in dict(spec.active_roles()):
            gpus, labels = gpus | own, labels | of_nodes
    fetch = spec.model.fetch
    return {
        "": _Layer(("spec", "template"), spec.template or nothing, CONTAINERS, gpus, labels),
        **found,
        GATEWAY_ROLE: _Layer(
            ("spec", "routing", "template"), spec.routing.template or nothing, (GATEWAY_ROLE,)
        ),
        FETCH_ROLE: _Layer(
            ("spec", "model", "fetch", "template"),
            (fetch.template if fetch is not None else None) or nothing,
            (FETCH_ROLE,),
        ),
    }


def _joined(far: Object, near: Object) -> Object:
    merged: Object = merge(far, near)
    return {key: part for key, part in merged.items() if part}


def _only(template: Object, role: str) -> Object:
    """The template of all pods as the pods of a role have it."""
    spec = template.get("spec", {})
    own = role if role in CONTAINERS else ENGINE_CONTAINER
    others = [name for name in CONTAINERS if name != own]
    items = [item for item in spec.get("containers", ()) if item["name"] not in others]
    kept = {key: part for key, part in spec.items() if key != "containers"}
    if role == FETCH_ROLE:  # a sidecar would keep the Job from ending
        items = [item for item in items if item["name"] == own]
        kept = {key: part for key, part in kept.items() if key not in _NOT_OF_JOB}
    whole = {**template, "spec": kept | ({"containers": items} if items else {})}
    return {key: part for key, part in whole.items() if part}


def _clean(layer: _Layer) -> tuple[Object, list[Refusal]]:
    """The template without what it may not change, and that."""
    found = list[Refusal]()
    written = {"metadata": layer.template.metadata, "spec": layer.template.spec}
    return _walk(layer, (), written, layer.place, found), found


def _walk(layer: _Layer, path: _Path, part: Any, place: Place, found: list[Refusal]) -> Any:
    """A part that holds something of Argosy's, without what is refused of it and without what asks
    for nothing."""
    field = path[-1] if path else ""
    listed = field in MERGE_KEYS or field in SETS
    items = enumerate(part) if listed else part.items()
    kept = list[tuple[Any, Any]]()
    for at, value in items:
        here = (*place, at)
        if at == PATCH or (listed and value == {PATCH: "replace"}):
            found.append(Refusal(here, _TAKES_AWAY))
            continue
        below = (*path, value.get(MERGE_KEYS.get(field, "")) if listed else at)
        why = _refused(layer, below) or _misshapen(below, value)
        if why:
            found.append(Refusal(here, why))
            continue
        if _holds_ours(below):
            value = _walk(layer, below, value, here, found)
        if field in ("requests", "limits") and isinstance(value, int | float):
            value = str(value)
        if value not in ({}, []) and not (field == "containers" and set(value) == {"name"}):
            kept.append((at, value))
    return [value for _, value in kept] if listed else dict(kept)


_TAKES_AWAY = "it would take away what Argosy writes: leave it out"


def _refused(layer: _Layer, path: _Path) -> str | None:
    """Why Argosy does not use this part, and what to write instead."""
    match path:
        case ("metadata", key) if key not in ("labels", "annotations"):
            return "pods take labels and annotations of a template alone: leave it out"
        case ("metadata", key, str(name)) if name.startswith(_OWN[key]):
            return _FOUND_BY
        case ("spec", str(key)) if key in _OF_POD:
            return _OF_POD[key]
        case ("spec", str(key)) if (layer.of, key) in _OF_PODS:
            return _OF_PODS[layer.of, key]
        case ("spec", "volumes", name) if name in OWN_VOLUMES:
            return "Argosy chooses what is in this volume: choose another name"
        case ("spec", "nodeSelector", label) if label in layer.labels:
            return "gpuTypes choose by this label: write it there"
        case ("spec", "containers", name) if name in CONTAINERS and name not in layer.of:
            return f"these pods have no container {name}: write it into the template of its pods"
        case ("spec", "containers", name, *below) if name in CONTAINERS:
            return _refused_of_container(layer, name, tuple(below))
        case _:
            return None


def _refused_of_container(layer: _Layer, name: str, path: _Path) -> str | None:
    match path:
        case ("image",):
            return _IMAGES[name]
        case (str(key),) if key in _OF_CONTAINER:
            return _OF_CONTAINER[key]
        case ("env", variable) if variable in RENDERED_ENV:
            return "Argosy writes this variable: choose another name"
        case ("ports", port) if port in OWN_PORTS:
            return "Argosy's programs listen on this port, and it names it: choose another one"
        case ("volumeMounts", str(mount)) if f"{mount}/".startswith(_OWN_FOLDERS):
            return "Argosy mounts what its programs read there: choose another path"
        case ("resources", "requests" | "limits", resource) if resource in layer.gpus:
            return (
                "GPUs are counted by the role: write their number into its resources.gpu, and "
                f"their name, if it is another than {NVIDIA}, into its resources.gpuResource"
            )
        case _:
            return None


def _holds_ours(path: _Path) -> bool:
    """Whether something below the part is Argosy's."""
    match path:
        case () | ("metadata",) | ("metadata", _) | ("spec",):
            return True
        case ("spec", key):
            return key in _LISTS
        case ("spec", "containers", name, *below) if name in CONTAINERS:
            return tuple(below) in _PARTS
        case _:
            return False


_LISTS = ("containers", "volumes", "nodeSelector", "tolerations", "topologySpreadConstraints")
_PARTS = (
    (),
    ("env",),
    ("ports",),
    ("volumeMounts",),
    ("resources",),
    ("resources", "requests"),
    ("resources", "limits"),
)
"""Of our container: what holds something of Argosy's."""


def _misshapen(path: _Path, value: Any) -> str | None:
    """Why a part that holds something of Argosy's cannot be merged."""
    if not _holds_ours(path):
        return None
    if value is None:
        return _TAKES_AWAY
    key = MERGE_KEYS.get(path[-1])
    if key is None and path[-1] not in SETS:
        return None if isinstance(value, dict) else "write a map of fields"
    if isinstance(value, list) and all(isinstance(i, dict) and _is_item(i, key) for i in value):
        return None
    return f"write a list of items, each with its {key}" if key else "write a list of items"


def _is_item(item: Object, key: str | None) -> bool:
    return key is None or isinstance(item.get(key), str | int) or item == {PATCH: "replace"}


PATCH = "$patch"
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "claims": "name",
}
"""The key of an item, by the name of the list."""
_UNIONS = ("env", "volumes")
"""Lists whose items have one of several sources."""
SETS = ("tolerations",)
"""Lists that are sets of whole items."""


def merge(far: Any, near: Any, field: str = "") -> Any:
    """Return `near` merged over `far`.

    What it says of deletions stays in it, so that two patches can be merged before they are laid
    over an object. `resolve` carries the deletions out.
    """
    deleted = far is None or (isinstance(far, dict) and far.get(PATCH) == "delete")
    if isinstance(near, dict):
        if PATCH in near:
            return near
        base = far if isinstance(far, dict) and not deleted else {}
        whole = base | {k: merge(base.get(k, _empty(v)), v, k) for k, v in near.items()}
        return whole | {PATCH: "replace"} if deleted else whole
    if isinstance(near, list) and (field in MERGE_KEYS or field in SETS):
        merged = _merge_lists(far if isinstance(far, list) else [], near, field)
        return [{PATCH: "replace"}, *merged] if deleted else merged
    return near


def _empty(near: Any) -> Any:
    return type(near)() if isinstance(near, dict | list) else near


def resolve(value: Any) -> Any:
    """Return the object without deleted fields and without the words that delete them."""
    if isinstance(value, dict):
        return {k: resolve(v) for k, v in value.items() if k != PATCH and v is not None}
    if isinstance(value, list):
        kept = (item for item in value if not (isinstance(item, dict) and _is_gone(item)))
        return [resolve(item) for item in kept]
    return value


def _is_gone(item: dict[str, Any]) -> bool:
    return item.get(PATCH) == "delete" or item == {PATCH: "replace"}


def _merge_lists(far: list[Any], near: list[Any], field: str) -> list[Any]:
    if {PATCH: "replace"} in near:
        return near
    if field in SETS:
        return [*far, *(item for item in near if item not in far)]
    key = MERGE_KEYS[field]
    merged = list(far)
    for item in near:
        at = next((i for i, one in enumerate(merged) if _are_same(one, item, key)), None)
        if at is None:
            merged.append(merge(_empty(item), item))
        elif field in _UNIONS and not _keeps_source(merged[at], item, key):
            merged[at] = {**item, PATCH: "replace"} if PATCH not in item else item
        else:
            merged[at] = merge(merged[at], item)
    return merged


def _are_same(one: Any, other: Any, key: str) -> bool:
    both = isinstance(one, dict) and isinstance(other, dict)
    return both and key in one and one[key] == other.get(key)


def _keeps_source(far: dict[str, Any], near: dict[str, Any], key: str) -> bool:
    """Whether every field of `near` is one that `far` has, too, or takes one away."""
    return PATCH in near or all(k in far or v is None for k, v in near.items() if k != key)
