"""The engine Deployment of one role and revision; its pod template never changes.

What is in the template is either in `core.snapshot.snapshot.fields` or constant; the one exception
is the drain timeout, which stays what it was when the Deployment was created (`drain_timeout_s`).
A change of the template here or in `engines.py` needs a new number in
`core.snapshot.snapshot.TEMPLATE`.
"""

import posixpath
from math import ceil

from argosy_operator.api.v1alpha1.roles import NVIDIA
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.render.common import (
    GRACE_MARGIN_S,
    container_security,
    http_probe,
    identity_env,
    lay_over,
    liveness_probe,
    metadata,
    note_installed,
    pod_security,
    read_only_mount,
    scrape_annotations,
    spread,
    template_of,
    tls_volume,
    token_volume,
)
from argosy_operator.render.engines import (
    ADAPTERS,
    ROLE_FILE,
    WEIGHTS,
    EngineKind,
    EnginePod,
    kind_of,
)

USER = "argosy"
"""The user's name for programs that ask for it. Nothing depends on which name it is."""
ENGINE = "engine"
"""The component of engine pods."""
LOAD_TIMEOUT_S = 1800
"""Loading weights over a slow network may take this long; then the container is restarted."""


def deployment(pod: EnginePod, replicas: int | None = None) -> Object:
    """The Deployment of the pod's role and revision.

    `replicas` is a number when the Deployment is created and None when it is applied later: an
    apply that carried it would fight with /scale.
    """
    kind = kind_of(pod.fleet)
    fleet, role, revision = pod.fleet, pod.role, pod.revision
    meta = metadata(fleet, names.engine_deployment(fleet.name, role, revision), role, revision)
    meta["annotations"] = {names.DRAIN_TIMEOUT: str(pod.drain_s)}
    meta["annotations"] |= note_installed(pod.installed)
    selector = names.selector(fleet.name, role, revision)
    template = {
        "metadata": {"labels": _labels(pod), "annotations": _annotations(pod, kind)},
        "spec": _pod_spec(pod, kind),
    }
    over = template_of(fleet, role, pod.installed, _fields_of_spec(pod))
    spec: Object = {
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": LOAD_TIMEOUT_S + 300,
        "selector": {"matchLabels": selector},
        "template": lay_over(template, over, selector),
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def _labels(pod: EnginePod) -> dict[str, str]:
    fleet = pod.fleet.name
    labels = names.pod_labels(fleet, pod.role, pod.revision)
    if pod.gpu_type:
        labels[names.GPU_TYPE] = pod.gpu_type.name
    return labels | names.recommended(fleet, ENGINE)  # not the role, which a flip changes


def _annotations(pod: EnginePod, kind: EngineKind) -> dict[str, str]:
    found = scrape_annotations(kind.metrics.port, kind.metrics.path)
    if pod.certificate:
        found[names.TLS] = "true"
    if kind.keyed:
        found[names.ENGINE] = pod.fleet.spec.engine.type
    if pod.gpu_resource != NVIDIA:
        found[names.GPU_RESOURCE] = pod.gpu_resource
    if pod.gpus > 0 and pod.claims_gpus:
        found[names.GPUS_CLAIMED] = str(pod.gpus)
    return found


def _fields_of_spec(pod: EnginePod) -> Object:
    """Return what other fields of the spec than templates say of the container."""
    asked = pod.fleet.spec.role(pod.role).resources
    cpu = {} if asked.cpu is None else {"cpu": str(asked.cpu)}
    memory = {} if asked.memory is None else {"memory": str(asked.memory)}
    container = {
        "name": names.ENGINE_CONTAINER,
        "env": [{"name": env.name, "value": env.value} for env in pod.fleet.spec.engine.env],
        "resources": {"requests": cpu | memory, "limits": memory},
    }
    return {"spec": {"containers": [container]}}


def _pod_spec(pod: EnginePod, kind: EngineKind) -> Object:
    lease_s = pod.fleet.spec.kv_transfer.lease_s if pod.disaggregated else 0
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": pod.drain_s + ceil(lease_s) + GRACE_MARGIN_S,
        "topologySpreadConstraints": spread(names.selector(pod.fleet.name, pod.role, pod.revision)),
        "containers": [_container(pod, kind)],
        "volumes": _volumes(pod),
    }
    if pod.verifies:
        spec["serviceAccountName"] = names.engine_account(pod.fleet.name)
    if pod.gpus > 0:
        spec["tolerations"] = [
            {"key": pod.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
        ]
    if pod.gpu_type is not None and pod.gpu_type.node_selector:
        spec["nodeSelector"] = dict(pod.gpu_type.node_selector)
    return spec


def _container(pod: EnginePod, kind: EngineKind) -> Object:
    spec, ready, live = pod.fleet.spec, kind.ready, kind.live
    return {
        "name": names.ENGINE_CONTAINER,
        "image": pod.image,
        "command": list(kind.command),
        "args": [*kind.args(pod), *spec.engine.args],
        "env": _env(pod, kind),
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(pod, kind)],
        "resources": {"limits": _limits(pod)},
        "securityContext": container_security(),
        # Ready ends the start: a slow load is not restarted by liveness, a hung one is, at last.
        "startupProbe": http_probe(ready.path, ready.port, period_s=1, failures=LOAD_TIMEOUT_S),
        # Three misses, because a busy engine may answer late; a drain is shown by annotation.
        "readinessProbe": http_probe(ready.path, ready.port, period_s=2, failures=3),
        "livenessProbe": liveness_probe(live.path, live.port),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(pod),
    }


def _ports(pod: EnginePod, kind: EngineKind) -> list[tuple[str, int]]:
    """Return the ports that the container opens, by name."""
    more = [kind.handover_port] if pod.disaggregated and kind.handover_port else []
    return [*kind.ports.items(), *more]


def _env(pod: EnginePod, kind: EngineKind) -> list[Object]:
    # Compilers and caches write below HOME; the root file system is read-only. torch names its
    # cache after the user, and the pod's uid has no name in the image's /etc/passwd.
    values = {"HOME": "/tmp", "USER": USER, **kind.env}  # noqa: S108
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return [
        *identity_env(),
        *([uid] if pod.verifies or kind.keyed else []),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def _limits(pod: EnginePod) -> dict[str, str]:
    return {} if pod.gpus == 0 or pod.claims_gpus else {pod.gpu_resource: str(pod.gpus)}


def _volumes(pod: EnginePod) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    if pod.gpus > 1:  # tensor parallel workers exchange through shared memory
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if pod.flips:
        label = {"fieldPath": f"metadata.labels['{names.ROLE}']"}
        item = {"path": posixpath.basename(ROLE_FILE), "fieldRef": label}
        volumes.append({"name": "role", "downwardAPI": {"items": [item]}})
    if pod.claim is not None:
        source = {"claimName": pod.claim, "readOnly": True}
        volumes.append({"name": "weights", "persistentVolumeClaim": source})
    if pod.model_image is not None:
        volumes.append({"name": "weights", "image": {"reference": pod.model_image}})
    for number, claim in enumerate(pod.adapter_claims):
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": f"adapters-{number}", "persistentVolumeClaim": source})
    if pod.verifies:
        source = {"name": names.peers(pod.fleet.name)}
        volumes.append({"name": names.PEERS_VOLUME, "configMap": source})
    if pod.shows_token:
        volumes.append(token_volume(pod.fleet))
    if pod.certificate is not None:
        volumes.append(tls_volume(pod.certificate))
    return volumes


def _mounts(pod: EnginePod) -> list[Object]:
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if pod.gpus > 1:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if pod.flips:
        folder = posixpath.dirname(ROLE_FILE)
        mounts.append({"name": "role", "mountPath": folder, "readOnly": True})
    if pod.claim is not None or pod.model_image is not None:
        mounts.append({"name": "weights", "mountPath": WEIGHTS, "readOnly": True})
    for number, claim in enumerate(pod.adapter_claims):
        path = f"{ADAPTERS}/{claim}"
        mounts.append({"name": f"adapters-{number}", "mountPath": path, "readOnly": True})
    if pod.verifies:
        mounts.append(read_only_mount(names.PEERS_VOLUME))
    if pod.shows_token:
        mounts.append(read_only_mount(names.TOKEN_VOLUME))
    if pod.certificate is not None:
        mounts.append(read_only_mount(names.TLS_VOLUME))
    return mounts
