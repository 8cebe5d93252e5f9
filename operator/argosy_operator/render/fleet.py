"""A fleet's objects besides its workloads: roles, callers, network policy and what was learnt.

The NetworkPolicy is the fence, where the cluster enforces one; what gets through still needs a
token. Gateway pods have no policy, because clients come from everywhere. The peers file says whose
tokens count: a ConfigMap, so that the kubelet brings a change to running pods
(designs/0007-trust.md says what is in it).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import API_VERSION, ROLES_OF, RoleName, ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Issuer
from argosy_operator.core.snapshot.template import account_of
from argosy_operator.render.common import (
    PEERS_FILE,
    Images,
    disruption_budget,
    fleet_metadata,
    metadata,
    template_of,
)
from argosy_operator.render.engines import kind_of


def render_serving_role(fleet: ServingDeployment, role: RoleName) -> Object:
    """The ServingRole without replicas, which are written through /scale only."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ServingRole",
        "metadata": metadata(fleet, names.serving_role(fleet.name, role), role),
        "spec": {"fleet": fleet.name, "role": role},
    }


def render_role(fleet: ServingDeployment, role: RoleName) -> list[Object]:
    """The role's objects that do not depend on a revision."""
    name = names.serving_role(fleet.name, role)
    return [render_serving_role(fleet, role), disruption_budget(fleet, name, role)]


def render_roles(fleet: ServingDeployment) -> list[Object]:
    """The objects of each role that the mode uses."""
    return [obj for name, _ in fleet.spec.active_roles() for obj in render_role(fleet, name)]


def render_learnt(fleet: ServingDeployment) -> Object:
    """Without data."""
    metadata = fleet_metadata(fleet, names.learnt(fleet.name))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def render_past(fleet: ServingDeployment, revision: str, image: str) -> Object:
    """The ControllerRevision of a revision, without its number. The engine's image is part of it:
    the operator's default may be another one when the revision comes back."""
    meta = fleet_metadata(fleet, names.past(fleet.name, revision))
    engine = fleet.spec.engine.model_copy(update={"image": fleet.spec.engine.image or image})
    spec = fleet.spec.model_copy(update={"engine": engine})
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {**meta, "labels": meta["labels"] | {names.REVISION: revision}},
        "data": {"spec": dump(spec)},
    }


def render_network_policy(fleet: ServingDeployment) -> list[Object]:
    """The policy of the engine pods; none if the spec says so."""
    if not fleet.spec.security.network_policy:
        return []
    engines = {
        "matchLabels": {names.FLEET: fleet.name},
        "matchExpressions": [{"key": names.ROLE, "operator": "In", "values": _ROLES}],
    }
    gateways = {"matchLabels": names.selector(fleet.name, names.GATEWAY_ROLE)}
    kind = kind_of(fleet)
    # The probes and metrics of such an engine are on the port of its API.
    shown = None if kind.metrics.port == names.API_PORT else gateways
    ucx = [_allow(names.UCX_PORTS[0], engines, last=names.UCX_PORTS[1])]
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": fleet_metadata(fleet, names.network_policy(fleet.name)),
            "spec": {
                "podSelector": engines,
                "policyTypes": ["Ingress"],
                "ingress": [
                    _allow(names.API_PORT, shown),
                    # The kubelet, Prometheus and the operator, wherever they are.
                    _allow(names.ADMIN_PORT),
                    _allow(names.KV_PORT, engines),
                    *(ucx if fleet.spec.kv_transfer.transport == "nixl" else ()),
                    *_handover_ports(fleet, engines),
                ],
            },
        }
    ]


def _handover_ports(fleet: ServingDeployment, engines: Object) -> list[Object]:
    """Open what engines of others need to hand over: the port at which they agree, and UCX."""
    port = kind_of(fleet).handover_port
    if port is None or fleet.spec.mode != "disaggregated":
        return []
    first, last = names.PEER_UCX_PORTS
    return [_allow(port[1], engines), _allow(first, engines, last=last)]


_ROLES = sorted(role for roles in ROLES_OF.values() for role in roles)


def _allow(port: int, pods: Object | None = None, *, last: int | None = None) -> Object:
    """Connections to the port from these pods of the namespace; from everywhere for None. `last`:
    also to the ports up to it."""
    rule: Object = {"ports": [{"port": port, "protocol": "TCP"}]}
    if last is not None:
        rule["ports"][0]["endPort"] = last
    return rule if pods is None else {"from": [{"podSelector": pods}], **rule}


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


def render_callers(
    fleet: ServingDeployment, issuer: Issuer | None, callers: Callers, *, required: bool
) -> list[Object]:
    """The account, and the ConfigMap if the cluster's keys are known.

    `required`: engines refuse calls without a token.
    """
    metadata = fleet_metadata(fleet, names.engine_account(fleet.name))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    return [account] if issuer is None else [account, _peers_file(fleet, issuer, callers, required)]


def _peers_file(
    fleet: ServingDeployment, issuer: Issuer, callers: Callers, required: bool
) -> Object:
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
        "data": {PEERS_FILE: json.dumps(content, indent=1, sort_keys=True)},
    }
