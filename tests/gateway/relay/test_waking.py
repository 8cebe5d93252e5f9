"""Requests of a fleet that has no pods, because nobody used it: they wait until pods have come."""

import asyncio
import json

import pytest

from argosy_gateway.config import Config, Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.relay import Relay
from argosy_gateway.server.admin import read_load
from argosy_gateway.wire.openai import read_completion
from tests.gateway.direct import direct
from tests.gateway.engines import Engine, answer
from tests.support import virtual

ASK = read_completion("/v1/completions", b'{"model":"m","prompt":"hi"}', served_names=("m",))
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
WAKES = {"queue_timeout_s": 1.0, "wake_timeout_s": 300.0}
QUEUED = {"queue": "deadline", "slo": Slo(2.0, 0.1)}
KINDS = pytest.mark.parametrize("settings", [{}, QUEUED], ids=["none", "deadline"])


def used(gateway):
    said = read_load(gateway.state)
    return {name: said[name] for name in ("pod", "in_flight", "idle_s")}


def starting(engine):
    return engine.endpoint(State.UNREADY)


def waited(pods, **settings):
    """Status, error code and seconds of a request that no pod ever serves."""

    async def wait():
        loop = asyncio.get_running_loop()
        fleet = Gateway(Config("f", "ns", ("m",), **settings), loop.time)
        fleet.directory.replace(pods)
        sent, began = [], loop.time()

        async def send(message):
            sent.append(message)

        await Relay(fleet, ASK, send).run()
        code = json.loads(sent[1]["body"])["error"]["code"]
        return sent[0]["status"], code, loop.time() - began

    return virtual.run(wait())


@KINDS
@pytest.mark.parametrize("state", [None, State.UNREADY, State.DRAINING])
def test_a_request_waits_for_the_first_pod_as_long_as_the_fleet_may_take_to_wake(settings, state):
    pods = []
    if state is not None:
        pods = [Endpoint("a", "a", "127.0.0.1", Role.COLOCATED, "r", state, port=1)]
    status, code, seconds = waited(pods, **WAKES, **settings)
    assert (status, code) == (503, "no_engine_ready")
    assert seconds == pytest.approx(300, abs=0.2)


@KINDS
async def test_requests_that_came_at_zero_are_answered_by_the_pods_that_come(settings):
    engine = Engine("e", answer)
    async with direct(engine, **WAKES, **settings) as gateway:
        directory = gateway.state.directory
        directory.replace([])
        clients = [gateway.ask(BODY) for _ in range(5)]
        await gateway.until(lambda: len(gateway.state.relays) == 5)
        gateway.advance(200)
        directory.put(starting(engine))
        gateway.advance(50)
        directory.put(engine.endpoint())
        await asyncio.gather(*(client.whole for client in clients))
        assert [client.status for client in clients] == [200] * 5
        assert len(engine.calls) == 5


@KINDS
async def test_a_client_that_leaves_before_the_fleet_is_awake_is_forgotten(settings):
    engine = Engine("e", answer)
    async with direct(engine, **WAKES, **settings) as gateway:
        gateway.state.directory.replace([])
        client = gateway.ask(BODY)
        await gateway.until(lambda: read_load(gateway.state)["in_flight"] == 1)
        await client.leave()
        await gateway.until(lambda: read_load(gateway.state)["in_flight"] == 0)
        gateway.state.directory.put(engine.endpoint())
        await gateway.settled()
        assert engine.calls == []
        assert gateway.count("argosy_requests_completed_total", result="client_gone") == 1


@KINDS
async def test_of_more_requests_than_the_queue_takes_the_rest_is_told_when_to_come_again(settings):
    engine = Engine("e", answer)
    async with direct(engine, max_queue=2, **WAKES, **settings) as gateway:
        gateway.state.directory.replace([])
        held = [gateway.ask(BODY) for _ in range(2)]
        await gateway.until(lambda: len(gateway.state.relays) == 2)
        third = await gateway.answered(BODY)
        assert (third.status, third.headers["retry-after"]) == (429, "1")
        gateway.state.directory.put(engine.endpoint())
        await asyncio.gather(*(client.whole for client in held))
        assert [client.status for client in held] == [200, 200]


async def test_the_time_without_a_request_counts_from_the_end_of_the_last_one():
    engine = Engine("e", answer)
    async with direct(engine, pod_name="g-1", **WAKES) as gateway:
        gateway.advance(12.5)
        assert used(gateway) == {"pod": "g-1", "in_flight": 0, "idle_s": 12.5}
        gateway.state.directory.replace([])
        client = gateway.ask(BODY)
        await gateway.until(lambda: gateway.state.relays)
        gateway.advance(40)
        assert used(gateway) == {"pod": "g-1", "in_flight": 1, "idle_s": 0.0}
        gateway.state.directory.put(engine.endpoint())
        await client.whole
        gateway.advance(3)
        assert used(gateway) == {"pod": "g-1", "in_flight": 0, "idle_s": 3.0}
