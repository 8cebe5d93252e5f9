"""Requests of a fleet that has no pods, because nobody used it: they wait until pods have come."""

import asyncio
import json

import pytest

from argosy_gateway.cli import parse
from argosy_gateway.config import Config, Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.relay import Relay
from argosy_gateway.routing.roster import Route
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
@pytest.mark.parametrize(("wake_timeout_s", "seconds"), [(None, 7), (3.0, 7), (9.0, 9)])
def test_it_never_waits_for_less_than_the_queue_timeout(settings, wake_timeout_s, seconds):
    limits = {"queue_timeout_s": 7.0, "wake_timeout_s": wake_timeout_s}
    assert waited([], **limits, **settings)[2] == pytest.approx(seconds, abs=0.2)


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


async def test_a_request_that_is_refused_because_of_load_shows_that_the_fleet_is_in_use():
    async with direct(max_queue=1, **WAKES) as gateway:
        gateway.state.directory.replace([])
        first = gateway.ask(BODY)
        await gateway.until(lambda: gateway.state.relays)
        gateway.advance(60)
        assert (await gateway.answered(BODY)).status == 429
        relay = gateway.state.relays.pop()  # as if the first one had ended before
        assert gateway.state.idle_s() == 0
        gateway.state.relays.add(relay)
        await first.leave()


async def test_the_counters_are_those_of_the_metrics():
    engine = Engine("e", answer)
    async with direct(engine, max_queue=1, **WAKES, **QUEUED) as gateway:
        assert read_load(gateway.state)["received"] == {"accepted": 0, "shed": 0}
        gateway.state.directory.replace([])
        first = gateway.ask(BODY)
        await gateway.until(lambda: len(gateway.state.queue))
        assert (await gateway.answered(BODY)).status == 429
        await gateway.answered({"model": "other", "messages": []})
        said = read_load(gateway.state)
        assert said["received"] == {"accepted": 1, "shed": 1}
        assert said["waiting_prompt_tokens"] == gateway.state.queue.prompt_tokens > 0
        for outcome, count in said["received"].items():
            assert gateway.count("argosy_requests_received_total", outcome=outcome) == count
        await first.leave()


async def test_the_work_is_that_of_the_engines_until_each_answer_ends():
    engine = Engine("e", answer)
    async with direct(engine, **WAKES, **QUEUED) as gateway:
        nothing = {"outstanding_prompt_tokens": 0, "decoding": 0}
        said = read_load(gateway.state)
        assert {name: said[name] for name in nothing} == nothing
        assert set(said["answered"].values()) == {0}
        apart, other = (
            Endpoint(r, r, "", r, "r", State.SERVING) for r in (Role.DECODE, Role.PREFILL)
        )
        route = Route(apart, (other,))
        one = gateway.state.in_flight.reserve(route, 30)
        two = gateway.state.in_flight.reserve(Route(apart), 12)
        assert counted(gateway) == (42, 0)
        one.first_token()
        one.first_token()
        assert counted(gateway) == (12, 1)
        two.end()
        one.end()
        one.end()
        assert counted(gateway) == (0, 0)
        await gateway.answered(BODY)
        answered = read_load(gateway.state)["answered"]
        prompts = "argosy_gateway_prompt_tokens"
        assert answered == {
            "requests": gateway.count(f"{prompts}_count"),
            "prompt_tokens": gateway.count(f"{prompts}_sum"),
            "prompt_tokens_squared": gateway.count(f"{prompts}_squared_total"),
            "output_tokens": gateway.count("argosy_gateway_output_tokens_sum"),
        }
        assert min(answered.values()) > 0
        assert counted(gateway) == (0, 0)


def counted(gateway):
    """(prompt tokens to compute, sequences that decode)."""
    said = read_load(gateway.state)
    return said["outstanding_prompt_tokens"], said["decoding"]


async def test_a_request_with_an_error_does_not_count_as_use():
    async with direct(**WAKES) as gateway:
        gateway.advance(60)
        assert (await gateway.answered({"model": "other", "messages": []})).status >= 400
        assert gateway.state.idle_s() == 60


def test_the_time_to_wake_is_an_option():
    flags = ["run", "--fleet", "f", "--namespace", "ns", "--served-name", "m"]
    assert parse(flags).wake_timeout_s is None
    assert parse([*flags, "--wake-timeout-s", "300"]).wake_timeout_s == 300
    with pytest.raises(SystemExit):
        parse([*flags, "--wake-timeout-s", "0"])
