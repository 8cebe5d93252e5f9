"""Which pods may serve one request together. Pure.

A group is either all colocated pods, or the prefill and decode pods of one revision: pairs never
cross revisions, because their KV layouts may differ. A decode pod can compute a prompt itself, but
then its running sequences wait meanwhile: decode pods alone are a group only where there is no
other. Prefill pods alone are none.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from argosy_gateway.pods.endpoints import Endpoint, Role

__all__ = ["Group", "group"]


@dataclass(frozen=True, slots=True)
class Group:
    """`heads` are the pods the gateway talks to, decode or colocated."""

    heads: tuple[Endpoint, ...]
    prefills: tuple[Endpoint, ...] = ()

    @property
    def size(self) -> int:
        """Pods: a group's weight against the others."""
        return len(self.heads) + len(self.prefills)


def group(serving: Iterable[Endpoint]) -> list[Group]:
    """Groups of the serving endpoints, in a stable order."""
    colocated: list[Endpoint] = []
    prefills: dict[str, list[Endpoint]] = {}
    decodes: dict[str, list[Endpoint]] = {}
    for endpoint in sorted(serving, key=lambda e: e.name):
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
