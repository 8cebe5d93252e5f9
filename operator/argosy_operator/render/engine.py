"""The engine's Deployment: one per role and revision, with a template that never changes.

What is in the template is either in `core.revision.fields` or constant; the one exception is the
drain's time-out, which stays what it was when the Deployment was created (`names.told_drain_s`).
A change of the template here needs a new number in `core.revision.TEMPLATE`.
"""

from collections.abc import Mapping

from argosy_operator.api.v1alpha1 import Role, RoleName, ServingDeployment
from argosy_operator.core.fleet import names
from argosy_operator.render.images import Images
from argosy_operator.render.labels import (
    Object,
    container_security,
    http_probe,
    identity_env,
    liveness_probe,
    metadata,
    pod_security,
    scrape_annotations,
    spread,
)

WEIGHTS = "/models"
GRACE_MARGIN_S = 10  # between the engine's own time-out and the kernel's SIGKILL
LOAD_TIMEOUT_S = 1800  # loading weights over a slow network; then the pod is started anew


def deployment(
    fleet: ServingDeployment,
    role: RoleName,
    revision: str,
    images: Images,
    replicas: int | None,
    *,
    drain_timeout_s: int | None = None,
) -> Object:
    """The Deployment of `role` in `revision`.

    `replicas` is a number when the Deployment is created and None when it is applied later: an
    apply that carried it would fight with /scale. `drain_timeout_s` is what the Deployment was
    created with (`names.told_drain_s` of the observed one); None takes the spec's.
    """
    drain_s = whole_seconds(fleet.spec.drain.timeout.seconds)
    drain_s = drain_s if drain_timeout_s is None else drain_timeout_s
    meta = metadata(fleet, names.engine_deployment(fleet.name, role, revision), role, revision)
    meta["annotations"] = {names.DRAIN_TIMEOUT: str(drain_s)}
    spec: Object = {
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": LOAD_TIMEOUT_S + 300,
        "selector": {"matchLabels": names.selector(fleet.name, role, revision)},
        "template": {
            "metadata": {
                "labels": names.labels(fleet.name, role, revision),
                "annotations": scrape_annotations(names.ADMIN_PORT),
            },
            "spec": _pod(fleet, role, revision, images, drain_s),
        },
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def whole_seconds(seconds: float) -> int:
    """Rounded up: a time-out of 500ms is given a second, never none."""
    return max(1, -int(-seconds // 1))


def _pod(
    fleet: ServingDeployment, role: RoleName, revision: str, images: Images, drain_s: int
) -> Object:
    spec = fleet.spec
    gpu = spec.role(role).resources.gpu
    lease_s = spec.kv_transfer.lease_seconds if spec.mode == "disaggregated" else 0
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": drain_s + lease_s + GRACE_MARGIN_S,
        "topologySpreadConstraints": spread(names.selector(fleet.name, role, revision)),
        "containers": [_container(fleet, role, images, drain_s)],
        "volumes": _volumes(fleet, gpu),
    }
    if gpu > 0:
        pod["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
    return pod


def _container(fleet: ServingDeployment, role: RoleName, images: Images, drain_s: int) -> Object:
    admin = names.ADMIN_PORT
    return {
        "name": "engine",
        "image": fleet.spec.engine.image or images.engine,
        "command": ["argosy"],
        "args": ["engine", "serve", *_flags(fleet, role, drain_s), *fleet.spec.engine.args],
        "env": _env(fleet),
        "ports": [
            {"name": "http", "containerPort": names.API_PORT},
            {"name": "admin", "containerPort": admin},
            {"name": "kv", "containerPort": names.KV_PORT},
        ],
        "resources": _resources(fleet.spec.role(role)),
        "securityContext": container_security(),
        # Ready ends the start: a slow load is not restarted by liveness, a hung one in the end is.
        "startupProbe": http_probe("/ready", admin, period_s=1, failures=LOAD_TIMEOUT_S),
        # More than one miss: a busy engine is late at times, and drains are told by annotation.
        "readinessProbe": http_probe("/ready", admin, period_s=2, failures=3),
        "livenessProbe": liveness_probe(admin),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(fleet, fleet.spec.role(role).resources.gpu),
    }


def _flags(fleet: ServingDeployment, role: RoleName, drain_s: int) -> list[str]:
    """Flags of `argosy engine serve` (designs/0001-seams.md §2). The SLO is not among them: a new
    target must not replace pods."""
    spec = fleet.spec
    flags: dict[str, object] = {"--served-name": fleet.served_name, "--role": role}
    if spec.model.uri.startswith("sim://"):
        preset = spec.model.uri.removeprefix("sim://")
        flags |= {"--model": f"sim:{preset}", "--load-format": "sim"}
    else:
        flags |= {"--model": _weights_path(spec.model.uri)}
    flags |= {
        "--dtype": spec.engine.dtype,
        "--max-model-len": spec.engine.max_model_len,
        "--max-num-seqs": spec.engine.max_num_seqs,
        "--max-num-batched-tokens": spec.engine.max_num_batched_tokens,
        "--max-body-bytes": spec.engine.max_body_bytes,
        "--drain-timeout-s": drain_s,
    }
    if spec.mode == "disaggregated":
        flags |= {
            "--lease-s": spec.kv_transfer.lease_seconds,
            "--kv-timeout-s": whole_seconds(spec.kv_transfer.timeout.seconds),
        }
    return [text for flag, v in flags.items() if v is not None for text in (flag, str(v))]


def _claim_and_path(uri: str) -> tuple[str, str]:
    """pvc://<claim>/<path> in its two parts; the path may be empty."""
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return claim, path


def _weights_path(uri: str) -> str:
    _, path = _claim_and_path(uri)
    return f"{WEIGHTS}/{path}" if path else WEIGHTS


def _env(fleet: ServingDeployment) -> list[Object]:
    own = {env.name: env.value for env in fleet.spec.engine.env}
    # Compilers and caches write below HOME; the root file system is read-only.
    home = [] if "HOME" in own else [{"name": "HOME", "value": "/tmp"}]  # noqa: S108
    return identity_env() + home + [{"name": name, "value": v} for name, v in own.items()]


def _resources(role: Role) -> Object:
    asked = role.resources
    gpu = str(asked.gpu) if asked.gpu > 0 else None
    requests = _given({"cpu": asked.cpu, "memory": asked.memory})
    limits = _given({"memory": asked.memory, "nvidia.com/gpu": gpu})
    return ({"requests": requests} if requests else {}) | ({"limits": limits} if limits else {})


def _given(amounts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def _volumes(fleet: ServingDeployment, gpu: int) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    if gpu > 1:  # tensor parallel workers exchange through shared memory
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if fleet.spec.model.uri.startswith("pvc://"):
        claim, _ = _claim_and_path(fleet.spec.model.uri)
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": "weights", "persistentVolumeClaim": source})
    return volumes


def _mounts(fleet: ServingDeployment, gpu: int) -> list[Object]:
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if gpu > 1:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if fleet.spec.model.uri.startswith("pvc://"):
        mounts.append({"name": "weights", "mountPath": WEIGHTS, "readOnly": True})
    return mounts
