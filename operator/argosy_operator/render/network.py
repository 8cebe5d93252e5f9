"""Who can connect to the fleet's engine pods: a NetworkPolicy, where the cluster enforces one.

It is the fence before the lock: what gets through still needs a token (`peers.py`). Gateway pods
have no policy, because clients come from everywhere.
"""

from argosy_operator.api.v1alpha1 import ROLES_OF, ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.render.common import fleet_metadata
from argosy_operator.render.engines.table import kind_of


def objects(fleet: ServingDeployment) -> list[Object]:
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
                ],
            },
        }
    ]


_ROLES = sorted(role for roles in ROLES_OF.values() for role in roles)


def _allow(port: int, pods: Object | None = None, *, last: int | None = None) -> Object:
    """Connections to the port from these pods of the namespace; from everywhere for None. `last`:
    also to the ports up to it."""
    rule: Object = {"ports": [{"port": port, "protocol": "TCP"}]}
    if last is not None:
        rule["ports"][0]["endPort"] = last
    return rule if pods is None else {"from": [{"podSelector": pods}], **rule}
