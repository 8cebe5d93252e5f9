"""The Job that fetches the model of hf:// or s3://, and the claim that is made for it."""

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.engine import Fetch
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, digest
from argosy_operator.core.snapshot.template import asked_of
from argosy_operator.render.common import (
    UID,
    Images,
    command_line,
    container_security,
    identity_env,
    lay_over,
    metadata,
    pod_security,
    template_of,
)

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
    pod: Object = {
        "metadata": {"labels": names.pod_labels(fleet.name, names.FETCH_ROLE)},
        "spec": _pod_spec(fleet, fetch, images.fetch),
    }
    over = template_of(fleet, names.FETCH_ROLE, images.template)
    template = lay_over(pod, over, names.selector(fleet.name, names.FETCH_ROLE))
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
        "account": fetch.service_account_name,
        "template": asked_of(fleet.spec, names.FETCH_ROLE),
    }


def _pod_spec(fleet: ServingDeployment, fetch: Fetch, image: str) -> Object:
    flags = {"--uri": fleet.spec.model.uri, "--root": ROOT, "--fleet": fleet.name}
    account = fetch.service_account_name
    # An image of the user's own may compute what ours cannot.
    own = [] if fleet.spec.engine.image is None else ["--any-architecture"]
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({} if account is None else {"serviceAccountName": account}),
        # The claim's file system is of root.
        "securityContext": pod_security()
        | {"fsGroup": UID, "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [
            {
                "name": names.FETCH_ROLE,
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
