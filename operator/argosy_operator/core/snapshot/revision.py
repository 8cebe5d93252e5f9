"""The revision: a digest of everything that the engine pods of a fleet are made of.

All roles of a mode have one revision, because a prefill and a decode pod work together only if
theirs is the same. What may change without new pods (replicas, SLO, autoscaling, drain times,
routing, metrics) is not part of it.
"""

import re
from collections.abc import Iterable, Mapping

from argosy_operator.api.bounds import DURATION_BOUNDS
from argosy_operator.api.fields import Duration
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.engine import KvTransfer
from argosy_operator.api.v1alpha1.roles import GpuType, Role
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, digest
from argosy_operator.core.snapshot.template import asked_of

TEMPLATE = 5
"""Number of the pod template that render/{workload,engines}.py write. Raise it with every
change of that template, or an upgrade of the operator replaces running pods in place, unpaired."""


def made_from(deployments: Iterable[Object], made_of: str) -> Object | None:
    """The Deployment that notes `made_of`, a digest of `inputs`: its pods were made from the same
    inputs, in whatever template."""
    for deployment in deployments:
        notes = deployment["metadata"].get("annotations") or {}
        if notes.get(names.INPUTS) == made_of:
            return deployment
    return None


def verifies_callers(deployment: Object) -> bool:
    """Whether the pods of an engine Deployment verify who calls them."""
    volumes = deployment["spec"].get("template", {}).get("spec", {}).get("volumes") or ()
    return any(volume.get("name") == names.PEERS_VOLUME for volume in volumes)


def certificate_of(deployment: Object) -> str | None:
    """The Secret that the pods of a Deployment mount for TLS; None if they have none."""
    volumes = deployment["spec"].get("template", {}).get("spec", {}).get("volumes") or ()
    names_of = (v["secret"]["secretName"] for v in volumes if v.get("name") == names.TLS_VOLUME)
    return next(names_of, None)


def as_rolled_out(
    fleet: ServingDeployment,
    deployments: Mapping[str, Object],
    *,
    engine_image: str,
    called: bool,
) -> ServingDeployment:
    """The fleet whose engine pods may exist now: without TLS until the gateways can call them.

    `deployments` are the fleet's own, by name. `called`: every gateway pod has a certificate. Pods
    with TLS that exist stay, in whatever template: of their gateways some may just be replaced.
    """
    if fleet.spec.security.tls is None or called:
        return fleet
    made_of = digest(inputs(fleet, engine_image=engine_image))
    if made_from(deployments.values(), made_of) is not None:
        return fleet
    security = fleet.spec.security.model_copy(update={"tls": None})
    spec = fleet.spec.model_copy(update={"security": security})
    return fleet.model_copy(update={"spec": spec})


def fields(fleet: ServingDeployment, *, engine_image: str) -> dict[str, object]:
    """What the revision is made of; `engine_image` is the operator's default image."""
    spec = fleet.spec
    unverified = not spec.verifies_peers
    flips = {"roleFlip": True} if spec.flips_roles else {}
    tensor = {name: role.parallelism.tensor for name, role in spec.active_roles()}
    split = {"tensor": tensor} if set(tensor.values()) != {1} else {}
    types = {name: _type(kind) for name, _ in spec.active_roles() if (kind := spec.type_of(name))}
    typed = {"gpuTypes": types} if types else {}
    templates, fetched = _templates(fleet), fleet.fetched_model
    commit = {} if fetched is None else {"commit": fetched.commit, "claim": fetched.claim_name}
    engine = {} if spec.engine.type == "argosy" else {"engine": spec.engine.type}
    return (
        flips
        | commit
        | engine
        | ({"templates": templates} if templates else {})
        | split
        | typed
        | {
            "template": TEMPLATE,
            "image": spec.engine.image or engine_image,
            "model": spec.model.uri,
            "servedName": fleet.name,
            "dtype": spec.engine.dtype,
            "maxModelLen": spec.engine.max_model_len,
            "maxNumSeqs": spec.engine.max_num_seqs,
            "maxNumBatchedTokens": spec.engine.max_num_batched_tokens,
            "maxBodyBytes": spec.engine.max_body_bytes,
            "args": list(spec.engine.args),
            "env": [[env.name, env.value] for env in spec.engine.env],
            "roles": {name: _resources(role) for name, role in spec.active_roles()},
            "kvTransfer": _kv_transfer(spec.kv_transfer) if spec.mode == "disaggregated" else None,
            **({"verifyPeers": False} if unverified else {}),
            **({"tls": spec.security.tls.secret_name} if spec.security.tls else {}),
        }
    )


def _resources(role: Role) -> Object:
    """Return the resources without what renders nothing."""
    fields = dump(role.resources)
    if role.resources.gpu_from == "Resource":
        del fields["gpuFrom"]
    return fields


def _templates(fleet: ServingDeployment) -> Object:
    """What the fleet's templates ask of each role's pods; roles of which they ask nothing are left
    out. All of it counts: a pod cannot change any of it while it runs."""
    asked = {name: asked_of(fleet.spec, name) for name, _ in fleet.spec.active_roles()}
    return {name: template for name, template in asked.items() if template}


def _type(kind: GpuType) -> Object:
    """What the pods show of their GPU type: neither what it costs nor how fast it is."""
    return {"name": kind.name, "nodeSelector": dict(kind.node_selector)}


def _kv_transfer(kv_transfer: KvTransfer) -> Object:
    """Return the fields without those that render nothing."""
    fields = dump(kv_transfer)
    if kv_transfer.on_failure == "recompute":
        del fields["onFailure"]
    if kv_transfer.transport == "auto":
        del fields["transport"]
    return fields


def inputs(fleet: ServingDeployment, *, engine_image: str) -> Object:
    """The fields of the spec in the revision, without the number of the template."""
    return {
        name: value
        for name, value in fields(fleet, engine_image=engine_image).items()
        if name != "template"
    }


def revision(fleet: ServingDeployment, *, engine_image: str) -> str:
    """8 hexadecimal digits: SHA-256 of the fields' canonical JSON."""
    return digest(fields(fleet, engine_image=engine_image), digits=8)


def drain_timeout_s(fleet: ServingDeployment, deployment: Object | None) -> int:
    """How long the pods of an engine Deployment may drain, in whole seconds.

    It is part of the pod template but not of the revision: a Deployment keeps the time-out that it
    was created with, as its annotation says. The spec decides for a new Deployment (None) and where
    the annotation is not a time-out that a spec may have.
    """
    annotations = ((deployment or {}).get("metadata") or {}).get("annotations") or {}
    text = annotations.get(names.DRAIN_TIMEOUT, "")
    if _WHOLE.fullmatch(text):
        bound = DURATION_BOUNDS["drain.timeout"]
        if Duration(bound.least).seconds <= int(text) <= Duration(bound.most).seconds:
            return int(text)
    return whole_seconds(fleet.spec.drain.timeout.seconds)


def whole_seconds(duration_s: float) -> int:
    """Rounded up: a time-out of 500ms becomes one second, never none."""
    return max(1, -int(-duration_s // 1))


_WHOLE = re.compile("[0-9]{1,6}")
