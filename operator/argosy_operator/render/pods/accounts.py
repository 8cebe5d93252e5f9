"""The ServiceAccounts of a fleet's pods: those of the spec, and those of pods that still run.

Pods know each other by their accounts. While an account changes, pods of the old one still call
engines, so both count until the last of them is gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.render.images import Images
from argosy_operator.render.pods.kept import settings_of


@dataclass(frozen=True, slots=True)
class Callers:
    """Names of accounts, by what their pods are."""

    engines: frozenset[str] = frozenset()
    gateways: frozenset[str] = frozenset()
    """Those that the spec or the chart names; Argosy's own always counts besides."""

    @classmethod
    def of(cls, fleet: ServingDeployment, images: Images, pods: Iterable[Pod] = ()) -> "Callers":
        """`pods` are the fleet's own."""
        engines, gateways = set[str](), set[str]()
        for pod in pods:
            if pod.running and pod.account:
                (gateways if pod.role in names.FRONT_ROLES else engines).add(pod.account)
        for role, _ in fleet.spec.active_roles():
            asked = settings_of(fleet, role, images.pods.engines).service_account_name
            engines.add(asked or names.engine_account(fleet.name))
        asked = settings_of(fleet, names.GATEWAY_ROLE, images.pods.gateways).service_account_name
        gateways.update({asked} if asked else ())
        return cls(frozenset(engines), frozenset(gateways))
