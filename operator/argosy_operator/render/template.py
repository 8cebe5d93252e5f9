"""Templates of users laid over a pod that the operator renders.

`core/snapshot/template.py` says what a template may not change. Over the rendered pod come, the
farthest first: the template of the operator's installation, fields of the spec such as engine.env,
the fleet's template, and that of the role.
"""

import json
from collections.abc import Iterable, Mapping

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.merge import merge, resolve
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.template import asked_of, installed_of

REQUESTS: Mapping[str, Mapping[str, str]] = {
    names.ENGINE_CONTAINER: {"cpu": "100m", "memory": "256Mi"},
    names.GATEWAY_ROLE: {"cpu": "100m", "memory": "128Mi"},
    names.FETCH_ROLE: {"cpu": "100m", "memory": "128Mi"},
}
"""What a container requests of which nothing else is said: what it uses at rest. With any request a
pod is not BestEffort, so it is not the first that a node in need ends."""


def template_of(
    fleet: ServingDeployment, role: str, installed: PodTemplate, own: Object | None = None
) -> Object:
    """Return what is laid over the pods of a role; gateway and fetch are roles here. `own` is what
    other fields of the spec say of them."""
    far = merge(installed_of(installed, role), own or {})
    merged: Object = merge(far, asked_of(fleet.spec, role))
    return merged


def lay_over(pod: Object, template: Object, selector: Mapping[str, str]) -> Object:
    """Return the rendered pod with the template over it. `selector` are the labels of the pods that
    are spread, where a constraint does not say of which."""
    whole: Object = resolve(merge(pod, template))
    spec = whole["spec"]
    for spread in spec.get("topologySpreadConstraints") or ():
        if isinstance(spread, dict):
            spread.setdefault("labelSelector", {"matchLabels": dict(selector)})
    container = spec["containers"][0]
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    default = REQUESTS.get(container["name"], {})
    requests = {k: v for k, v in default.items() if k not in requests | limits} | requests
    parts = resources | {"requests": requests, "limits": limits}
    container["resources"] = {name: part for name, part in parts.items() if part}
    return whole


def installed_with(live: Object | None, now: PodTemplate) -> PodTemplate:
    """Return the template of the installation with which an engine Deployment was made.

    Neither another value of the chart nor a newer operator replaces engine pods: these come with
    the fleet's next revision. `live` is the Deployment as it exists, None for a new one, which gets
    the template of now. So does one whose annotation cannot be read.
    """
    if live is None:
        return now
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(names.INSTALLED)
    try:
        return PodTemplate() if text is None else PodTemplate.model_validate_json(text)
    except ValueError:
        return now


def installed_by_gateways(deployments: Iterable[Object], now: PodTemplate) -> PodTemplate:
    """Return the template of the installation as a fleet's gateways note it, `now` without any."""
    for deployment in deployments:
        role = (deployment["metadata"].get("labels") or {}).get(names.ROLE)
        if role == names.GATEWAY_ROLE:
            return installed_with(deployment, now)
    return now


def annotation(installed: PodTemplate) -> dict[str, str]:
    """Return the annotation from which `installed_with` reads the template again."""
    body = installed.model_dump(exclude_defaults=True)
    if not body:
        return {}
    return {names.INSTALLED: json.dumps(body, sort_keys=True, separators=(",", ":"))}
