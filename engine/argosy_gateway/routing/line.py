"""The requests that wait, and their order. Pure.

A request is in time until the last moment at which its prompt could begin and still meet its limit
(`start_by`); from then on it is late. Requests in time go by priority, then by flow, the flow that
was served the fewest tokens first, then by `start_by`. Late ones go in order of arrival, a request
of each flow in turn.

Flows are served as start-time fair queueing does (Goyal et al. 1996): a flow that comes back counts
as served as much as the flow that was served last had been. So its first request goes next, however
much waits in other flows, and it has saved nothing up.
"""

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from argosy_gateway.routing.strategies import RoutingRequest

__all__ = ["RECENT_TOKENS", "Line", "Waiting"]

RECENT_TOKENS = 100_000
"""Prompt tokens of one flow for which another that waits no longer is remembered as present."""
_MOST_FLOWS = 1024
"""Flows of a priority whose share is remembered while none of their requests waits."""


@dataclass(eq=False, slots=True)
class Waiting:
    """One request that waits, or asks whether it must."""

    request: RoutingRequest
    received_at: float
    """Clock time of its first byte, in seconds."""
    limit_s: float
    """TTFT limit of its class."""
    priority: int = 0
    """Lower goes first."""
    flow: str = ""
    """Requests of one flow share what the flow is served."""
    start_by: float = inf
    """Last clock time at which its prompt could begin and meet the limit."""
    number: int = 0
    """Order of arrival."""
    late: bool = False
    left: bool = False
    """It no longer waits."""


@dataclass(eq=False, slots=True)
class _Flow:
    name: str
    served: float = 0.0
    """Prompt tokens, counted from the share of the flow that was served last when it came."""
    turn: int = 0
    """Breaks ties: of flows that were served alike, the one that came first goes first."""
    waiting: list[Waiting] = field(default_factory=list)
    """In time, by `start_by`."""

    @property
    def share(self) -> tuple[float, int]:
        return self.served, self.turn


class _Flows:
    """The flows of one priority."""

    def __init__(self) -> None:
        self.order: list[_Flow] = []
        """Those with a request in time, by `share`."""
        self._busy: dict[str, _Flow] = {}
        """The same by name."""
        self._idle: OrderedDict[str, _Flow] = OrderedDict()
        self._served = 0.0
        """What the flow that was served last had been served before."""
        self._turns = 0

    def add(self, one: Waiting) -> None:
        flow = self._busy.get(one.flow)
        if flow is None:
            flow = self._idle.pop(one.flow, None) or _Flow(one.flow)
            flow.served = max(flow.served, self._served)
            self._turns += 1
            flow.turn = self._turns
            self._busy[one.flow] = flow
            insort(self.order, flow, key=attrgetter("share"))
        insort(flow.waiting, one, key=attrgetter("start_by"))

    def remove(self, one: Waiting) -> None:
        flow = self._busy[one.flow]
        at = bisect_left(flow.waiting, one.start_by, key=attrgetter("start_by"))
        del flow.waiting[flow.waiting.index(one, at)]
        if not flow.waiting:
            del self._busy[flow.name], self.order[self._at(flow)]
            self._idle[flow.name] = flow
            if len(self._idle) > _MOST_FLOWS:
                self._idle.popitem(last=False)

    def charge(self, name: str, tokens: int) -> None:
        """So many tokens of this flow are served."""
        flow = self._busy.get(name)
        if flow is not None:
            del self.order[self._at(flow)]
            self._served = flow.served
            flow.served += tokens
            insort(self.order, flow, key=attrgetter("share"))
        elif (flow := self._idle.get(name)) is not None:
            flow.served += tokens

    def others(self, name: str) -> bool:
        """Whether a flow of another name waits, or did within the newest RECENT_TOKENS."""
        if len(self._busy) > (name in self._busy):
            return True
        newest = next(reversed(self._idle.values()), None)
        if newest is None or newest.name == name:
            return False
        return newest.served > self._served - RECENT_TOKENS

    def _at(self, flow: _Flow) -> int:
        return bisect_left(self.order, flow.share, key=attrgetter("share"))


class Line:
    """All that wait."""

    def __init__(self) -> None:
        self._flows: dict[int, _Flows] = {}
        """By priority."""
        self._due: list[tuple[float, int, Waiting]] = []
        """Heap of (start_by, number, request); what left, or is late, is dropped in front."""
        self._late: OrderedDict[str, list[Waiting]] = OrderedDict()
        """Flow → its late requests by arrival. The flow whose turn it is comes first."""
        self._waiting = 0
        self._arrivals = 0
        self.tokens = 0
        """Prompt tokens of all that wait."""

    def __len__(self) -> int:
        return self._waiting

    def add(self, one: Waiting) -> None:
        """A request begins to wait; its `start_by` is set."""
        self._arrivals += 1
        one.number = self._arrivals
        self._waiting += 1
        self.tokens += one.request.prompt_tokens
        self._flows.setdefault(one.priority, _Flows()).add(one)
        heapq.heappush(self._due, (one.start_by, one.number, one))

    def remove(self, one: Waiting) -> None:
        """It was dispatched, gave up, or its client left. A second call does nothing."""
        if one.left:
            return
        one.left = True
        self._waiting -= 1
        self.tokens -= one.request.prompt_tokens
        if not self._waiting:
            self._due.clear()
        if not one.late:
            self._flows[one.priority].remove(one)
            return
        late = self._late[one.flow]
        del late[bisect_left(late, one.number, key=attrgetter("number"))]
        if not late:
            del self._late[one.flow]

    def serve(self, one: Waiting) -> None:
        """It is dispatched: its flow is charged."""
        self._flows[one.priority].charge(one.flow, one.request.prompt_tokens)
        if one.late:
            self._late.move_to_end(one.flow)
        self.remove(one)

    def first_in_time(self, now: float, begins_at: float) -> Waiting | None:
        """The first of those that meet their limit if their prompt begins at `begins_at`."""
        self._age(now)
        for priority in sorted(self._flows):
            for flow in self._flows[priority].order:
                index = bisect_left(flow.waiting, begins_at, key=attrgetter("start_by"))
                if index < len(flow.waiting):
                    return flow.waiting[index]
        return None

    def others(self, one: Waiting) -> bool:
        """Whether other flows of its priority have requests that what it takes could delay."""
        flows = self._flows.get(one.priority)
        return flows is not None and flows.others(one.flow)

    def first_late(self) -> Waiting | None:
        """The late one that came first of the flow whose turn it is."""
        return next(iter(self._late.values()))[0] if self._late else None

    def earliest(self) -> Waiting | None:
        """Of those that are in time, whatever their priorities, the one that must begin first."""
        while self._due and (self._due[0][2].left or self._due[0][2].late):
            heapq.heappop(self._due)
        return self._due[0][2] if self._due else None

    def _age(self, now: float) -> None:
        """Move what can no longer meet its limit to the late ones."""
        while (one := self.earliest()) is not None and one.start_by < now:
            heapq.heappop(self._due)
            self._flows[one.priority].remove(one)
            one.late = True
            insort(self._late.setdefault(one.flow, []), one, key=attrgetter("number"))
