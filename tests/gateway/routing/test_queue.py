"""The queue as a relay meets it: who goes first, and who is told to come again. No sockets."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import InFlight, Reservation
from argosy_gateway.routing.queue import Queue
from argosy_gateway.routing.roster import Group, Route
from argosy_gateway.routing.strategies import FleetView, LeastLoad, RoutingRequest

PACE = 1000.0


@dataclass
class Begun:
    """An attempt."""

    route: Route
    place: Reservation


class Fleet:
    """One engine with one place, which a request has; each test says when it is free."""

    def __init__(self, *, avoids=lambda _p, _d: False, pods=(("e", Role.COLOCATED),)) -> None:
        self.now = 100.0
        self.in_flight = InFlight()
        self.pods = [Endpoint(n, n, "", role, "r", State.SERVING) for n, role in pods]
        heads = tuple(pod for pod in self.pods if pod.role is not Role.PREFILL)
        prefills = tuple(pod for pod in self.pods if pod.role is Role.PREFILL)
        directory = Directory(lambda: self.now)
        self.queue = Queue(
            groups=lambda: [Group(heads, prefills)],
            directory=directory,
            in_flight=self.in_flight,
            view=FleetView(self.in_flight.loads, avoids),
            strategy=LeastLoad(random.Random(1)),
            clock=lambda: self.now,
            places=1,
        )
        self.first = self.in_flight.reserve(Route(heads[0]), 10)
        self.tasks: list[asyncio.Task[Begun | None]] = []

    def learn(self, pace: float = PACE) -> None:
        for pod in self.pods:
            for _ in range(4):
                self.queue.dispatch.pace.observe(pod.uid, ahead=2000, own=1000, seconds=2000 / pace)

    async def ask(
        self, tokens: int = 100, limit_s: float = 9.0, timeout_s: float = 50.0, name: str = ""
    ) -> asyncio.Task[Begun | None]:
        """A request comes. Its attempt begins as soon as it has a route."""
        request = RoutingRequest(name, "m", True, tokens, b"")
        waiting = Waiting(request, self.now, limit_s)

        async def serve() -> Begun | None:
            route = await self.queue.route(waiting, timeout_s)
            return route and Begun(route, self.in_flight.reserve(route, tokens))

        task = asyncio.create_task(serve())
        self.tasks.append(task)
        await settled()
        return task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def fleet_of(**settings) -> AsyncIterator[Fleet]:
    fleet = Fleet(**settings)
    yield fleet
    for task in fleet.tasks:
        task.cancel()
    await asyncio.gather(*fleet.tasks, return_exceptions=True)


async def begun(task: asyncio.Task[Begun | None]) -> Begun:
    attempt = await asyncio.wait_for(task, 5)
    assert attempt is not None
    return attempt


@pytest.fixture
def only_events(monkeypatch):
    """Nothing is looked at because some time has passed."""
    monkeypatch.setattr("argosy_gateway.routing.queue._LOOK_S", 3600.0)


@pytest.mark.usefixtures("only_events")
async def test_whoever_waits_goes_at_once_when_a_place_is_free():
    async with fleet_of() as fleet:
        tasks = [await fleet.ask() for _ in range(3)]
        assert (len(fleet.queue), fleet.queue.prompt_tokens) == (3, 300)
        place = fleet.first
        for number, task in enumerate(tasks):
            assert not task.done()
            place.end()
            place = (await begun(task)).place
            assert len(fleet.queue) == 2 - number
        place.end()
        assert fleet.in_flight.loads == {}


@pytest.mark.usefixtures("only_events")
async def test_the_place_of_a_request_that_may_go_is_taken_before_its_attempt_begins():
    async with fleet_of() as fleet:
        one, two = await fleet.ask(), await fleet.ask()
        fleet.first.end()
        await asyncio.sleep(0)
        assert fleet.in_flight.loads["e"].sequences == 1
        assert not two.done()
        (await begun(one)).place.end()
        (await begun(two)).place.end()


@pytest.mark.usefixtures("only_events")
async def test_a_request_that_could_not_meet_its_limit_lets_others_go_first():
    async with fleet_of() as fleet:
        fleet.learn()
        late = await fleet.ask(3000, limit_s=1.0)
        in_time = await fleet.ask(100, limit_s=9.0)
        fleet.first.end()
        (await begun(in_time)).place.end()
        assert not late.done()
        (await begun(late)).place.end()


async def test_who_waited_long_enough_gets_no_route_and_who_came_later_still_waits():
    async with fleet_of() as fleet:
        one = await fleet.ask(timeout_s=7.0)
        two = await fleet.ask(timeout_s=7.5)
        fleet.now += 7.0
        assert await asyncio.wait_for(one, 5) is None
        assert not two.done()
        assert len(fleet.queue) == 1
        fleet.first.end()
        assert (await begun(two)).route.head.uid == "e"


async def test_a_request_that_is_cancelled_with_its_route_gives_the_place_back():
    async with fleet_of() as fleet:
        one = await fleet.ask()
        fleet.first.end()
        await asyncio.sleep(0)
        assert fleet.in_flight.loads["e"].sequences == 1
        one.cancel()
        await settled()
        assert fleet.in_flight.loads == {}
