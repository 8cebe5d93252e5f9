"""Requests that wait in a gateway: until a place is free, a pod comes, time is over, they leave."""

import asyncio

from argosy_gateway.config import Slo, SloClass
from tests.gateway.direct import World, direct
from tests.gateway.engines import Call, Engine, answer

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
SETTINGS = {"queue": "deadline", "slo": Slo(2.0, 0.1), "engine_places": 1}


class Held:
    """An engine's behaviour: a first token at once, the rest when a test lets it go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.begin_stream()
        await call.token("one")
        await self.free.wait()
        await call.finish(1)


async def waits(gateway: World, number: int) -> None:
    await gateway.until(lambda: len(gateway.state.queue) == number)


async def test_a_request_waits_for_a_place_and_goes_when_one_is_free():
    held = Held()
    engine = Engine("e", held)
    async with direct(engine, **SETTINGS) as gateway:
        first = gateway.ask(BODY)
        await first.reads("one")
        second = gateway.ask(BODY)
        await waits(gateway, 1)
        assert len(engine.calls) == 1
        held.free.set()
        await asyncio.gather(first.whole, second.whole)
        assert (first.status, second.status) == (200, 200)
        assert len(engine.calls) == 2
        assert len(gateway.state.queue) == 0
        assert gateway.state.in_flight.loads == {}


async def test_a_client_that_leaves_stops_waiting_at_once():
    held = Held()
    engine = Engine("e", held)
    async with direct(engine, **SETTINGS) as gateway:
        first = gateway.ask(BODY)
        await first.reads("one")
        second = gateway.ask(BODY)
        await waits(gateway, 1)
        await second.leave()
        assert len(gateway.state.queue) == 0
        held.free.set()
        await first.whole
        assert len(engine.calls) == 1
        assert gateway.count("argosy_requests_completed_total", result="client_gone") == 1


async def test_a_request_that_waits_goes_to_a_pod_that_comes():
    held = Held()
    busy, new = Engine("busy", held), Engine("new", answer)
    async with direct(busy, **SETTINGS) as gateway:
        first = gateway.ask(BODY)
        await first.reads("one")
        second = gateway.ask(BODY)
        await waits(gateway, 1)
        await new.start()
        gateway.state.directory.put(new.endpoint())
        async with asyncio.timeout(5):
            await second.whole
        assert second.headers["x-argosy-pod"] == "new"
        held.free.set()
        await first.whole
        await new.stop()


async def test_who_waited_for_the_whole_time_is_told_to_come_again():
    held = Held()
    async with direct(Engine("e", held), **SETTINGS, queue_timeout_s=7.0) as gateway:
        first = gateway.ask(BODY)
        await first.reads("one")
        second = gateway.ask(BODY)
        await waits(gateway, 1)
        gateway.advance(6.9)
        third = gateway.ask(BODY)
        await waits(gateway, 2)
        gateway.advance(0.2)
        await second.whole
        assert (second.status, third.status) == (429, 0)
        assert len(gateway.state.queue) == 1
        await third.leave()
        assert second.headers["retry-after"] == "1"
        assert '"code":"overloaded"' in second.text
        held.free.set()
        await first.whole
        await gateway.settled()
        assert gateway.verdicts()[("miss", "miss")] == 1


async def test_the_queue_knows_limit_priority_and_flow_of_a_request():
    classes = (SloClass("batch", Slo(9.0, 1.0), priority=5),)
    async with direct(Engine("e"), **SETTINGS, slo_classes=classes) as gateway:
        seen = []

        async def route(one, timeout_s):
            seen.append((one, timeout_s))

        gateway.state.queue.route = route
        headers = [(b"x-argosy-class", b"batch"), (b"x-argosy-flow", b"f1")]
        await gateway.answered(BODY, headers=headers)
        await gateway.answered(BODY)
        (one, timeout_s), (other, _) = seen
        assert (one.limit_s, one.priority, one.flow, timeout_s) == (9.0, 5, "f1", 30.0)
        assert (other.limit_s, other.priority, other.flow) == (2.0, 0, "")
        assert one.received_at == gateway.clock()
