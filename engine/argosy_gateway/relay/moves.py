"""Which requests leave draining pods now (`drain.mode: migrate`).

Each one that leaves has its prompt and its text so far computed elsewhere. All requests of a pod at
once would be a burst of prompts, and new requests would wait behind it for their first token. Only
a few leave at a time, and the next one when one of these goes on. `relay` asks; `attempt` reports.
"""

from collections.abc import Callable

__all__ = ["Moves"]

_LONGEST_S = 5.0
"""A move that takes longer, because no pod takes the request, does not hold up the others."""


class Moves:
    """The requests that are on their way from a draining pod to another one."""

    def __init__(self, clock: Callable[[], float], most: Callable[[], int]) -> None:
        """`most`: how many may be on their way, at this moment."""
        self._clock, self._most = clock, most
        self._under_way: dict[object, float] = {}
        """Requests that have left, and when."""
        self._waiting: dict[object, Callable[[], bool]] = {}
        """What makes a request leave, in the order in which they asked."""

    def ask(self, request: object, leave: Callable[[], bool]) -> None:
        """`leave` is called when it is this request's turn, maybe at once, and says whether it has
        left. To be asked again until it has."""
        if request not in self._under_way:
            self._waiting[request] = leave
            self._let_leave()

    def ended(self, request: object) -> None:
        """The request goes on elsewhere, or has ended; it may not have moved at all."""
        self._waiting.pop(request, None)
        if self._under_way.pop(request, None) is not None:
            self._let_leave()

    def _let_leave(self) -> None:
        now = self._clock()
        late = [r for r, left_at in self._under_way.items() if now - left_at >= _LONGEST_S]
        for request in late:
            del self._under_way[request]
        while self._waiting and len(self._under_way) < self._most():
            request = next(iter(self._waiting))
            leave = self._waiting.pop(request)
            if leave():
                self._under_way[request] = now
