"""Who may call the fleet's engines: the account of the engine pods, and their peers file.

The file is a ConfigMap, so that the kubelet brings a change to running pods. designs/0007-trust.md
says what is in it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Issuer
from argosy_operator.core.snapshot.template import account_of
from argosy_operator.render.common import MOUNTS, fleet_metadata
from argosy_operator.render.images import Images
from argosy_operator.render.template import template_of

FILE = "peers.json"
PATH = f"{MOUNTS}/{names.PEERS_VOLUME}/{FILE}"
"""Of the file in the engine's container."""


@dataclass(frozen=True, slots=True)
class Callers:
    """The ServiceAccounts of a fleet's pods, by what the pods are.

    Pods know each other by their accounts. While an account changes, pods of the old one still call
    engines, so both count until the last of them is gone.
    """

    engines: frozenset[str] = frozenset()
    gateways: frozenset[str] = frozenset()
    """Those that a template names; Argosy's own always counts besides."""

    @classmethod
    def of(cls, fleet: ServingDeployment, images: Images, pods: Iterable[Pod] = ()) -> "Callers":
        """Return the accounts of the templates, and of those of the fleet's `pods` that run."""
        engines, gateways = set[str](), set[str]()
        for pod in pods:
            if pod.running and pod.account:
                (gateways if pod.role == names.GATEWAY_ROLE else engines).add(pod.account)
        for role, _ in fleet.spec.active_roles():
            asked = account_of(template_of(fleet, role, images.template))
            engines.add(asked or names.engine_account(fleet.name))
        asked = account_of(template_of(fleet, names.GATEWAY_ROLE, images.template))
        gateways.update({asked} if asked else ())
        return cls(frozenset(engines), frozenset(gateways))


def objects(
    fleet: ServingDeployment, issuer: Issuer | None, callers: Callers, *, required: bool
) -> list[Object]:
    """The account, and the ConfigMap if the cluster's keys are known.

    `required`: engines refuse calls without a token.
    """
    metadata = fleet_metadata(fleet, names.engine_account(fleet.name))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    return [account] if issuer is None else [account, _file(fleet, issuer, callers, required)]


def _file(fleet: ServingDeployment, issuer: Issuer, callers: Callers, required: bool) -> Object:
    def subject(account: str) -> str:
        return names.account_subject(fleet.namespace, account)

    content = {
        "version": 1,
        "required": required,
        "issuer": issuer.url,
        "audience": names.audience(fleet.namespace, fleet.name),
        "keys": sorted(issuer.keys, key=lambda key: json.dumps(key, sort_keys=True)),
        "callers": {
            "api": sorted(map(subject, {names.gateway(fleet.name), *callers.gateways})),
            "kv": sorted(map(subject, callers.engines)),
            "admin": [] if issuer.operator is None else [issuer.operator],
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": fleet_metadata(fleet, names.peers(fleet.name)),
        "data": {FILE: json.dumps(content, indent=1, sort_keys=True)},
    }
