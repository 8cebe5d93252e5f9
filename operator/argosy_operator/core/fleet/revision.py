"""The revision: a digest of everything that the engine pods of a fleet are made of.

All roles of a mode have one revision, because a prefill and a decode pod work together only if
theirs is the same. What may change without new pods (replicas, SLO, autoscaling, drain times,
routing, metrics) is not part of it.
"""

import re

from argosy_operator.api.bounds import DURATION_BOUNDS
from argosy_operator.api.fields import Duration
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.kv_transfer import KvTransfer
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import Object, digest

TEMPLATE = 3
"""Number of the pod template that render/workload.py and render/engines/ write. Raise it with every
change of that template, or an upgrade of the operator replaces running pods in place, unpaired."""


def fields(fleet: ServingDeployment, *, engine_image: str) -> dict[str, object]:
    """What the revision is made of; `engine_image` is the operator's default image."""
    spec = fleet.spec
    return {
        "template": TEMPLATE,
        "image": spec.engine.image or engine_image,
        "model": spec.model.uri,
        "servedName": fleet.served_name,
        "dtype": spec.engine.dtype,
        "maxModelLen": spec.engine.max_model_len,
        "maxNumSeqs": spec.engine.max_num_seqs,
        "maxNumBatchedTokens": spec.engine.max_num_batched_tokens,
        "maxBodyBytes": spec.engine.max_body_bytes,
        "args": list(spec.engine.args),
        "env": [[env.name, env.value] for env in spec.engine.env],
        "roles": {name: dump(role.resources) for name, role in spec.active_roles()},
        "kvTransfer": _kv_transfer(spec.kv_transfer) if spec.mode == "disaggregated" else None,
    }


def _kv_transfer(kv_transfer: KvTransfer) -> Object:
    """Without a field that renders nothing: fleets from before it keep their revision."""
    fields = dump(kv_transfer)
    if kv_transfer.on_failure == "recompute":
        del fields["onFailure"]
    return fields


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
