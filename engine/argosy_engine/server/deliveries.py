"""From the engine thread to the event loop, once a step.

While the event loop is behind, what several steps bring is one delivery: a client gets its tokens
of all of them in one write, which costs as much as the write of one token. The loop then also rests
after a delivery for as long as that took. Each write takes the interpreter's lock from the engine
thread, whose next step is late by then. Where the loop keeps up, each step is a delivery of its own
that waits for nothing.
"""

import asyncio
from collections import deque

from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission
from argosy_engine.runtime.inbox import Sink
from argosy_engine.runtime.loop import Delivery

MOST_REST_S = 0.01
"""No token waits longer for the rest to end. 256 tokens take about 5 ms to deliver."""


class Deliveries:
    """Batches that wait for the event loop, in the order of their steps."""

    def __init__(self, aio: asyncio.AbstractEventLoop) -> None:
        self._aio = aio
        self._waiting: deque[list[Delivery]] = deque()
        self._rests_until = 0.0
        """By the event loop's clock."""

    def post(self, batch: list[Delivery]) -> None:
        """Bring a batch to the sinks soon. Called on the engine thread only."""
        self._waiting.append(batch)
        if len(self._waiting) == 1:  # else a call is due that has not taken the first one yet
            self._aio.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        rest_s = self._rests_until - self._aio.time()
        if rest_s > 0:
            self._aio.call_later(rest_s, self._hand_over)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        began = self._aio.time()
        tokens: dict[Sink, list[Emission]] = {}
        refusals: list[tuple[Sink, Refusal]] = []
        while self._waiting:
            for sink, event in self._waiting.popleft():
                if isinstance(event, Refusal):
                    refusals.append((sink, event))
                else:
                    tokens.setdefault(sink, []).append(event)
        for sink, emissions in tokens.items():
            sink.emit(*emissions)
        for sink, refusal in refusals:  # nothing comes to a sink after its refusal
            sink.refuse(refusal)
        if self._waiting:  # the engine was faster
            now = self._aio.time()
            self._rests_until = now + min(now - began, MOST_REST_S)
