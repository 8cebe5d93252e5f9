"""A gateway's process in virtual time: its settings, its sweeper, the order of its drain."""

import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
import time

import pytest

from argosy_gateway.config import Config, Limits
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server import serve as serving
from argosy_gateway.server.serve import _server, running, serve
from tests.gateway.server.clients import HI, Client, Echo, Server
from tests.support.virtual import timed

ASK = b'{"model":"m","messages":[]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


def gateway_of(**settings):
    names = {"fleet": "f", "namespace": "ns", "served_names": ("m",)}
    ports = {"host": "127.0.0.1", "port": 0, "admin_port": 0}
    gateway = Gateway(Config(**{**names, **ports, **settings}), asyncio.get_running_loop().time)
    gateway.directory.replace([])
    return gateway


def client_of(server):
    """A connection to a server that listens, past its socket."""
    make = server.config.http_protocol_class
    return Client(make(config=server.config, server_state=server.server_state, app_state={}))


@contextlib.asynccontextmanager
async def started(gateway):
    """The servers, in a task of their own, and what stops them."""
    stop, came = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def run():
        async with running(gateway, stop=stop) as servers:
            came.set_result(servers)

    task = asyncio.create_task(run())
    api, admin = await came
    try:
        yield api, admin, stop, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Settings.


def test_answers_do_not_name_the_server_and_the_app_meets_requests_as_they_came():
    app = Echo()
    config = Server(app, host="192.0.2.1").server.config
    assert config.host == "192.0.2.1"
    assert config.loaded_app is app, "nothing between that rewrites addresses or upgrades"
    assert config.ws_protocol_class is None
    assert config.lifespan_class.__name__ == "LifespanOff"
    assert (config.server_header, config.access_log, config.log_config) == (False, False, None)
    assert config.loop == "asyncio", "the loop that runs already is used"


@timed
async def test_the_limits_of_the_config_are_those_of_its_connections():
    limits = Limits(keep_alive_s=7.9, first_byte_s=3)
    server = Server(Echo(), limits=limits, max_queue=10)
    assert server.client().guard.bounds == limits
    assert server.client().guard.max_connections == 84
    assert server.server.config.timeout_keep_alive == 7, "whole seconds, and no longer than asked"


@pytest.mark.parametrize(("given_s", "whole_s"), [(54.0, 54), (54.9, 54), (1.0, 1), (0.2, 1)])
def test_a_drain_has_whole_seconds_and_at_least_one(given_s, whole_s):
    server = _server(Echo(), Config("f", "ns", ("m",)), port=81, drain_timeout_s=given_s)
    assert server.config.timeout_graceful_shutdown == whole_s
    assert server.config.port == 81


@timed
async def test_a_server_knows_its_connections():
    server = Server(Echo())
    clients = [server.client() for _ in range(2)]
    server.server.server_state.connections.add(object())
    assert {id(guard) for guard in server.server.guards()} == {id(c.guard) for c in clients}


# Running.


@timed
async def test_both_ports_listen_and_answer():
    async with started(gateway_of()) as (api, admin, _, _):
        assert 0 < api.port != admin.port > 0
        assert b'"object": "list"' in await client_of(api).sends(
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        assert (await client_of(admin).sends(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")).endswith(
            b'{"ready": true}'
        )


@pytest.mark.parametrize("taken", ["port", "admin_port"])
@timed
async def test_a_port_that_is_taken_is_named_with_the_options_for_another(taken):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        gateway = gateway_of(**{taken: port})
        with pytest.raises(OSError, match="cannot listen") as refused:
            async with running(gateway, stop=asyncio.Event()):
                pytest.fail("it listens")
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{port}; choose another with --port or --admin-port"
    )


class Relay:
    """A request in flight, which the sweeper asks for its time."""

    def __init__(self):
        self.times = []

    def check_time(self, now):
        self.times.append(now)


@pytest.mark.parametrize(("stall_s", "sweeps"), [(30.0, 10), (4.0, 10), (2.0, 20), (0.4, 100)])
@timed
async def test_requests_are_looked_at_each_second_or_four_times_in_a_stall(stall_s, sweeps):
    gateway, relay = gateway_of(limits=Limits(write_stall_s=stall_s)), Relay()
    async with started(gateway):
        gateway.relays.add(relay)
        await asyncio.sleep(10.01)
        gateway.relays.clear()
    assert sweeps - 1 <= len(relay.times) <= sweeps + 1


@timed
async def test_clients_of_both_ports_that_do_not_read_are_left():
    async with started(gateway_of()) as (api, admin, _, _):
        clients = [client_of(server) for server in (api, admin)]
        for client in clients:
            await client.sends(HI)
            client.transport.unsent = 42
        await asyncio.sleep(29.9)
        assert not any(client.transport.aborted for client in clients)
        await asyncio.sleep(3)
        assert all(client.transport.aborted for client in clients)


# The drain.


@timed
async def test_a_drain_turns_unready_at_once_and_takes_connections_for_its_lag():
    gateway = gateway_of(drain_lag_s=6.0)
    async with started(gateway) as (api, admin, stop, task):
        await asyncio.sleep(100)
        assert not gateway.draining
        stop.set()
        await asyncio.sleep(5.9)
        assert gateway.draining
        assert not api.should_exit
        late = await client_of(api).sends(b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"connection: close" in late
        await asyncio.sleep(0.2)
        assert api.should_exit
        await task
        assert admin.should_exit


@timed
async def test_requests_in_flight_have_the_rest_of_the_drain_and_probes_are_answered_meanwhile():
    gateway = gateway_of(drain_lag_s=6.0, drain_timeout_s=20.0, queue_timeout_s=1000.0)
    loop = asyncio.get_running_loop()
    async with started(gateway) as (api, admin, stop, task):
        client = client_of(api)
        await client.sends(POST + b"content-length: %d\r\n\r\n" % len(ASK) + ASK)
        began = loop.time()
        stop.set()
        await asyncio.sleep(19)
        assert gateway.relays, "it still waits for a pod"
        assert not admin.should_exit
        assert b"draining" in await client_of(admin).sends(
            b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        async with asyncio.timeout(10):
            await task
        assert 19.9 < loop.time() - began < 23
        assert not gateway.relays


@timed
async def test_a_drain_without_requests_is_over_after_its_lag():
    gateway, loop = gateway_of(drain_lag_s=6.0), asyncio.get_running_loop()
    async with started(gateway) as (api, _, stop, task):
        idle = client_of(api)
        began = loop.time()
        stop.set()
        await task
        assert 6 <= loop.time() - began < 8
        assert not idle.open


@timed
async def test_a_drain_ends_where_something_else_stands_for_stderr(monkeypatch):
    """A test runner keeps what tests print in memory: such a stream has no descriptor."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    gateway = gateway_of(drain_lag_s=1.0)
    async with started(gateway) as (_, _, stop, task):
        stop.set()
        await task
    assert gateway.draining


# The process.


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@timed
async def test_a_signal_drains_the_process_and_ends_what_follows_the_pods(sent):
    gateway, ended = gateway_of(drain_lag_s=1.0), []

    async def source():
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(gateway.draining)

    serving = asyncio.create_task(serve(gateway, source()))
    await asyncio.sleep(10)
    assert not gateway.draining
    os.kill(os.getpid(), sent)
    await serving
    assert gateway.draining
    assert ended == [True]


@timed
async def test_a_gateway_whose_pods_are_not_followed_any_more_drains_and_says_why():
    gateway = gateway_of(drain_lag_s=1.0)

    async def source():
        await asyncio.sleep(10)
        raise RuntimeError("the watch died")

    with pytest.raises(RuntimeError, match="the watch died"):
        await serve(gateway, source())
    assert gateway.draining


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_process_that_hangs_after_its_drain_is_ended(monkeypatch):
    async def drains(*, hangs_s):
        gateway, stop = gateway_of(drain_lag_s=0.0, drain_timeout_s=0.0), asyncio.Event()
        async with running(gateway, stop=stop):
            stop.set()
            asyncio.get_running_loop().call_soon(time.sleep, hangs_s)

    asyncio.run(drains(hangs_s=0))
    monkeypatch.setattr(serving, "_HANGS_S", 0.2)
    if not (child := os.fork()):
        try:
            asyncio.run(drains(hangs_s=5))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
