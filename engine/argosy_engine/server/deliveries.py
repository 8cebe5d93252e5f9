"""From the engine thread to the event loop, once a step.

While the event loop is behind, what several steps bring is one delivery: a client gets its tokens
of all of them in one write, which costs as much as the write of one token. Where the loop keeps up,
each step is a delivery of its own.
"""

from collections import deque
from collections.abc import Callable

from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission
from argosy_engine.runtime.inbox import Sink
from argosy_engine.runtime.loop import Delivery


class Deliveries:
    """Batches that wait for the event loop, in the order of their steps."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` has the event loop call a function, from any thread."""
        self._call_soon = call_soon
        self._waiting: deque[list[Delivery]] = deque()

    def post(self, batch: list[Delivery]) -> None:
        """Bring a batch to the sinks soon. Called on the engine thread only."""
        self._waiting.append(batch)
        if len(self._waiting) == 1:  # else a call is due that has not taken the first one yet
            self._call_soon(self._hand_over)

    def _hand_over(self) -> None:
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
