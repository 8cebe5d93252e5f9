"""Handovers over NIXL, with its real package: CPU to CPU, over UCX."""

import asyncio
import base64
import contextlib
import os
import random
import signal

import pytest

from argosy_engine.core.handover.messages import PullDone
from argosy_engine.transfer.nixl import Link, LinkError
from argosy_engine.transfer.wire import Kind, decode_control
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import ADMITTED, kv_frame, liar, puller, read_frame, ready_for, send_control

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


async def test_a_prompt_of_many_slots_arrives_whole():
    block = 4 * BLOCK
    with (
        node("prefill", kv_transport="nixl") as prefill,
        node("decode", kv_transport="nixl") as decode,
    ):
        for engine in (prefill, decode):
            link_of(engine).slot_bytes = 3 * block  # 41 blocks: thirteen slots and two blocks
        await served(decode.ask(PROMPT, prefill.address), decode)
        assert link_of(prefill).moved == BYTES


@pytest.mark.parametrize(("one", "other"), [("nixl", "tcp"), ("tcp", "nixl")])
async def test_kv_travels_over_tcp_where_one_end_has_no_nixl(one, other):
    with node("prefill", kv_transport=one) as prefill, node("decode", kv_transport=other) as decode:
        await served(decode.ask(PROMPT, prefill.address), decode)
        assert not (prefill.kv.link and prefill.kv.link.moved)


async def test_kv_travels_over_tcp_while_all_staging_memory_is_in_use(prefill, decode):
    taken = [slot for slots in iter(lambda: link_of(decode).take(1), None) for slot in slots]
    await served(decode.ask(PROMPT, prefill.address), decode)
    assert link_of(prefill).moved == 0
    link_of(decode).give(taken)
    assert len(taken) * len(taken[0].memory) == 64 << 20


async def test_a_broken_package_is_one_warning_and_tcp(monkeypatch, tmp_path, caplog):
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl/__init__.py").write_text("raise OSError('libucp.so.0: not found')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    link = Link(64)
    try:
        assert not link.wait()
        assert link.offer is None
        link._thread.join(5)
        assert not link._thread.is_alive()  # it does not try again
        said = [record.message for record in caplog.records]
        assert said == ["KV travels over TCP: NIXL cannot start: OSError: libucp.so.0: not found"]
    finally:
        link.close()


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


async def test_nixl_is_left_alone_for_a_while_with_a_peer_to_which_it_failed(prefill, decode):
    asked = []
    moving = link_of(prefill)

    def refuses(*order):
        asked.append(order)
        raise LinkError("no route")

    moving.write = refuses
    await served(decode.ask(PROMPT, prefill.address), decode)
    other = [7, *PROMPT]
    client = decode.ask(other, prefill.address, name="second")
    await until(lambda: client.end is not None)
    assert (len(asked), moving.moved) == (1, 0)


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


async def test_damage_on_the_way_is_found_and_the_kv_comes_over_tcp(decode):
    """WRITTEN with another checksum than that of the slot."""
    data = bytes(4 * BLOCK)
    written = (Kind.WRITTEN, {"first_block": 0, "n_blocks": 1, "digest": "0" * 16})
    admitted = (ADMITTED[0], {**ADMITTED[1], "transports": ["nixl"]})
    done = (Kind.DONE, {"n_blocks": 1})

    def answer(said):
        return written if "metadata" in said else kv_frame(0, 1, data)

    def end(said):
        return b"" if "metadata" in said else done

    async with liar(
        admitted, lambda said: ready_for(said, 1), kv=(answer, end)
    ) as lying:  # fmt: skip
        client = decode.ask(PROMPT[:5], lying.address)
        await until(lambda: client.end is not None)
    assert isinstance(decode.events[-1], PullDone)
    assert ["metadata" in said for said in lying.pulls] == [True, False]


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


@pytest.mark.parametrize("metadata", ["", "no base64!", "x" * (12 * 1024 + 1), 7, None])
async def test_metadata_that_is_none_is_refused_before_nixl_sees_it(prefill, metadata):
    async with ready(prefill) as peer:
        kind, said = await push(peer, metadata)
        assert kind is Kind.REFUSED
        assert said["reason"] == ("transport" if metadata == "no base64!" else "protocol")
    assert link_of(prefill).offer is not None


# ------------------------------------------------------------------ whose KV


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"ticket": "f" * 32}, "lease_gone"),
        ({"engine_epoch": "before"}, "lease_gone"),
        ({"count": 42}, "not_ready"),
        ({"first": 41, "count": 1}, "not_ready"),
        ({"address": 0}, "protocol"),
        ({"ticket": "short"}, "protocol"),
    ],
)
async def test_a_push_needs_a_ticket_of_a_lease_and_blocks_of_its_prompt(prefill, said, reason):
    async with ready(prefill) as peer:
        kind, answer = await push(peer, "bWV0YQ==", **said)
        assert (kind, answer["reason"]) == (Kind.REFUSED, reason)
    assert link_of(prefill).moved == 0


async def test_a_push_of_more_than_a_slot_is_refused(prefill):
    link_of(prefill).slot_bytes = 40 * 4 * BLOCK
    async with ready(prefill) as peer:
        kind, answer = await push(peer, "bWV0YQ==")
        assert (kind, answer["reason"]) == (Kind.REFUSED, "protocol")
        assert "more than a slot" in answer["message"]


async def test_a_lease_that_was_released_gives_nothing_over_nixl_either(prefill):
    async with ready(prefill) as peer:
        await peer.tell(Kind.RELEASE)
        await until(lambda: prefill.loop.leases.active == 0)
        kind, answer = await push(peer, "bWV0YQ==")
        assert (kind, answer["reason"]) == (Kind.REFUSED, "lease_gone")


async def test_a_push_to_an_engine_without_nixl_is_refused_as_that():
    with node("prefill") as prefill:
        async with ready(prefill) as peer:
            kind, answer = await push(peer, "bWV0YQ==")
            assert (kind, answer["reason"]) == (Kind.REFUSED, "transport")
            assert (await peer.pull())[1] == {"n_blocks": 41}
