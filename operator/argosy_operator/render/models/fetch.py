"""The Job that fetches the model of hf:// or s3://, and the claim that is made for it."""

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.engine import Fetch
from argosy_operator.api.v1alpha1.pods.defaults import PodDefaults
from argosy_operator.api.v1alpha1.pods.merged import merged
from argosy_operator.api.v1alpha1.pods.resources import PodResources
from argosy_operator.api.v1alpha1.pods.settings import PodSettings
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, digest
from argosy_operator.render.common import (
    UID,
    command_line,
    container_security,
    identity_env,
    metadata,
    pod_security,
    written,
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
_OF_ENGINES = (
    "node_selector",
    "tolerations",
    "affinity",
    "scheduler_name",
    "image_pull_secrets",
    "user_ids",
)
"""Settings of engine pods that the Job's pod has, too: a claim may be of one zone, and its files
are for their user."""
_OF_ALL = ("labels", "annotations", "priority_class_name", "env", "env_from", "volumes")
"""Settings that the Job's pod has of items for all pods: what the cluster asks of every pod, and
files such as a bundle of certificates with the variable that names it."""
_SIZES = ("cpu", "memory", "ephemeral-storage")
"""Resources that the Job's pod asks for. It uses no device."""


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
    settings = _settings(fleet, fetch, images.pods)
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
    meta["annotations"] = {
        names.FETCHES: digest(spec),
        names.INPUTS: digest(_inputs(fleet, fetch)),
    }
    # Not part of the digest: a Job that runs is not made again for its labels.
    template["metadata"]["labels"] |= names.recommended(fleet.name, names.FETCH_ROLE)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _inputs(fleet: ServingDeployment, fetch: Fetch) -> Object:
    """What the fleet asks for. Neither the operator's images and defaults nor the way in which it
    writes the Job are part of it."""
    return {
        "uri": fleet.spec.model.uri,
        "claim": fleet.model_claim,
        "anyArchitecture": fleet.spec.engine.image is not None,
        "pod": written(_settings(fleet, fetch, None)),
    }


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


def _settings(fleet: ServingDeployment, fetch: Fetch, defaults: PodDefaults | None) -> PodSettings:
    """Placed as engine pods are and sized as gateways are. No item of `pods` is of the Job alone.

    `defaults`: None for what the fleet itself asks for.
    """
    role, _ = next(fleet.spec.active_roles())
    engines, gateways = (defaults.engines, defaults.gateways) if defaults else (None, None)
    engine = settings_of(fleet, role, engines)
    gateway = settings_of(fleet, names.GATEWAY_ROLE, gateways)
    every = settings_of(fleet, names.FETCH_ROLE, gateways)
    # Not checked again: several items together may have more than one may.
    common = PodSettings().model_copy(
        update={
            **{name: getattr(engine, name) for name in _OF_ENGINES},
            **{name: getattr(every, name) for name in _OF_ALL},
            "resources": _sizes(gateway.resources),
            "service_account_name": fetch.service_account_name,
        }
    )
    return merged([common, PodSettings(env=fetch.env, env_from=fetch.env_from)])


def _sizes(asked: PodResources) -> PodResources:
    """These without devices and claims of Dynamic Resource Allocation."""
    return PodResources(
        requests={name: v for name, v in asked.requests.items() if name in _SIZES},
        limits={name: v for name, v in asked.limits.items() if name in _SIZES},
    )
