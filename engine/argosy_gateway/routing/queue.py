"""The queue of one gateway process: requests await their route here.

`relay` awaits `route` for the first attempt of a request. A retry does not wait again: its engine
failed, and its client has waited already. Loads that fall (`routing.load`) and changes of pods
(`pods.endpoints`) let the next ones go; `relay.attempt` reports first tokens.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from argosy_gateway.pods.endpoints import Directory
from argosy_gateway.routing.dispatch import Dispatch, Grant
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import InFlight, Reservation
from argosy_gateway.routing.roster import Group, Route
from argosy_gateway.routing.strategies import FleetView, RoutingRequest, Strategy

__all__ = ["Queue"]

log = logging.getLogger(__name__)

_LOOK_S = 0.1
"""While requests wait, how often times that no event announces are looked at."""


class Queue:
    """Waiting requests, and what lets them go; `dispatch` decides."""

    def __init__(
        self,
        *,
        groups: Callable[[], Sequence[Group]],
        directory: Directory,
        in_flight: InFlight,
        view: FleetView,
        strategy: Strategy,
        clock: Callable[[], float],
        places: int | None,
        tpot_limit_s: float | None = None,
        name: str = "",
    ) -> None:
        """`places`: sequences that an engine runs at once; None if it is not known. `name`: of this
        gateway's pod."""
        self._name = name
        self.dispatch = Dispatch(places, view.avoids, tpot_limit_s)
        self._groups = groups
        self._directory = directory
        self._in_flight = in_flight
        self._strategy = strategy
        self._view = view
        self._clock = clock
        self._answers: dict[Waiting, asyncio.Future[Route | None]] = {}
        self._until: dict[Waiting, float] = {}
        """Clock time at which a request stops waiting; in the order of arrival."""
        self._granted: dict[Waiting, Reservation] = {}
        """Loads of requests that may go and whose attempt has not begun yet."""
        self._soon = False
        self._watcher: asyncio.Task[None] | None = None
        self._released, self._changed = in_flight.released, in_flight.changed
        in_flight.released, in_flight.changed = self._look_at_free, self._touch

    def reconfigure(
        self, strategy: Strategy, places: int | None, tpot_limit_s: float | None
    ) -> None:
        """Go on by other settings, with what waits and what was learnt."""
        self._strategy = strategy
        self.dispatch.reconfigure(places, tpot_limit_s)
        self._look_soon()

    def __len__(self) -> int:
        return len(self.dispatch.line)

    @property
    def prompt_tokens(self) -> int:
        """Estimated prompt tokens of all that wait."""
        return self.dispatch.line.tokens

    async def route(self, one: Waiting, timeout_s: float) -> Route | None:
        """The pods of a request, as soon as it may go; None after `timeout_s`."""
        self._count_gateways()
        route = self.dispatch.route_at_once(one, self._clock(), self._in_flight.loads, self._choose)
        return route or await self._wait(one, timeout_s)

    def refusal_s(self, tokens: int, *, limit_s: float, timeout_s: float) -> float | None:
        """Seconds after which a new request should come again; None if it may come now."""
        if not self.dispatch.line:
            return None
        groups, loads = self._groups(), self._in_flight.loads
        wait_s = self.dispatch.wait_s(groups, loads, tokens)
        if wait_s <= timeout_s:
            return None
        if self.dispatch.has_opening(self._clock(), groups, loads, tokens, limit_s):
            return None
        return wait_s - timeout_s

    def observe_streams(self, took: Mapping[str, Sequence[float]]) -> None:
        """Seconds per token of each stream lately, by uid of its decode pod.

        All sequences of a pod share its steps. So the quicker streams show how long these take, and
        the others how slowly their clients read.
        """
        for uid, tpots in took.items():
            tpot_s = sorted(tpots)[len(tpots) // 4]
            self.dispatch.observe_tpot(uid, tpot_s, self._in_flight.loads, self._clock())
        self._look_soon()

    def _choose(self, request: RoutingRequest) -> Route | None:
        return self._strategy.choose(request, self._groups(), self._view)

    async def _wait(self, one: Waiting, timeout_s: float) -> Route | None:
        answer = self._answers[one] = asyncio.get_running_loop().create_future()
        self._until[one] = self._clock() + timeout_s
        self.dispatch.line.add(one)
        try:
            self._look()
            if self._watcher is None or self._watcher.done():
                self._watcher = asyncio.create_task(self._watch())
            route: Route | None = await answer
            return route
        finally:
            self.dispatch.line.remove(one)
            del self._answers[one], self._until[one]
            if (reservation := self._granted.pop(one, None)) is not None:
                reservation.end()  # the attempt makes its own before another task runs

    def _look_at_free(self) -> None:
        self._released()  # another queue of the same gateway looks, too
        self._look_soon()

    def _touch(self, uid: str) -> None:
        self._changed(uid)
        self.dispatch.touch(uid)

    def _look_soon(self) -> None:
        """Several loads that fall at once are looked at together."""
        if self.dispatch.line and not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Let go what may go."""
        self._soon = False
        self._count_gateways()
        now = self._clock()
        while (grant := self._next(now)) is not None:
            one = grant.waiting
            self._granted[one] = self._in_flight.reserve(grant.route, one.request.prompt_tokens)
            if not self._answers[one].done():
                self._answers[one].set_result(grant.route)

    def _count_gateways(self) -> None:
        self.dispatch.shares.count(self._directory.gateways.values(), self._name)

    def _next(self, now: float) -> Grant | None:
        if not self.dispatch.line:
            return None
        return self.dispatch.next(now, self._groups(), self._in_flight.loads, self._choose)

    async def _watch(self) -> None:
        """Follow changes of pods, and the time, while anything waits."""
        while self.dispatch.line:
            await self._directory.wait_for_change(_LOOK_S)
            try:
                self._look()
            except Exception:  # every waiting request gets an answer
                log.exception("the queue let nobody go")
            self._end_waits()

    def _end_waits(self) -> None:
        now = self._clock()
        for one, until in self._until.items():
            if until <= now and not self._answers[one].done():
                self._answers[one].set_result(None)
                self.dispatch.line.remove(one)
