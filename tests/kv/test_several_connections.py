"""One pull over several connections: what each does, and what follows when one fails.

In the first part a `Fetch` meets a server that misbehaves on the connection of a row. Connection 0
is always the pull's own. The prompt has 16 blocks of 8 bytes, in pieces of two. In the second part
whole engines hand prompts over, through bad networks.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from concurrent.futures import Future

import pytest

from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.core.runner import InPlace
from argosy_engine.transfer import fetch
from argosy_engine.transfer.connection import RefusedError, Target
from argosy_engine.transfer.fetch import Fetch
from argosy_engine.transfer.messages import MOST_CONNECTIONS
from argosy_engine.transfer.wire import Kind, WireError, encode_control
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import OPEN, TICKET, kv_frame, read_control, read_frame
from tests.kv.test_transfers import BYTES, Landing, Memory
from tests.support.fault_proxy import Fault, fault_proxy

BLOCKS = 16
PLACES = tuple(range(100, 100 + BLOCKS))
TEXT = "ABCDEFGHIJKLMNOP"
WHOLE = {place: letter.encode() * BYTES for place, letter in zip(PLACES, TEXT, strict=True)}
GONE = encode_control(Kind.REFUSED, {"reason": "lease_gone", "message": "it ended"})


class Late(Landing):
    """As on a GPU: the blocks have their bytes after `wait`, and nothing else may be there."""

    def __init__(self, memory, block_ids):
        self._memory, self._block_ids = memory, block_ids
        self._room = [bytearray(BYTES) for _ in block_ids]
        self.views = [memoryview(part) for part in self._room]

    def land(self):
        self._memory.under_way += 1

    def wait(self):
        for block, part in zip(self._block_ids, self._room, strict=True):
            self._memory.pool[block] = part
        self._memory.landed_in += self._block_ids
        self._memory.under_way -= 1


class Device(Memory):
    on_cpu = False

    def __init__(self):
        super().__init__()
        self.under_way = 0

    def incoming(self, block_ids):
        return Late(self, block_ids)


class Threads:
    """Threads for helpers; one begins when the pull's own connection has been accepted."""

    def __init__(self, server, *, most=MOST_CONNECTIONS):
        self._server = server
        self._left = most

    def submit(self, call, *arguments):
        future = Future()
        self._left -= 1
        if self._left >= 0:
            threading.Thread(target=self._run, args=(future, call, arguments)).start()
        return future

    def _run(self, future, call, arguments):
        self._server.accepted.wait(10)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call(*arguments))
            except BaseException as error:
                future.set_exception(error)


class Server:
    """Sends what is asked for, one block a frame; `faults` says by connection what it does instead
    with its first piece. It answers when `together` connections have asked."""

    def __init__(self, faults, together):
        self._faults, self._together = faults, together
        self.accepted = threading.Event()
        self.pulls = []
        """(connection, PULL)."""
        self.stuck = 0
        self._all_asked, self._leaving = asyncio.Event(), asyncio.Event()
        self._numbers = itertools.count()
        self._writers = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._leaving.set()
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        number = next(self._numbers)
        self._writers.append(writer)
        self.accepted.set()
        fault = self._faults.get(number)
        with contextlib.suppress(OSError, EOFError):
            await read_frame(reader)  # OPEN
            while True:
                _, asked = await read_control(reader)
                self.pulls.append((number, asked))
                if len({index for index, _ in self.pulls}) >= self._together:
                    self._all_asked.set()
                await self._all_asked.wait()
                if fault == "refuses":
                    busy = {"reason": "busy", "message": "2048 connections are open"}
                    writer.write(encode_control(Kind.REFUSED, busy))
                    break
                if fault == "lease ends":
                    writer.write(GONE)
                    break
                await self._send(writer, asked, fault)
                if fault == "breaks off":
                    break
        writer.close()

    async def _send(self, writer, asked, fault):
        first, count = asked["first_block"], asked["n_blocks"]
        for at in range(first, first + count):
            whole = bytearray(kv_frame(at, 1, TEXT[at].encode() * BYTES))
            if fault == "damages":
                whole[-12] ^= 1
            writer.write(bytes(whole))
            if fault == "breaks off":
                await writer.drain()
                return
            if fault == "is silent":
                self.stuck += 1
                await self._leaving.wait()
        writer.write(encode_control(Kind.DONE, {"n_blocks": count}))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(fetch, "_SHARE_BYTES", 2 * BYTES)


def fetch_from(server, memory, **more):
    target = Target(
        host="127.0.0.1", port=server.port, ssl=None, opening=OPEN, ticket=TICKET, engine_epoch="e"
    )
    options = {"min_bytes_per_s": 8e6, "helpers": Threads(server), **more}
    return Fetch(memory, target, PLACES, first=0, **options)


async def received(server, memory, **more):
    """What is left of the range after `receive`, which may raise."""
    it = fetch_from(server, memory, **more)
    try:
        await asyncio.to_thread(it.receive, BLOCKS)
    finally:
        assert memory.under_way == 0
        it.close()
    return it


async def test_a_large_range_comes_over_several_connections_each_piece_once():
    memory = Device()
    async with Server({}, together=4) as server:
        it = await received(server, memory)
    assert (it.at, memory.verified) == (BLOCKS, WHOLE)
    assert {index for index, _ in server.pulls} == {0, 1, 2, 3}
    assert sorted(asked["first_block"] for _, asked in server.pulls) == list(range(0, BLOCKS, 2))
    assert {(asked["n_blocks"], asked["connections"]) for _, asked in server.pulls} == {(2, 4)}


async def test_a_small_range_has_one_connection_and_says_nothing_of_it(monkeypatch):
    monkeypatch.setattr(fetch, "_SHARE_BYTES", BLOCKS * BYTES)
    memory = Device()
    async with Server({}, together=1) as server:
        await received(server, memory)
    assert memory.verified == WHOLE
    assert [
        (index, asked["n_blocks"], "connections" in asked) for index, asked in server.pulls
    ] == [(0, BLOCKS, False)]


@pytest.mark.parametrize("most", [0, 1])
async def test_where_no_thread_is_free_the_pulls_own_connection_fetches_all(most):
    memory = Device()
    async with Server({}, together=1 + most) as server:
        await received(server, memory, helpers=Threads(server, most=most))
    assert memory.verified == WHOLE
    assert len({index for index, _ in server.pulls}) == 1 + most


@pytest.mark.parametrize("fault", ["breaks off", "refuses"])
@pytest.mark.parametrize("bad", [(1,), (1, 2, 3)])
async def test_what_a_further_connection_leaves_the_others_fetch(fault, bad):
    memory = Device()
    async with Server(dict.fromkeys(bad, fault), together=4) as server:
        it = await received(server, memory)
    assert (it.at, memory.verified) == (BLOCKS, WHOLE)
    assert max(Counter(memory.landed_in).values()) == 1  # a block that is here is not fetched again


async def test_damage_on_any_connection_fails_the_pull_by_that_name():
    for bad in range(4):
        memory = Device()
        async with Server({bad: "damages"}, together=4) as server:
            with pytest.raises(WireError, match="XXH3"):
                await received(server, memory)
        assert memory.verified.items() <= WHOLE.items()


async def test_damage_comes_before_the_end_of_the_pulls_own_connection():
    """Else the blocks that came would count."""
    memory = Device()
    async with Server({0: "breaks off", 1: "damages"}, together=4) as server:
        with pytest.raises(WireError, match="XXH3"):
            await received(server, memory)


async def test_when_the_pulls_own_connection_breaks_off_the_blocks_up_to_the_first_gap_count():
    memory = Device()
    async with Server({0: "breaks off"}, together=4) as server:
        it = fetch_from(server, memory)
        with pytest.raises(EOFError):
            await asyncio.to_thread(it.receive, BLOCKS)
        begun = next(asked["first_block"] for index, asked in server.pulls if index == 0)
        it.close()
    assert it.at <= begun + 1
    assert {block: WHOLE[block] for block in PLACES[: it.at]}.items() <= memory.verified.items()
    assert memory.under_way == 0


async def test_a_lease_that_ends_is_refused_by_that_name():
    async with Server(dict.fromkeys(range(4), "lease ends"), together=4) as server:
        with pytest.raises(RefusedError, match="lease_gone"):
            await received(server, Device())


@pytest.mark.parametrize("bad", [0, 2])
async def test_a_connection_that_stalls_ends_with_the_time_of_the_whole_range(monkeypatch, bad):
    monkeypatch.setattr(fetch, "transfer_s", lambda size, rate: 0.5)
    async with Server({bad: "is silent"}, together=4) as server:
        with pytest.raises(TimeoutError):
            await received(server, Device())


async def test_a_further_connection_that_stalls_is_given_up_when_the_others_are_done(monkeypatch):
    monkeypatch.setattr(fetch, "_LAG_S", 0.05)
    memory = Device()
    async with Server({2: "is silent"}, together=4) as server:
        it = fetch_from(server, memory)
        await asyncio.to_thread(it.receive, BLOCKS // 2)
        await asyncio.to_thread(it.receive, BLOCKS)  # nor does it come back
        assert (it.at, memory.verified) == (BLOCKS, WHOLE)
        assert memory.under_way == 0
        it.close()
    assert sum(number == 2 for number, _ in server.pulls) == 1


async def test_a_pull_that_is_stopped_writes_to_no_block_when_its_thread_has_ended():
    memory = Device()
    async with Server(dict.fromkeys(range(4), "is silent"), together=4) as server:
        it = fetch_from(server, memory)
        receiving = asyncio.create_task(asyncio.to_thread(it.receive, BLOCKS))
        await until(lambda: server.stuck == 4)
        it.stop()
        with pytest.raises((OSError, EOFError)):
            await receiving
        assert memory.under_way == 0
        assert it.at <= BLOCKS - 2
        with pytest.raises(ConnectionAbortedError):
            it.receive(BLOCKS)
        it.close()


# ------------------------------------------------------------------ whole engines

LONG = list(range(100, 100 + 100 * BLOCK + 5))
PIECE = 10 * 4 * BLOCK


@pytest.fixture
def pieces_of_ten_blocks(monkeypatch):
    monkeypatch.setattr(fetch, "_SHARE_BYTES", PIECE)


def hold_sends(prefill, count=MOST_CONNECTIONS):
    """No block leaves before this number of connections wait for one; set: let all go."""
    go, waiting, outgoing = threading.Event(), set(), prefill.runner.outgoing

    class Held(InPlace):
        def wait(self):
            waiting.add(threading.get_ident())
            if len(waiting) >= count:
                go.set()
            go.wait(10)

    prefill.runner.outgoing = lambda block_ids: Held(outgoing(block_ids).views)
    return go


async def true_text(prompt):
    with node("colocated") as alone:
        client = alone.ask(prompt, max_tokens=8)
        await until(lambda: client.end is not None)
    return client.ids


def ends(decode):
    return [
        "done" if isinstance(event, PullDone) else event.cause
        for event in decode.events
        if isinstance(event, PullDone | PullFailed)
    ]


@pytest.mark.usefixtures("pieces_of_ten_blocks")
async def test_engines_hand_a_long_prompt_over_on_four_connections():
    with node("prefill", max_num_batched_tokens=2048) as prefill, node("decode") as decode:
        hold_sends(prefill)
        async with fault_proxy(prefill.address) as network:
            client = decode.ask(LONG, network.address, max_tokens=8)
            await until(lambda: client.end is not None)
            assert network.connections == 1 + MOST_CONNECTIONS
        assert ends(decode) == ["done"]
        assert decode.text_of(LONG) == LONG[: 100 * BLOCK]
        assert client.ids == await true_text(LONG)


@pytest.mark.usefixtures("pieces_of_ten_blocks")
@pytest.mark.parametrize("broken", range(1, 1 + MOST_CONNECTIONS))
@pytest.mark.parametrize("after", [0, PIECE // 2, PIECE + 100])
async def test_no_text_changes_when_one_connection_of_four_is_cut(broken, after):
    with node("prefill", max_num_batched_tokens=2048) as prefill, node("decode") as decode:
        hold_sends(prefill)
        cut = Fault(cut_after=after)
        async with fault_proxy(prefill.address, back=cut, only=broken) as network:
            client = decode.ask(LONG, network.address, max_tokens=8)
            await until(lambda: client.end is not None)
        assert client.end == "length"
        assert ends(decode) in (["done"], ["broken"])  # broken: it was the pull's own
        assert client.ids == await true_text(LONG)


@pytest.mark.usefixtures("pieces_of_ten_blocks")
@pytest.mark.parametrize("flipped", [30, PIECE // 2])
async def test_no_text_changes_when_one_connection_of_four_is_damaged(flipped):
    with node("prefill", max_num_batched_tokens=2048) as prefill, node("decode") as decode:
        hold_sends(prefill)
        damage = Fault(flip_at=flipped)
        async with fault_proxy(prefill.address, back=damage, only=3) as network:
            client = decode.ask(LONG, network.address, max_tokens=8)
            await until(lambda: client.end is not None)
        assert ends(decode) == ["corrupt"]
        assert client.ids == await true_text(LONG)


@pytest.mark.usefixtures("pieces_of_ten_blocks")
async def test_when_the_peer_dies_in_the_middle_decode_computes_what_is_missing():
    with node("prefill", max_num_batched_tokens=2048) as prefill, node("decode") as decode:
        slow = Fault(bytes_per_s=8 * PIECE)
        async with fault_proxy(prefill.address, back=slow) as network:
            client = decode.ask(LONG, network.address, max_tokens=8)
            await until(lambda: all(map(network.passed_back, range(1, 1 + MOST_CONNECTIONS))))
            await until(lambda: client.ids)
            network.break_all()
            await until(lambda: client.end is not None)
        assert ends(decode) == ["broken"]
        assert client.ids == await true_text(LONG)


@pytest.mark.usefixtures("pieces_of_ten_blocks")
async def test_a_client_that_leaves_in_the_middle_of_four_connections_frees_all():
    with node("prefill", max_num_batched_tokens=2048) as prefill, node("decode") as decode:
        stuck = Fault(swallow_after=2000)
        async with fault_proxy(prefill.address, back=stuck) as network:
            client = decode.ask(LONG, network.address)
            await until(lambda: network.connections == 1 + MOST_CONNECTIONS and client.ids)
            decode.loop.abort("r")
            await until(lambda: not decode.scheduler.sequences)
            memory = [bytes(block) for block in decode.runner.memory]
        assert [bytes(block) for block in decode.runner.memory] == memory
        assert ends(decode) == ["cancelled"]
        assert decode.text_of(LONG) == []
