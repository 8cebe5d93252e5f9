"""Settings laid over the template of a pod with one container.

What the operator renders stays: its labels, its volumes, its security. What is added cannot take
the pod out of the restricted profile of Pod Security, because no setting can express that.
"""

from collections.abc import Mapping
from typing import Any

from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1.pods.env import PodEnv
from argosy_operator.api.v1alpha1.pods.resources import PodResources
from argosy_operator.api.v1alpha1.pods.settings import PodSettings
from argosy_operator.api.v1alpha1.pods.volumes import Volume
from argosy_operator.core.snapshot.objects import Object

SHM = "shm"
_NAMED = {
    "priorityClassName": "priority_class_name",
    "schedulerName": "scheduler_name",
    "runtimeClassName": "runtime_class_name",
    "serviceAccountName": "service_account_name",
}


def lay_over(template: Object, settings: PodSettings, selector: Mapping[str, str]) -> None:
    """Change the template in place; `selector` are the labels of the pods that are spread."""
    meta, pod = template["metadata"], template["spec"]
    (container,) = pod["containers"]
    meta["labels"] = settings.labels | meta["labels"]
    if settings.annotations:
        meta["annotations"] = settings.annotations | (meta.get("annotations") or {})
    volumes, mounts = pod.setdefault("volumes", []), container.setdefault("volumeMounts", [])
    _place(pod, settings, selector)
    _secure(pod, container, settings)
    for env in settings.env:
        _put(container.setdefault("env", []), _env(env), "name")
    if settings.env_from:
        container["envFrom"] = [dump(item) for item in settings.env_from]
    if settings.shared_memory is not None:
        memory = {"medium": "Memory", "sizeLimit": str(settings.shared_memory)}
        _put(volumes, {"name": SHM, "emptyDir": memory}, "name")
        _put(mounts, {"name": SHM, "mountPath": "/dev/shm"}, "name")  # noqa: S108
    for volume in settings.volumes:
        volumes.append({"name": volume.name, **_source(volume)})
        mounts.append(_mount(volume))
    _ask(pod, container, settings.resources)
    if not volumes:
        del pod["volumes"], container["volumeMounts"]


def _ask(pod: Object, container: Object, asked: PodResources) -> None:
    """Ask for resources; empty parts are left out."""
    parts: Object = {
        "requests": {name: str(amount) for name, amount in asked.requests.items()},
        "limits": {name: str(amount) for name, amount in asked.limits.items()},
        "claims": [_given(dump(claim), "name", "request") for claim in asked.claims],
    }
    container["resources"] = {name: part for name, part in parts.items() if part}
    claims = ("name", "resourceClaimName", "resourceClaimTemplateName")
    if asked.claims:
        pod["resourceClaims"] = [_given(dump(claim), *claims) for claim in asked.claims]


def _place(pod: Object, settings: PodSettings, selector: Mapping[str, str]) -> None:
    if settings.node_selector:
        pod["nodeSelector"] = settings.node_selector | pod.get("nodeSelector", {})
    own = pod.get("tolerations", [])
    asked = [t for t in map(dump, settings.tolerations) if t not in own]
    if asked:
        pod["tolerations"] = own + asked
    if settings.affinity:
        pod["affinity"] = settings.affinity
    if settings.topology_spread:
        pod["topologySpreadConstraints"] = [
            dump(spread) | {"labelSelector": {"matchLabels": dict(selector)}}
            for spread in settings.topology_spread
        ]
    for field, name in _NAMED.items():
        if getattr(settings, name) is not None:
            pod[field] = getattr(settings, name)
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": s.name} for s in settings.image_pull_secrets]


def _secure(pod: Object, container: Object, settings: PodSettings) -> None:
    if settings.user_ids == "Assigned":
        kept = pod["securityContext"].items()
        pod["securityContext"] = {k: v for k, v in kept if k not in ("runAsUser", "runAsGroup")}
    if settings.root_filesystem == "Writable":
        container["securityContext"]["readOnlyRootFilesystem"] = False


def _put(items: list[Any], new: Object, key: str) -> None:
    """In the place of the item with the same key, or at the end."""
    for at, item in enumerate(items):
        if item[key] == new[key]:
            items[at] = new
            return
    items.append(new)


def _env(env: PodEnv) -> Object:
    if env.value_from is not None:
        return {"name": env.name, "valueFrom": dump(env.value_from)}
    return {"name": env.name, "value": env.value or ""}


def _source(volume: Volume) -> Object:
    """The volume's source as a pod has it. Files of Secrets and ConfigMaps are for the pod's user,
    who may have any id."""
    if volume.empty_dir is not None:
        medium = {"medium": "Memory"} if volume.empty_dir.medium == "Memory" else {}
        limit = volume.empty_dir.size_limit
        return {"emptyDir": medium | ({} if limit is None else {"sizeLimit": str(limit)})}
    if volume.persistent_volume_claim is not None:
        claim = dump(volume.persistent_volume_claim)
        return {"persistentVolumeClaim": claim | ({"readOnly": True} if volume.read_only else {})}
    if volume.config_map is not None:
        return {"configMap": dump(volume.config_map)}
    if volume.secret is not None:
        return {"secret": dump(volume.secret)}
    assert volume.csi is not None
    csi = {key: value for key, value in dump(volume.csi).items() if value}
    return {"csi": csi | ({"readOnly": True} if volume.read_only else {})}


def _mount(volume: Volume) -> Object:
    mount: Object = {"name": volume.name, "mountPath": volume.mount_path}
    if volume.sub_path is not None:
        mount["subPath"] = volume.sub_path
    read_only = volume.config_map is not None or volume.secret is not None
    return mount | ({"readOnly": True} if volume.read_only or read_only else {})


def _given(item: Mapping[str, Any], *names: str) -> Object:
    return {name: item[name] for name in names if name in item}
