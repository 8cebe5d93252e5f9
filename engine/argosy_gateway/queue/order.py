"""Pods in the order of a key that changes pod by pod. Pure.

`dispatch` asks for the first pods whenever a load falls. A heap has an entry for each pod, made
anew when the pod is touched, so a look at a thousand pods costs what one at ten does. A key may
also change without a touch, as with what is learnt about all pods. So an entry that comes to the
front is compared with the pod's key of now, and is put back if it differs.
"""

import heapq
from collections.abc import Callable, Generator, Sequence
from typing import Any

from argosy_gateway.pods.endpoints import Endpoint

__all__ = ["Order"]

Key = tuple[Any, ...]


class Order:
    """Some pods, the lowest key first, then by uid."""

    def __init__(self, key: Callable[[str], Key]) -> None:
        """`key` of a pod's uid, as of now."""
        self._key = key
        self._pods: Sequence[Endpoint] = ()
        self._members: dict[str, Endpoint] = {}
        self._touched: set[str] = set()
        self._heap: list[tuple[Key, str]] = []
        self._current: dict[str, Key] = {}
        """Key of the entry that counts, by uid; other entries are dropped in front."""

    def update(self, pods: Sequence[Endpoint]) -> None:
        """Take these pods. Nothing is done for the same sequence; else only differences are."""
        if pods is self._pods:
            return
        self._pods, old = pods, self._members
        self._members = {pod.uid: pod for pod in pods}
        for uid in old.keys() - self._members.keys():
            self._current.pop(uid, None)
        self._touched |= self._members.keys() - old.keys()

    def touch(self, uid: str) -> None:
        """The pod's key may have changed."""
        self._touched.add(uid)

    def first(self) -> Endpoint | None:
        """The first pod; None if there is none."""
        found = self.pods()
        try:
            return next(found, None)
        finally:
            found.close()

    def pods(self) -> Generator[Endpoint]:
        """The pods in order. The entries that were looked at are put back at the end."""
        self._take_touched()
        seen: list[tuple[Key, str]] = []
        try:
            while self._heap:
                key, uid = entry = heapq.heappop(self._heap)
                if self._current.get(uid) != key:
                    continue
                if (now := self._key(uid)) != key:
                    self._put(uid, now)
                    continue
                del self._current[uid]  # so that a second entry with the same key is dropped
                seen.append(entry)
                yield self._members[uid]
        finally:
            for key, uid in seen:
                self._put(uid, key)

    def _take_touched(self) -> None:
        for uid in self._touched & self._members.keys():
            if self._current.get(uid) != (key := self._key(uid)):
                self._put(uid, key)
        self._touched.clear()
        if len(self._heap) > 4 * len(self._members) + 64:
            self._heap = [(key, uid) for uid, key in self._current.items()]
            heapq.heapify(self._heap)

    def _put(self, uid: str, key: Key) -> None:
        self._current[uid] = key
        heapq.heappush(self._heap, (key, uid))
