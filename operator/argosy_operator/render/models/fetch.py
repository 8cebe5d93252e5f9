"""The Job that fetches the model of hf:// or s3://, and the claim that is made for it."""

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.engine import Fetch
from argosy_operator.api.v1alpha1.pods.settings import PodSettings
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import Object, digest
from argosy_operator.render.common import (
    UID,
    command_line,
    container_security,
    identity_env,
    metadata,
    pod_security,
)
from argosy_operator.render.images import Images
from argosy_operator.render.pods.kept import settings_of
from argosy_operator.render.pods.overlay import lay_over

ROOT = "/models"
"""Where the Job writes the claim."""
_ENDLESS = 2**31 - 1
"""A Job that gives up would have to be made again by hand. The kubelet waits five minutes at most
between two starts of its container."""
_KEPT_S = 86_400
"""A Job that has ended stays for a day, s: its log says what was fetched."""


def claim(fleet: ServingDeployment) -> list[Object]:
    """The claim of the operator's own; none where the user names one or nothing is fetched."""
    fetch = fleet.spec.model.fetch
    if fetch is None or fetch.size is None:
        return []
    spec: Object = {
        "accessModes": [fetch.access_mode],
        "resources": {"requests": {"storage": str(fetch.size)}},
    }
    if fetch.storage_class_name is not None:
        spec["storageClassName"] = fetch.storage_class_name
    meta = metadata(fleet, fleet.model_claim or "", names.FETCH_ROLE)
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}]


def job(fleet: ServingDeployment, images: Images) -> Object | None:
    """The Job; None for a model that is used where it is."""
    fetch = fleet.spec.model.fetch
    if fetch is None:
        return None
    template: Object = {
        "metadata": {"labels": names.pod_labels(fleet.name, names.FETCH_ROLE)},
        "spec": _pod_spec(fleet, images.fetch),
    }
    settings = _settings(fleet, fetch, images)
    lay_over(template, settings, names.selector(fleet.name, names.FETCH_ROLE))
    if settings.user_ids != "Assigned":  # the claim's file system is of root
        template["spec"]["securityContext"] |= {
            "fsGroup": UID,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    spec = {
        "backoffLimit": _ENDLESS,
        "ttlSecondsAfterFinished": _KEPT_S,
        "template": template,
    }
    meta = metadata(fleet, names.fetch_job(fleet.name), names.FETCH_ROLE)
    meta["annotations"] = {names.FETCHES: digest(spec)}
    # Not part of the digest: a Job that runs is not made again for its labels.
    template["metadata"]["labels"] |= names.recommended(fleet.name, names.FETCH_ROLE)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _pod_spec(fleet: ServingDeployment, image: str) -> Object:
    flags = {"--uri": fleet.spec.model.uri, "--root": ROOT, "--fleet": fleet.name}
    # An image of the user's own may compute what ours cannot.
    own = [] if fleet.spec.engine.image is None else ["--any-architecture"]
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": "fetch",
                "image": image,
                "command": ["argosy"],
                "args": ["fetch", "run", *command_line(flags), *own],
                "env": [*identity_env(), {"name": "HOME", "value": "/tmp"}],  # noqa: S108
                "securityContext": container_security(),
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
                    {"name": "weights", "mountPath": ROOT},
                ],
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "weights", "persistentVolumeClaim": {"claimName": fleet.model_claim}},
        ],
    }


def _settings(fleet: ServingDeployment, fetch: Fetch, images: Images) -> PodSettings:
    """Placed as engine pods are, because a claim may be of one zone; sized as gateways are."""
    role, _ = next(fleet.spec.active_roles())
    engine = settings_of(fleet, role, images.pods.engines)
    gateway = settings_of(fleet, names.GATEWAY_ROLE, images.pods.gateways)
    return PodSettings(
        node_selector=engine.node_selector,
        tolerations=engine.tolerations,
        affinity=engine.affinity,
        scheduler_name=engine.scheduler_name,
        image_pull_secrets=engine.image_pull_secrets,
        user_ids=engine.user_ids,
        resources=gateway.resources,
        service_account_name=fetch.service_account_name,
        env=fetch.env,
        env_from=fetch.env_from,
    )
