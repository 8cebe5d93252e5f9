"""Handovers over NIXL, with its real package: CPU to CPU, over UCX."""

import asyncio
import base64
import contextlib
import os
import random
import signal

import pytest

from argosy_engine.core.handover.messages import PullDone
from argosy_engine.transfer.nixl import Link
from argosy_engine.transfer.wire import Kind, decode_control
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import puller, read_frame, send_control

pytest.importorskip("nixl", reason="pip install 'argosy[nixl]'", exc_type=ImportError)
pytestmark = pytest.mark.slow

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))
BYTES = 41 * 4 * BLOCK


@pytest.fixture
def prefill():
    with node("prefill", kv_transport="nixl") as started:
        yield started


@pytest.fixture
def decode():
    with node("decode", kv_transport="nixl") as started:
        yield started


async def served(client, decode) -> None:
    """With the KV of PROMPT from prefill, whatever carried it."""
    await until(lambda: client.end is not None, within_s=20)
    assert (len(client.ids), client.end) == (3, "length")
    assert isinstance(decode.events[-1], PullDone)
    assert decode.text_of(PROMPT) == PROMPT[: 40 * BLOCK]


def link_of(engine) -> Link:
    assert engine.kv.link is not None
    return engine.kv.link


@contextlib.asynccontextmanager
async def ready(prefill):
    """A peer whose prompt is computed: it may ask for the KV."""
    async with puller(prefill.address) as peer:
        kind, _ = await peer.prefill(PROMPT, prefill.runner.kv_layout().fingerprint)
        assert kind is Kind.READY
        yield peer


async def push(peer, metadata: str, address: int = 4096, first: int = 0, count: int = 41, **more):
    """PUSH on a new connection, and the frame that comes after it."""
    reader, writer = await peer.open_data()
    said = {"ticket": peer.ticket, "engine_epoch": peer.epoch, "first_block": first,
            "n_blocks": count, "metadata": metadata, "address": address, **more}  # fmt: skip
    await send_control(writer, Kind.PUSH, said)
    async with asyncio.timeout(20):
        frame, payload = await read_frame(reader)
    return frame.kind, decode_control(payload)


# ------------------------------------------------------------------ which transport


async def test_kv_travels_over_nixl_where_both_ends_want_it(prefill, decode):
    await served(decode.ask(PROMPT, prefill.address), decode)
    assert link_of(prefill).moved == BYTES


# ------------------------------------------------------------------ what fails


async def restarted(link: Link, was: int) -> None:
    await until(lambda: link.pid != was and link.offer is not None, within_s=30)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_kv_goes_on_over_tcp_when_a_nixl_process_dies_in_mid_pull(side, prefill, decode):
    link, killed = link_of(prefill if side == "prefill" else decode), []
    moving = link_of(prefill)
    write = moving.write

    def dies(*order):
        if not killed:
            killed.append(link.pid)
            os.kill(link.pid, signal.SIGKILL)
        return write(*order)

    moving.write = dies
    for engine in (prefill, decode):
        link_of(engine).slot_bytes = 10 * 4 * BLOCK
    await served(decode.ask(PROMPT, prefill.address), decode)
    assert killed
    await restarted(link, killed[0])


async def test_a_peer_that_takes_no_bytes_ends_the_send_at_the_minimum_rate():
    """Decode's process makes no progress unless it awaits bytes, as behind a closed port."""
    with node("prefill", kv_transport="nixl", kv_min_bytes_per_s=1e9) as prefill:
        stuck = Link(64)
        try:
            assert stuck.wait()
            offer = stuck.offer
            async with ready(prefill) as peer:
                kind, said = await push(peer, offer.metadata, offer.address)
                assert (kind, said["reason"]) == (Kind.REFUSED, "transport")
                assert "slower than the minimum rate" in said["message"]
                kind, said = await peer.pull()  # of the same lease
                assert (kind, said) == (Kind.DONE, {"n_blocks": 41})
        finally:
            stuck.close()


async def test_damaged_metadata_costs_no_more_than_the_nixl_process(prefill, decode):
    """Its parser aborts on some of these: the engine goes on, and hands over."""
    draw = random.Random(2)
    true = base64.b64decode(link_of(decode).offer.metadata)
    async with ready(prefill) as peer:
        for _ in range(60):
            damaged = bytearray(true)
            for _ in range(draw.randrange(1, 8)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            text = base64.b64encode(damaged[: draw.choice([None, draw.randrange(1, 400)])]).decode()
            kind, said = await push(peer, text)
            assert kind is Kind.WRITTEN or said["reason"] == "transport", said
        assert (await peer.pull())[1] == {"n_blocks": 41}


# ------------------------------------------------------------------ whose KV
