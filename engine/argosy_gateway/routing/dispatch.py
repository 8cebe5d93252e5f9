"""Which waiting request goes next, and to which pods. Pure.

A request is dispatched at once if its predicted TTFT on the best pod is within its limit. What
would miss on every pod waits. While a pod has nearly nothing outstanding, something is dispatched
to it as long as anything waits: a pod is never idle for the sake of the order. Of LATE_EVERY
dispatches one goes to the late request that came first, so the late request at place p of its line
goes after at most p · LATE_EVERY dispatches.
"""

import heapq
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.estimates import Margin, Places, PodPace
from argosy_gateway.routing.line import Line, Waiting
from argosy_gateway.routing.load import IDLE, PodLoad
from argosy_gateway.routing.roster import Group, Route
from argosy_gateway.routing.strategies import PREFILL_CANDIDATES, RoutingRequest

__all__ = ["FEW_GATEWAYS", "LATE_EVERY", "Dispatch", "GatewayShares", "Grant", "PodOrder"]

Key = tuple[Any, ...]


class PodOrder:
    """Some pods in the order of a key that changes pod by pod: the lowest first, then by uid.

    `Dispatch` asks for the first pods whenever a load falls. A heap has an entry for each pod, made
    anew when the pod is touched, so a look at a thousand pods costs what one at ten does. A key may
    also change without a touch, as with what is learnt about all pods. So an entry that comes to
    the front is compared with the pod's key of now, and is put back if it differs.
    """

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


FEW_GATEWAYS = 2
"""So many share every pod: one prompt of each keeps a pod busy without a gap."""
_MUCH = 4
"""Waiting requests for each pod of a gateway's share from which on it keeps to its share. Fewer may
go to any pod, so that none is idle at ordinary load because its gateway has nothing for it."""

_MOST_KEPT = 7
"""Groups whose shares are kept besides the newest."""
_Pod = TypeVar("_Pod")


class GatewayShares:
    """How the gateways of a fleet divide its pods while many requests wait.

    A gateway sees only its own requests. If each of eight keeps one long prompt on every pod, each
    prompt waits for seven others that nobody counted, and all of them miss. So while much waits in
    a gateway, it sends what waits only to its share of the pods. Who has which pods follows from
    the names of the gateways and the order of the pods, which all of them know.
    """

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

    def share_of(self, pods: Sequence[_Pod]) -> Sequence[_Pod]:
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


LATE_EVERY = 16
"""Of so many dispatches one is a late one's, if any is late: what it costs goodput, and how long
the late ones wait."""
STEP_TOKENS = 2048
"""Most prompt tokens of a step, unless the engine is told another number: its default on a GPU, and
what it never exceeds where it chooses for itself. So a pod has at least a step of prompts."""
FEW_PROMPTS = 2
"""One that is computed and one that follows it without a gap."""
HOLD = 0.4
"""Share of the limit: behind a longer backlog a prompt would only wait in the engine's queue, in
the order of arrival; here it waits in this queue's order, and goes where a pod is free first."""
TURN = 2
"""Times that a prompt takes: so long a late one waits for gateways that share its pod."""
_MOST_ORDERS = 16
"""One for colocated pods and two for each revision of pairs, and as many of shares."""
SHORT = 0.1
"""Share of the limit: a backlog that is shorter, and fits into one step, is nearly nothing."""

Avoids = Callable[[str, str], bool]
Choose = Callable[[RoutingRequest], Route | None]


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that goes now."""

    waiting: Waiting
    route: Route


@dataclass(frozen=True, slots=True)
class _Opening:
    """The pods on which a prompt would begin first."""

    route: Route
    backlog_s: float
    """Predicted time until its prompt begins."""


class Dispatch:
    """The decisions of one gateway; see the module."""

    def __init__(
        self,
        places: int | None = None,
        avoids: Avoids = lambda _p, _d: False,
        tpot_limit_s: float | None = None,
    ) -> None:
        """`places` are the sequences that an engine runs at once; None: not known, no bound.

        `avoids` is that of `FleetView`. `tpot_limit_s` bounds the places of decode pods, too.
        """
        self._avoids = avoids
        self.line = Line()
        self.pace = PodPace()
        self.margin = Margin()
        self.shares = GatewayShares()
        self._places = places
        self._tpot_limit_s, self._in_tpot = tpot_limit_s, Places(tpot_limit_s)
        self._since_late = 0
        self._sent_at = float("-inf")
        """When a request that had waited went last."""
        self._loads: Mapping[str, PodLoad] = {}
        self._orders: dict[tuple[str, str, bool], PodOrder] = {}
        """By role, revision, and whether they are of this gateway's share."""
        self._pods = 1
        self._apart = False
        """This gateway keeps to its share of the pods."""
        self._shortest_s = float("inf")

    def reconfigure(self, places: int | None, tpot_limit_s: float | None) -> None:
        """Go on by other bounds. What bounds decode pods is learnt anew if its limit changes."""
        self._places = places
        if tpot_limit_s != self._tpot_limit_s:
            self._tpot_limit_s, self._in_tpot = tpot_limit_s, Places(tpot_limit_s)
        self._shortest_s = float("inf")

    def route_at_once(
        self, one: Waiting, now: float, loads: Mapping[str, PodLoad], choose: Choose
    ) -> Route | None:
        """The route of a request that need not wait; None if it must.

        It sets `start_by`.
        """
        self._shortest_s = min(self._shortest_s, one.limit_s)
        own_s = self.pace.seconds("", one.request.prompt_tokens)
        one.start_by = one.received_at + self.margin.share(now) * one.limit_s - own_s
        route = None if self.line else choose(one.request)
        if route is None or not self._has_place(loads, route.head.uid):
            return None
        backlog_s = self._backlog_s(loads, route.prefiller.uid)
        goes = self._has_room(loads, route.prefiller.uid, one) and now + backlog_s <= one.start_by
        return route if goes else None

    def next(
        self, now: float, groups: Sequence[Group], loads: Mapping[str, PodLoad], choose: Choose
    ) -> Grant | None:
        """The next request that goes now; None if all must wait. It leaves the line."""
        self._pods = sum(len(g.prefills or g.heads) for g in groups)
        self._apart = self.shares.keeps(len(self.line), self._pods)
        opening = self._opening(groups, loads) if self.line else None
        if opening is None:
            return None
        one = self._choose_waiting(now, opening, loads)
        if one is None:
            return None
        self._sent_at = now
        self._since_late = 0 if one.late or self.line.first_late() is None else self._since_late + 1
        self.line.serve(one)
        return Grant(one, self._route(one, now, opening, loads, choose))

    def wait_s(self, groups: Sequence[Group], loads: Mapping[str, PodLoad], tokens: int) -> float:
        """Predicted time until everything that is ahead of a new request is computed."""
        pods = {pod.uid for g in groups for pod in (g.prefills or g.heads)}
        paces = [pace for uid in pods if (pace := self.pace.tokens_per_s(uid))]
        ahead = self.line.tokens + sum(loads.get(uid, IDLE).prompt_tokens for uid in pods)
        return (ahead + tokens) / sum(paces) if paces else 0.0

    def has_opening(
        self,
        now: float,
        groups: Sequence[Group],
        loads: Mapping[str, PodLoad],
        tokens: int,
        limit_s: float,
    ) -> bool:
        """Whether a request that came now would meet its limit without waiting."""
        opening = self._opening(groups, loads)
        if opening is None:
            return False
        own_s = self.pace.seconds(opening.route.prefiller.uid, tokens)
        return opening.backlog_s + own_s <= self.margin.share(now) * limit_s

    def observe(
        self,
        uid: str,
        *,
        ahead: int,
        own: int,
        received_at: float,
        sent_at: float,
        first_at: float,
        limit_s: float,
    ) -> None:
        """A first token came from a pod; the times are the clock's.

        `ahead` are the prompt tokens that were outstanding when it was sent, with its own.
        """
        predicted_s = sent_at - received_at + self.pace.seconds(uid, ahead)
        self.margin.observe(
            predicted_s=predicted_s,
            ttft_s=first_at - received_at,
            limit_s=limit_s,
            sent_at=sent_at,
            now=first_at,
        )
        self.pace.observe(uid, ahead=ahead, own=own, seconds=first_at - sent_at)
        self.touch(uid)

    def observe_tpot(
        self, uid: str, tpot_s: float, loads: Mapping[str, PodLoad], now: float
    ) -> None:
        """The streams of a decode pod took so long for a token lately, in the mean."""
        sequences = loads.get(uid, IDLE).sequences
        self._in_tpot.observe(uid, sequences=sequences, tpot_s=tpot_s, now=now)
        self.touch(uid)

    def _choose_waiting(
        self, now: float, opening: _Opening, loads: Mapping[str, PodLoad]
    ) -> Waiting | None:
        pod = opening.route.prefiller.uid
        in_time = self.line.first_in_time(now, now + opening.backlog_s)
        late = self.line.first_late()
        spare = self._is_nearly_idle(loads, pod)
        first = in_time or self.line.earliest()
        if late is not None and (self._since_late >= LATE_EVERY - 1 or in_time is None):
            first = late
        if in_time is None and first is not None and self._leaves_turn(now, first, pod):
            return None
        if first is None or spare:
            return first
        return first if in_time is not None and self._has_room(loads, pod, first) else None

    def _leaves_turn(self, now: float, one: Waiting, pod: str) -> bool:
        """Whether a request that misses leaves its pod to other gateways that have the same one:
        they may have a request in time."""
        if not self._apart or self.shares.gateways <= self._pods:
            return False
        prompt_s = self.pace.seconds(pod, one.request.prompt_tokens)
        return now < self._sent_at + TURN * prompt_s

    def _route(
        self,
        one: Waiting,
        now: float,
        opening: _Opening,
        loads: Mapping[str, PodLoad],
        choose: Choose,
    ) -> Route:
        """The strategy's route if it is as good for this request, else the quickest one."""
        if self._apart:
            return opening.route
        route = choose(one.request)
        if route is None or not self._has_place(loads, route.head.uid):
            return opening.route
        pod = route.prefiller.uid
        if one.late or now + opening.backlog_s > one.start_by:
            return route if self._is_nearly_idle(loads, pod) else opening.route
        return route if now + self._backlog_s(loads, pod) <= one.start_by else opening.route

    def touch(self, uid: str) -> None:
        """The load of a pod changed, or what is known of it."""
        for order in self._orders.values():
            order.touch(uid)

    def _opening(self, groups: Sequence[Group], loads: Mapping[str, PodLoad]) -> _Opening | None:
        if loads is not self._loads:
            self._loads = loads
            self._orders.clear()
        openings = [found for g in groups if (found := self._opening_of(g, loads))]
        return min(openings, key=lambda found: found.backlog_s, default=None)

    def _opening_of(self, group: Group, loads: Mapping[str, PodLoad]) -> _Opening | None:
        key = self._by_sequences if group.prefills else self._by_room
        head = self._order(group.heads, key).first()
        if head is None or not self._has_place(loads, head.uid):
            return None
        if not group.prefills:
            return _Opening(Route(head), self._backlog_s(loads, head.uid))
        prefills = self._prefills(group.prefills, head.uid)
        return _Opening(Route(head, prefills), self._backlog_s(loads, prefills[0].uid))

    def _prefills(self, pods: Sequence[Endpoint], head: str) -> tuple[Endpoint, ...]:
        """Those with the shortest backlog; pods that the head avoids come after the others."""
        best: list[Endpoint] = []
        avoided: list[Endpoint] = []
        order = self._order(pods, self._by_backlog).pods()
        for pod in order:
            (avoided if self._avoids(pod.uid, head) else best).append(pod)
            if len(best) == PREFILL_CANDIDATES:
                break
        order.close()
        return (*best, *avoided)[:PREFILL_CANDIDATES]

    def _order(self, pods: Sequence[Endpoint], key: Callable[[str], Any]) -> PodOrder:
        """The order of a group's pods; of its share of them, if this gateway keeps to that."""
        shared = self._apart and key != self._by_sequences
        name = (pods[0].role, pods[0].revision if pods[0].role != "colocated" else "", shared)
        if name not in self._orders and len(self._orders) >= _MOST_ORDERS:
            self._orders.clear()
        order = self._orders.get(name)
        if order is None:
            order = self._orders[name] = PodOrder(key)
        order.update(self.shares.share_of(pods) if shared else pods)
        return order

    def _by_backlog(self, uid: str) -> tuple[float, int]:
        tokens = self._loads.get(uid, IDLE).prompt_tokens
        return self.pace.seconds(uid, tokens), tokens

    def _by_room(self, uid: str) -> tuple[bool, tuple[float, int]]:
        """Of colocated pods: those without a free place come last."""
        return not self._has_place(self._loads, uid), self._by_backlog(uid)

    def _by_sequences(self, uid: str) -> tuple[bool, int]:
        """Of decode pods: those without a free place come last."""
        return not self._has_place(self._loads, uid), self._loads.get(uid, IDLE).sequences

    def _backlog_s(self, loads: Mapping[str, PodLoad], uid: str) -> float:
        return self.pace.seconds(uid, loads.get(uid, IDLE).prompt_tokens)

    def _has_room(self, loads: Mapping[str, PodLoad], uid: str, one: Waiting) -> bool:
        """Whether a request is dispatched to a pod on which it meets its limit.

        Otherwise the pod has a full step of prompts, and another prompt to follow them. While there
        are other flows, the request's own prompt counts, too: theirs would wait for it.
        """
        load = loads.get(uid, IDLE)
        few = self.shares.each(FEW_PROMPTS, self._pods, apart=self._apart)
        if load.prompts < few or load.prompt_tokens < STEP_TOKENS:
            return True
        tokens = load.prompt_tokens
        if self.line.others(one):
            tokens += one.request.prompt_tokens
        return self.pace.seconds(uid, tokens) <= HOLD * self._shortest_s

    def _is_nearly_idle(self, loads: Mapping[str, PodLoad], uid: str) -> bool:
        load = loads.get(uid, IDLE)
        if self.shares.gateways > FEW_GATEWAYS and loads and not self._apart:
            outstanding = sum(other.prompts for other in loads.values())
            if outstanding >= max(1, FEW_PROMPTS * self._pods / self.shares.gateways):
                return False
        if not load.prompts or self.pace.tokens_per_s(uid) is None:
            return True
        short = self.pace.seconds(uid, load.prompt_tokens) < SHORT * self._shortest_s
        return short and load.prompt_tokens < STEP_TOKENS

    def _has_place(self, loads: Mapping[str, PodLoad], uid: str) -> bool:
        """Whether this gateway may have one more sequence on a pod.

        Twice an even share: gateways that have fewer requests leave their places to the others.
        """
        sequences = loads.get(uid, IDLE).sequences
        if self._places is not None:
            share = min(self._places, -(-2 * self._places // self.shares.gateways))
            if sequences >= share:
                return False
        return self._in_tpot.has_room(uid, sequences)
