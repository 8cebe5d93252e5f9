"""The groups of pods that the next request may be sent to, kept up to date pod by pod.

A group is either all colocated pods, or the prefill and decode pods of one revision. A pair never
mixes revisions, because their KV layouts may differ. A decode pod can compute a prompt itself, but
its running sequences then wait. So decode pods without prefill pods are a group only where there is
no other, and never where its engine cannot compute one. Prefill pods alone never are.

`relay` asks for groups once per attempt, and a strategy chooses a route through one of them. The
directory collects which pods changed, in state or in health; the roster moves only those. So a pick
among a thousand pods costs what one among ten does, and a change costs a search in a sorted list.
Pure: the time comes from the directory's clock.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.health import HEALTHY, SUSPENDED

__all__ = ["Group", "Roster", "Route", "most_suspended"]


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


_Key = TypeVar("_Key")
_Heads = dict[str | None, list[Endpoint]]
"""Heads by revision, None for colocated pods; each list in the order of names."""


def most_suspended(heads: int) -> int:
    """How many of so many heads may be suspended at once: half of them, rounded up, but never all.

    If more pods than that fail, the cause is likely common to all, such as requests that no engine
    can serve. The few pods that have not failed yet would then get the work of all.
    """
    return max(0, min((heads + 1) // 2, heads - 1))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the roster has a pod."""

    pod: Endpoint
    rank: int | None
    """`Health.rank` of a head; None for an absent head and for prefill pods."""


class Roster:
    """Serving pods by rank and revision."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._places: dict[str, _Place] = {}
        self._heads: dict[int, _Heads] = {}
        """By rank. Ranks and revisions without a pod have no entry."""
        self._prefills: dict[str, list[Endpoint]] = {}
        """By revision, in the order of names."""
        self._alarms: list[tuple[float, str]] = []
        """A heap of times at which a pod's rank may change by itself."""
        self._first: list[Group] | None = None
        """Groups of a request's first attempt; None after a change."""
        self._canary = ""
        self._sides: dict[bool, list[Group]] = {}
        """The same of pods of the canary, and of the others."""

    @property
    def canary(self) -> str:
        """The revision to which requests go only on its turn; "" for none."""
        return self._canary

    @canary.setter
    def canary(self, revision: str) -> None:
        self._canary = revision
        self._sides.clear()

    def groups(
        self,
        tried: Collection[str] = (),
        *,
        only_healthy: bool = False,
        revision: str | None = None,
        adapter: str = "",
        canary: bool | None = None,
    ) -> list[Group]:
        """The groups among which a strategy chooses, in a stable order.

        Their heads are pods that this request has not tried (`tried` has their uids), then those of
        the lowest rank. A retry also prefers pods without recent failures. With `only_healthy` the
        list is empty unless an untried pod of rank HEALTHY exists. With a `revision` all pods are
        of that one: only they can go on with a stream. With an `adapter` all heads have it. With
        `canary` all pods are of the canary's revision, or if it is False of others, as long as
        there is one that can serve: see `groups_of_side`.
        """
        self._update()
        if canary is not None and self._canary and revision is None:
            side = self.groups_of_side(tried, only_healthy=only_healthy, adapter=adapter, of=canary)
            if side:
                return side
        if revision is not None or adapter:
            keep = _keeps(revision, adapter)
            return self._of_some(keep, tried, only_healthy=only_healthy)
        if not tried and not only_healthy:
            if self._first is None:
                self._first = self._make_groups(next((heads for _, heads in self._tiers()), {}))
            return self._first
        for rank, heads in self._tiers():
            if only_healthy and rank != HEALTHY:
                return []
            if untried := _filter(heads, lambda pod: pod.uid not in tried):
                return self._make_groups(self._without_failures(untried) if tried else untried)
        if only_healthy:
            return []
        return self._make_groups(
            next((self._without_failures(heads) for _, heads in self._tiers()), {})
        )

    def groups_of_side(
        self,
        tried: Collection[str] = (),
        *,
        only_healthy: bool = False,
        adapter: str = "",
        of: bool,
    ) -> list[Group]:
        """The groups of the canary's revision, or of the others, that this request has not tried.

        Those of the canary are healthy, and whole: a decode pod whose prefill pods do not start
        would show how one without any serves.
        """
        self._update()
        first = not tried and not only_healthy and not adapter
        if first and of in self._sides:
            return self._sides[of]

        def keep(pod: Endpoint) -> bool:
            return (pod.revision == self._canary) is of and (not adapter or adapter in pod.adapters)

        found = self._of_some(keep, tried, only_healthy=only_healthy or of)
        if of:
            found = [one for one in found if one.prefills or one.heads[0].role is Role.COLOCATED]
        found = [one for one in found if all(pod.uid not in tried for pod in one.heads)]
        if first:
            self._sides[of] = found
        return found

    def _of_some(
        self, keep: Callable[[Endpoint], bool], tried: Collection[str], *, only_healthy: bool
    ) -> list[Group]:
        """The same of heads that `keep` takes."""
        tiers = [
            found
            for rank, heads in self._tiers()
            if (rank == HEALTHY or not only_healthy) and (found := _filter(heads, keep))
        ]
        for heads in tiers:
            if untried := _filter(heads, lambda pod: pod.uid not in tried):
                return self._make_groups(self._without_failures(untried) if tried else untried)
        return self._make_groups(tiers[0]) if tiers and not only_healthy else []

    # What a request may be sent to.

    def _tiers(self) -> Iterator[tuple[int, _Heads]]:
        """Heads by rank, best first. Of too many suspended ones the least bad count as healthy."""
        ranks = sorted(self._heads)
        sizes = {rank: sum(map(len, self._heads[rank].values())) for rank in ranks}
        suspended = sum(size for rank, size in sizes.items() if rank >= SUSPENDED)
        kept = suspended - most_suspended(sum(sizes.values()))
        if kept <= 0:
            yield from ((rank, self._heads[rank]) for rank in ranks)
            return
        sick = [
            (rank, pod) for rank in ranks if rank >= SUSPENDED for pod in _flat(self._heads[rank])
        ]
        healthy = _flat(self._heads.get(HEALTHY, {}))
        yield HEALTHY, _by_revision([*healthy, *(pod for _, pod in sick[:kept])])
        yield from ((r, heads) for r, heads in self._heads.items() if HEALTHY < r < SUSPENDED)
        for rank in ranks:
            if rest := [pod for r, pod in sick[kept:] if r == rank]:
                yield rank, _by_revision(rest)

    def _without_failures(self, heads: _Heads) -> _Heads:
        health = self._directory.health
        return _filter(heads, lambda pod: not health.failed_recently(pod.uid)) or heads

    def _make_groups(self, heads: _Heads) -> list[Group]:
        groups = [Group(tuple(heads[None]))] if None in heads else []
        decodes = {revision: pods for revision, pods in heads.items() if revision is not None}
        for revision in sorted(decodes.keys() & self._prefills.keys()):
            groups.append(Group(tuple(decodes[revision]), tuple(self._prefills[revision])))
        return groups or [
            Group(tuple(pods))
            for _, pods in sorted(decodes.items())
            if all(pod.can_compute for pod in pods)
        ]

    # Keeping it up to date.

    def _update(self) -> None:
        """Place the pods anew that changed since, or whose time has come."""
        directory, now = self._directory, self._directory.clock()
        changed = directory.take_changes()
        while self._alarms and self._alarms[0][0] <= now:
            changed.add(heapq.heappop(self._alarms)[1])
        for uid in changed:
            self._place(uid)

    def _place(self, uid: str) -> None:
        pod = self._directory.get(uid)
        if pod is not None and pod.state is not State.SERVING:
            pod = None
        health, old = self._directory.health, self._places.get(uid)
        head = pod is not None and pod.role is not Role.PREFILL
        rank = health.rank(uid) if head else None
        if head and (at := health.changes_at(uid)) is not None:
            heapq.heappush(self._alarms, (at, uid))
        if old is not None and old.pod == pod and old.rank == rank:
            return
        self._first = None
        self._sides.clear()
        if old is not None:
            self._take_out(old)
            del self._places[uid]
        if pod is not None:
            self._places[uid] = place = _Place(pod, rank)
            self._put_in(place)

    def _put_in(self, place: _Place) -> None:
        pod, rank = place.pod, place.rank
        if pod.role is Role.PREFILL:
            insort(self._prefills.setdefault(pod.revision, []), pod, key=_order)
        elif rank is not None:
            heads = self._heads.setdefault(rank, {})
            insort(heads.setdefault(_kind(pod), []), pod, key=_order)

    def _take_out(self, place: _Place) -> None:
        pod, rank = place.pod, place.rank
        if pod.role is Role.PREFILL:
            _drop(self._prefills, pod.revision, pod)
        elif rank is not None:
            _drop(self._heads[rank], _kind(pod), pod)
            if not self._heads[rank]:
                del self._heads[rank]


def _keeps(revision: str | None, adapter: str) -> Callable[[Endpoint], bool]:
    def keep(pod: Endpoint) -> bool:
        of_it = revision is None or pod.revision == revision
        return of_it and (not adapter or adapter in pod.adapters)

    return keep


def _order(pod: Endpoint) -> tuple[str, str]:
    return pod.name, pod.uid


def _kind(pod: Endpoint) -> str | None:
    return None if pod.role is Role.COLOCATED else pod.revision


def _flat(heads: _Heads) -> list[Endpoint]:
    return sorted((pod for pods in heads.values() for pod in pods), key=_order)


def _by_revision(pods: Iterable[Endpoint]) -> _Heads:
    heads: _Heads = {}
    for pod in sorted(pods, key=_order):
        heads.setdefault(_kind(pod), []).append(pod)
    return heads


def _filter(heads: _Heads, keep: Callable[[Endpoint], bool]) -> _Heads:
    left = {kind: [pod for pod in pods if keep(pod)] for kind, pods in heads.items()}
    return {kind: pods for kind, pods in left.items() if pods}


def _drop(lists: dict[_Key, list[Endpoint]], key: _Key, pod: Endpoint) -> None:
    pods = lists[key]
    del pods[bisect_left(pods, _order(pod), key=_order)]
    if not pods:
        del lists[key]
