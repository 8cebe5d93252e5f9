"""How the gateways of a fleet divide its pods while many requests wait. Pure.

A gateway sees only its own requests. If each of eight keeps one long prompt on every pod, each
prompt waits for seven others that nobody counted, and all of them miss. So while much waits in a
gateway, it sends what waits only to its share of the pods. Who has which pods follows from the
names of the gateways and the order of the pods, which all of them know.
"""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

__all__ = ["FEW_GATEWAYS", "Shares"]

FEW_GATEWAYS = 2
"""So many share every pod: one prompt of each keeps a pod busy without a gap."""
_MUCH = 4
"""Waiting requests for each pod of a gateway's share from which on it keeps to its share. Fewer may
go to any pod, so that none is idle at ordinary load because its gateway has nothing for it."""

_MOST_KEPT = 7
"""Groups whose shares are kept besides the newest."""
_Pod = TypeVar("_Pod")


class Shares:
    """The place of this gateway among all."""

    def __init__(self) -> None:
        self.gateways = 1
        """Gateways that share the pods, this one included."""
        self._rank: int | None = None
        """Place of this one in the order of names; None if it is not known."""
        self._counted: tuple[int, int | None] = (1, None)
        self._of: list[tuple[Any, Any]] = []
        """Pods that were asked for last, and the share of them; the same object each time."""

    def count(self, names: Collection[str], own: str) -> None:
        """These gateways take requests."""
        self.gateways = max(1, len(names))
        self._rank = sorted(names).index(own) if own in names else None
        if self._counted != (self.gateways, self._rank):
            self._counted = self.gateways, self._rank
            self._of.clear()

    def keeps(self, waiting: int, pods: int) -> bool:
        """Whether requests of so many that wait go only to the share of so many pods."""
        if self._rank is None or self.gateways <= FEW_GATEWAYS:
            return False
        return waiting >= _MUCH * max(1.0, pods / self.gateways)

    def of(self, pods: Sequence[_Pod]) -> Sequence[_Pod]:
        """This gateway's share. Of more gateways than pods, several have the same pod."""
        if self._rank is None or not pods:
            return pods
        for known, share in self._of:
            if known is pods:
                return share  # type: ignore[no-any-return]
        share = pods[self._rank % len(pods) :: self.gateways]
        self._of = [*self._of[-_MOST_KEPT:], (pods, share)]
        return share

    def each(self, most: int, pods: int, *, apart: bool) -> int:
        """How many of `most` prompts of a pod are this gateway's, at least one. `apart`: each keeps
        to its share of so many pods."""
        sharers = -(-self.gateways // max(1, pods)) if apart else self.gateways
        return -(-most // sharers)
