"""The revision: a name for what the engine pods of a fleet are made of.

One revision spans all roles that the mode uses, because prefill and decode pods work together only
when they are of the same revision. What may change without new pods (replicas, SLO, autoscaling,
drain times, routing, metrics) is not in the list below.
"""

import hashlib
import json

from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import ServingDeployment

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
        "kvTransfer": dump(spec.kv_transfer) if spec.mode == "disaggregated" else None,
    }


def revision(fleet: ServingDeployment, *, engine_image: str) -> str:
    """8 hexadecimal digits: SHA-256 of the fields' canonical JSON."""
    canonical = json.dumps(
        fields(fleet, engine_image=engine_image), sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
