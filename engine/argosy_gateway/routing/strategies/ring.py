"""Consistent hashing: every gateway orders the same pods in the same way for a key. Pure.

Each pod has 32 points on a ring of 64-bit numbers. A key's order begins with the pod of the next
point. A pod that comes or goes moves only the keys of its own points.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from argosy_gateway.pods.endpoints import Endpoint

__all__ = ["Ring", "hash_of"]

_POINTS = 32


def hash_of(data: bytes) -> int:
    """A 64-bit hash, the same in every process."""
    return int.from_bytes(blake2b(data, digest_size=8).digest())


class Ring:
    """The points of some pods."""

    def __init__(self) -> None:
        self._pods: Sequence[Endpoint] = ()
        self._members: dict[str, Endpoint] = {}
        self._points: list[tuple[int, str]] = []
        """(point, pod uid), in order."""

    def update(self, pods: Sequence[Endpoint]) -> None:
        """Take these pods. Nothing is done for the same sequence; else only differences are."""
        if pods is self._pods:
            return
        self._pods, old = pods, self._members
        self._members = {pod.uid: pod for pod in pods}
        for uid in old.keys() - self._members.keys():
            for point in _points_of(uid):
                del self._points[bisect_left(self._points, point)]
        for uid in self._members.keys() - old.keys():
            for point in _points_of(uid):
                insort(self._points, point)

    def order(self, key: int) -> Iterator[Endpoint]:
        """Every pod once, in the order of this key."""
        points, seen = self._points, set[str]()
        first = bisect_left(points, (key, ""))
        for place in range(first, first + len(points)):
            uid = points[place % len(points)][1]
            if uid not in seen:
                seen.add(uid)
                yield self._members[uid]


def _points_of(uid: str) -> list[tuple[int, str]]:
    return [(hash_of(b"%d %b" % (number, uid.encode())), uid) for number in range(_POINTS)]
