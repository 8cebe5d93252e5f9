"""A gateway's process in virtual time: its settings, its sweeper, the order of its drain."""

import asyncio
import contextlib
import os
import signal
import socket
import time

import pytest

from argosy_gateway.config import Config
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server import serve as serving
from argosy_gateway.server.serve import running, serve
from tests.gateway.server.clients import Client
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
