"""Which pods can serve one request together. Pure.

`relay` calls `candidates` with the serving endpoints and `group` with the result; a strategy then
chooses a route through one of the groups.

A group is either all colocated pods, or the prefill and decode pods of one revision. A pair never
mixes revisions, because their KV layouts may differ. A decode pod can compute a prompt itself, but
its running sequences then wait. So decode pods without prefill pods are a group only where there is
no other. Prefill pods alone never are.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from argosy_gateway.pods.endpoints import Endpoint, Role
from argosy_gateway.pods.health import HEALTHY, Health

__all__ = ["Group", "Route", "candidates", "group"]


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that can serve one request together."""

    heads: tuple[Endpoint, ...]
    """The pods that the gateway calls: decode or colocated."""
    prefills: tuple[Endpoint, ...] = ()

    @property
    def size(self) -> int:
        """Number of pods: the weight of the group against the others."""
        return len(self.heads) + len(self.prefills)


@dataclass(frozen=True, slots=True)
class Route:
    """The pods chosen for one request."""

    head: Endpoint
    """The pod that the gateway calls."""
    prefills: tuple[Endpoint, ...] = ()
    """Prefill pods that the head may ask for the prompt's KV cache, best first."""

    @property
    def prefiller(self) -> Endpoint:
        """The pod that is expected to compute the prompt."""
        return self.prefills[0] if self.prefills else self.head

    @property
    def mode(self) -> str:
        """Value of the label `role_mode`: the head decides it, also without a ready prefill pod."""
        return "colocated" if self.head.role is Role.COLOCATED else "disaggregated"


def candidates(
    serving: Iterable[Endpoint],
    health: Health,
    *,
    tried: Collection[str] = (),
    only_healthy: bool = False,
) -> list[Endpoint]:
    """The pods among which a strategy chooses: all prefill pods, and the best of the others.

    The best are pods that this request has not tried (`tried` has their uids), then those of the
    lowest rank. A retry also prefers pods without recent failures. With `only_healthy` the
    list is empty unless an untried pod of rank HEALTHY exists.
    """
    heads: dict[tuple[bool, int, bool], list[Endpoint]] = {}
    prefills: list[Endpoint] = []
    for pod in serving:
        if pod.role is Role.PREFILL:
            prefills.append(pod)
        elif (rank := health.rank(pod.uid)) is not None:
            failed_recently = bool(tried) and health.failed_recently(pod.uid)
            heads.setdefault((pod.uid in tried, rank, failed_recently), []).append(pod)
    best = min(heads, default=None)
    if best is None or (only_healthy and best[:2] != (False, HEALTHY)):
        return []
    return prefills + heads[best]


def group(pods: Iterable[Endpoint]) -> list[Group]:
    """The groups of these pods, in a stable order."""
    colocated: list[Endpoint] = []
    prefills: dict[str, list[Endpoint]] = {}
    decodes: dict[str, list[Endpoint]] = {}
    for endpoint in sorted(pods, key=lambda e: e.name):
        match endpoint.role:
            case Role.COLOCATED:
                colocated.append(endpoint)
            case Role.PREFILL:
                prefills.setdefault(endpoint.revision, []).append(endpoint)
            case Role.DECODE:
                decodes.setdefault(endpoint.revision, []).append(endpoint)
    groups = [Group(tuple(colocated))] if colocated else []
    for revision in sorted(prefills.keys() & decodes.keys()):
        groups.append(Group(tuple(decodes[revision]), tuple(prefills[revision])))
    return groups or [Group(tuple(decodes[revision])) for revision in sorted(decodes)]
