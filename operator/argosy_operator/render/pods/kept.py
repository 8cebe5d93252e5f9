"""The defaults that a Deployment's pods have: as an annotation, so that they stay what they were.

A template of pods that run does not change with the operator's installation. A Deployment from
before there were defaults has none, and its pods stay as they are.
"""

import json
from collections.abc import Iterable

from pydantic import ValidationError

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.pods.defaults import PodDefaults
from argosy_operator.api.v1alpha1.pods.merged import merged
from argosy_operator.api.v1alpha1.pods.settings import PodSettings
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object


def kept(live: Object | None, defaults: PodSettings) -> PodSettings | None:
    """The defaults of an engine Deployment's pods; None for one without any.

    `live` is the Deployment as it exists, None for a new one, which gets those of now. So does one
    whose annotation cannot be read.
    """
    if live is None:
        return defaults
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(names.POD_DEFAULTS)
    if text is None:
        return None
    try:
        return PodSettings.model_validate_json(text)
    except ValidationError:
        return defaults


def kept_by_gateways(deployments: Iterable[Object], defaults: PodDefaults) -> PodDefaults:
    """The operator's defaults, those of gateways as a fleet's gateway or picker notes them."""
    for deployment in deployments:
        role = (deployment["metadata"].get("labels") or {}).get(names.ROLE)
        if role in names.FRONT_ROLES and (noted := kept(deployment, defaults.gateways)):
            return defaults.model_copy(update={"gateways": noted})
    return defaults


def annotation(defaults: PodSettings) -> dict[str, str]:
    """The annotation from which `kept` reads them again."""
    body = defaults.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {names.POD_DEFAULTS: json.dumps(body, sort_keys=True, separators=(",", ":"))}


def settings_of(fleet: ServingDeployment, role: str, defaults: PodSettings | None) -> PodSettings:
    """What is asked of the pods of a role, "gateway" included: the defaults, and over them the
    fleet's items of `pods`. Variables of engine.env count before the defaults of engines. Pods of
    "fetch" have the items without roles."""
    layers = [section for section in fleet.spec.pods if section.is_of(role)]
    if defaults is None:
        return merged(layers)
    no_engine = role in (names.GATEWAY_ROLE, names.FETCH_ROLE)
    own = set() if no_engine else {env.name for env in fleet.spec.engine.env}
    free = tuple(env for env in defaults.env if env.name not in own)
    return merged([defaults.model_copy(update={"env": free}), *layers])
