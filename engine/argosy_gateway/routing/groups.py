"""Which pods can serve one request together. Pure.

`roster` keeps the groups; a strategy chooses a route through one of them.

A group is either all colocated pods, or the prefill and decode pods of one revision. A pair never
mixes revisions, because their KV layouts may differ. A decode pod can compute a prompt itself, but
its running sequences then wait. So decode pods without prefill pods are a group only where there is
no other. Prefill pods alone never are.
"""

from dataclasses import dataclass

from argosy_gateway.pods.endpoints import Endpoint, Role

__all__ = ["Group", "Route"]


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
    cached_tokens: int = 0
    """Prompt tokens that the strategy expects in the cache of `prefiller`."""
    cache_age: int = 0
    """Prompt tokens that `prefiller` has computed since it last used the end of that prefix."""
    head_cached_tokens: int = 0
    """The same in the cache of the head of a pair."""
    head_cache_age: int = 0

    @property
    def prefiller(self) -> Endpoint:
        """The pod that is expected to compute the prompt."""
        return self.prefills[0] if self.prefills else self.head

    @property
    def mode(self) -> str:
        """Value of the label `role_mode`: the head decides it, also without a ready prefill pod."""
        return "colocated" if self.head.role is Role.COLOCATED else "disaggregated"
