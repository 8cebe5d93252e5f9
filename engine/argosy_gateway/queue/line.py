"""The requests that wait, and their order. Pure.

A request is in time until the last moment at which its prompt could begin and still meet its limit
(`start_by`); from then on it is late. Requests in time go by priority, then by flow, the flow that
was served the fewest tokens first, then by `start_by`. Late ones go in order of arrival.
"""

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter

from argosy_gateway.routing.strategies.strategy import RoutingRequest

__all__ = ["Line", "Waiting"]

_MOST_FLOWS = 1024
"""Flows whose share is remembered while none of their requests waits."""


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
    start_by: float = float("inf")
    """Last clock time at which its prompt could begin and meet the limit."""
    number: int = 0
    """Order of arrival."""
    late: bool = False
    left: bool = False
    """It no longer waits."""


@dataclass(slots=True)
class _Flow:
    served: float = 0.0
    """Prompt tokens, counted from the share of the flow that had the least when it came."""
    waiting: list[Waiting] = field(default_factory=list)
    """In time, by `start_by`."""


class Line:
    """All that wait."""

    def __init__(self) -> None:
        self._in_time: dict[int, dict[str, _Flow]] = {}
        """Priority → flow → its requests."""
        self._late: list[tuple[int, Waiting]] = []
        """Heap by arrival; entries that have left are dropped when they come to the front."""
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
        insort(self._flow(one).waiting, one, key=attrgetter("start_by"))

    def remove(self, one: Waiting) -> None:
        """It was dispatched, gave up, or its client left. A second call does nothing."""
        if one.left:
            return
        one.left = True
        self._waiting -= 1
        self.tokens -= one.request.prompt_tokens
        if not one.late:
            flow = self._flow(one)
            flow.waiting.remove(one)
            self._forget(one.priority)

    def serve(self, one: Waiting) -> None:
        """It is dispatched: its flow is charged."""
        flow = self._flow(one)
        flow.served += one.request.prompt_tokens
        self.remove(one)

    def in_time(self, now: float, begins_at: float) -> Waiting | None:
        """The first of those that meet their limit if their prompt begins at `begins_at`."""
        self._age(now)
        for priority in sorted(self._in_time):
            chosen, least = None, float("inf")
            for flow in self._in_time[priority].values():
                index = bisect_left(flow.waiting, begins_at, key=attrgetter("start_by"))
                if index < len(flow.waiting) and flow.served < least:
                    chosen, least = flow.waiting[index], flow.served
            if chosen is not None:
                return chosen
        return None

    def late(self) -> Waiting | None:
        """The late one that came first."""
        while self._late and self._late[0][1].left:
            heapq.heappop(self._late)
        return self._late[0][1] if self._late else None

    def any(self) -> Waiting | None:
        """The one that came first of those that are in time, whatever their limits."""
        flows = (flow for flows in self._in_time.values() for flow in flows.values())
        waiting = (one for flow in flows for one in flow.waiting)
        return min(waiting, key=attrgetter("number"), default=None)

    def _age(self, now: float) -> None:
        """Move what can no longer meet its limit to the late ones."""
        for flow in (flow for flows in self._in_time.values() for flow in flows.values()):
            count = bisect_left(flow.waiting, now, key=attrgetter("start_by"))
            for one in flow.waiting[:count]:
                one.late = True
                heapq.heappush(self._late, (one.number, one))
            del flow.waiting[:count]

    def _flow(self, one: Waiting) -> _Flow:
        flows = self._in_time.setdefault(one.priority, {})
        flow = flows.get(one.flow)
        if flow is None:
            flow = flows[one.flow] = _Flow()
        if not flow.waiting:  # a flow that comes back has saved nothing up
            busy = [other.served for other in flows.values() if other.waiting]
            flow.served = max(flow.served, min(busy, default=0.0))
        return flow

    def _forget(self, priority: int) -> None:
        """Bound the memory of flows that do not wait."""
        flows = self._in_time[priority]
        if len(flows) > _MOST_FLOWS:
            idle = [name for name, flow in flows.items() if not flow.waiting]
            for name in idle:
                del flows[name]
