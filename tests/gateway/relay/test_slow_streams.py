"""A decode pod whose streams are slower than the TPOT limit gets fewer sequences."""

import asyncio

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Role
from tests.gateway.direct import direct
from tests.gateway.engines import Engine

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


class Streams:
    """An engine whose streams all write a token when the test says so."""

    def __init__(self) -> None:
        self.open = []

    async def __call__(self, call) -> None:
        await call.begin_stream()
        self.open.append(call)
        await call.token("word")
        await asyncio.Event().wait()

    async def token(self) -> None:
        for call in self.open:
            await call.token("word")


async def read(clients, times):
    for client in clients:
        await client.reads("word", times)


@pytest.mark.parametrize(
    ("role", "interval_s", "waits"),
    [(Role.DECODE, 0.2, True), (Role.DECODE, 0.05, False), (Role.COLOCATED, 0.2, False)],
    ids=["a slow decode pod", "one at the limit", "a colocated pod, which computes prompts, too"],
)
async def test_the_next_request_waits_while_the_streams_of_its_pod_are_too_slow(
    role, interval_s, waits
):
    streams = Streams()
    async with direct(Engine("e", streams, role), slo=Slo(9.0, 0.05), queue="deadline") as gateway:
        clients = [gateway.ask(CHAT) for _ in range(4)]
        await read(clients, 1)
        gateway.state.sweep()
        gateway.advance(interval_s)
        await streams.token()
        await read(clients, 2)
        gateway.state.sweep()
        more = gateway.ask(CHAT)
        if waits:
            for _ in range(50):
                await asyncio.sleep(0)
            assert (len(gateway.state.queue), len(streams.open)) == (1, 4)
            for client in clients[:3]:
                await client.leave()
        await more.reads("word", 1)
        assert len(streams.open) == 5
        for client in (*clients[3 if waits else 0 :], more):
            await client.leave()
