"""How prefill sends blocks: in which frames, in what time, and to peers that do not read."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from argosy_engine.core.handover.messages import LeaseKey
from argosy_engine.core.runner import InPlace, KvLayout
from argosy_engine.transfer import sending
from argosy_engine.transfer.messages import Pull
from argosy_engine.transfer.wire import RUN_HEAD_BYTES, Kind, RunHead, decode_run_head
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import TICKET, puller, read_control, read_frame

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))
STUCK = 48 << 20
"""More bytes than the kernel takes for two ends of a connection."""


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


class Lease:
    """The part of an engine that a sender uses: one lease of five blocks."""

    engine_epoch = "e"

    def __init__(self):
        self.pins = 0
        self.observed = []

    def find_lease(self, ticket):
        return LeaseKey("r", 1, "e")

    def begin_send(self, key):
        self.pins += 1
        return (0, 1, 2, 3, 4)

    def end_send(self, key):
        self.pins -= 1

    def observe_send(self, **sent):
        self.observed.append(sent)


def sender(lease, *, block_bytes=100, wire_block_bytes=0, **layout):
    views = [bytes([i]) * wire_block_bytes for i in range(5)]
    runner = SimpleNamespace(
        kv_layout=lambda: KvLayout(
            fingerprint="f", block_size=16, num_blocks=20, block_bytes=block_bytes,
            wire_block_bytes=wire_block_bytes, dtype="int8", **layout,
        ),
        outgoing=lambda places: InPlace([memoryview(views[p]) for p in places]),
    )  # fmt: skip
    return sending.KvSender(runner, lease, idle_s=1.0, min_bytes_per_s=8e6)


def pull(first, count, **more):
    return Pull(ticket=TICKET, engine_epoch="e", first_block=first, n_blocks=count, **more)


class Connection:
    """Both ends of one: what a sender is given, and `peer`, who reads it."""

    def __init__(self, sends):
        self.sends = sends

    async def __aenter__(self):
        accepted = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(
            lambda *ends: accepted.set_result(ends), "127.0.0.1", 0
        )
        port = self._server.sockets[0].getsockname()[1]
        self.peer, self.to_sender = await asyncio.open_connection("127.0.0.1", port)
        self._reader, self._writer = await accepted
        return self

    def serve(self, asked):
        return asyncio.create_task(self.sends.serve(asked, self._reader, self._writer))

    async def __aexit__(self, *_):
        self.to_sender.transport.abort()
        self._writer.transport.abort()
        self._server.close()
        self.sends.close()


async def runs(peer):
    """The runs up to DONE, each with its blocks' first bytes, and DONE's count."""
    found = []
    while True:
        frame, payload = await read_frame(peer)
        if frame.kind is not Kind.KV:
            assert frame.kind is Kind.DONE
            return found, payload
        head, blocks = payload[:RUN_HEAD_BYTES], payload[RUN_HEAD_BYTES:-8]
        run = decode_run_head(head)
        size = len(blocks) // run.count
        found.append((run, bytes(blocks[at] for at in range(0, len(blocks), size))))


@pytest.mark.parametrize(
    ("mebibytes", "expected"),
    [
        (5, [(RunHead(1, 1), b"\1"), (RunHead(2, 1), b"\2"), (RunHead(3, 1), b"\3")]),
        (2, [(RunHead(1, 2), b"\1\2"), (RunHead(3, 1), b"\3")]),
        (1, [(RunHead(1, 3), b"\1\2\3")]),
    ],
)
async def test_blocks_go_in_frames_of_about_four_mebibytes_or_one_by_one(mebibytes, expected):
    lease = Lease()
    sends = sender(lease, wire_block_bytes=mebibytes << 20)
    async with Connection(sends) as connection:
        serving = connection.serve(pull(1, 3))
        assert await runs(connection.peer) == (expected, b'{"n_blocks":3}')
        connection.to_sender.close()
        with pytest.raises(EOFError):
            await serving
    assert lease.pins == 0


class Copies:
    """Blocks on their way to the host: notes when they were begun and when they were waited for."""

    def __init__(self, noted, places):
        self._noted, self._places = noted, places
        self.views = [memoryview(bytes([place])) for place in places]
        noted.append(("begun", *places))

    def wait(self):
        self._noted.append(("waited", *self._places))


async def test_the_next_blocks_are_on_their_way_while_those_before_them_are_sent(monkeypatch):
    monkeypatch.setattr(sending, "_RUN_BYTES", 1)
    noted, sends = [], sender(Lease(), wire_block_bytes=1)
    sends._runner.outgoing = lambda places: Copies(noted, places)
    async with Connection(sends) as connection:
        serving = connection.serve(pull(0, 3))
        found, _ = await runs(connection.peer)
        assert [first for _, first in found] == [b"\0", b"\1", b"\2"]
        connection.to_sender.close()
        with pytest.raises(EOFError):
            await serving
    assert noted == [
        ("begun", 0), ("begun", 1), ("waited", 0), ("begun", 2), ("waited", 1), ("waited", 2),
    ]  # fmt: skip


async def test_a_send_that_breaks_off_has_no_copy_under_way_when_its_blocks_are_free(monkeypatch):
    monkeypatch.setattr(sending, "_RUN_BYTES", 1)
    lease, noted = Lease(), []
    sends = sender(lease, wire_block_bytes=1)

    class Huge(Copies):
        def __init__(self, *given):
            super().__init__(*given)
            self.views = [memoryview(bytes(STUCK))]

        def wait(self):
            assert lease.pins == 1
            super().wait()

    sends._runner.outgoing = lambda places: Huge(noted, places)
    async with Connection(sends) as connection:
        serving = connection.serve(pull(0, 3))
        await connection.peer.readexactly(1000)
        connection.to_sender.transport.abort()
        with pytest.raises(OSError):
            await serving
    assert lease.pins == 0
    assert noted == [("begun", 0), ("begun", 1), ("waited", 0), ("waited", 1)]


async def test_simulated_kv_takes_the_time_of_its_size_and_is_counted_with_it():
    lease = Lease()
    async with Connection(sender(lease, simulated_bytes_per_s=2000.0)) as connection:
        began = time.monotonic()
        serving = connection.serve(pull(0, 4))  # 400 bytes
        async with asyncio.timeout(20):
            assert await runs(connection.peer) == ([], b'{"n_blocks":4}')
        took_s = time.monotonic() - began
        connection.to_sender.close()
        with pytest.raises(EOFError):
            await serving
    assert took_s >= 0.2
    (sent,) = lease.observed
    assert sent["bytes_moved"] == 400
    assert 0.2 <= sent["seconds"] <= took_s + 1


@pytest.mark.parametrize("connections", [1, 4])
async def test_each_of_several_connections_has_its_share_of_the_minimum_rate(
    monkeypatch, connections
):
    asked = []
    monkeypatch.setattr(sending, "transfer_s", lambda *given: asked.append(given) or 20.0)
    async with Connection(sender(Lease())) as connection:
        serving = connection.serve(pull(0, 3, connections=connections))
        await runs(connection.peer)
        connection.to_sender.close()
        with pytest.raises(EOFError):
            await serving
    assert asked == [(300 * connections, 8e6)]


async def test_after_the_kv_only_a_next_range_may_be_asked_for(prefill):
    async with puller(prefill.address) as peer:
        await peer.prefill(PROMPT, prefill.runner.kv_layout().fingerprint)
        reader, writer = await peer.open_data()
        await peer.ask_for(writer, 0, 1)
        while (await read_frame(reader))[0].kind is Kind.KV:
            pass
        writer.write(sending.encode_control(Kind.RENEW, {}))
        kind, said = await read_control(reader)
    assert (kind, said["reason"]) == (Kind.REFUSED, "protocol")
    assert said["message"] == "RENEW came where PULL was due"


# ------------------------------------------------------------------ peers that do not read


async def test_an_engine_that_ends_does_not_wait_for_a_peer_that_does_not_read():
    with node("prefill", kv_min_bytes_per_s=1.0) as prefill:  # almost an hour
        prefill.runner.outgoing = lambda _: InPlace([memoryview(bytes(STUCK))])
        async with puller(prefill.address) as peer:
            await peer.prefill(PROMPT, prefill.runner.kv_layout().fingerprint)
            _, writer = await peer.open_data()
            await peer.ask_for(writer, 0, peer.n_blocks)
            await until(lambda: threads_of("kv-send"))
            ends = threading.Thread(target=prefill.kv.close, daemon=True)
            ends.start()
            await until(lambda: not ends.is_alive(), within_s=30)
        assert not threads_of("kv-send")


def threads_of(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]
