"""Which KV transfers are taken and which are refused: short, disordered, repeated, damaged ones.

A decode engine's puller meets a peer that sends exactly the frames of a row, over a real socket.
The prompt has 4 blocks; block i of the prompt goes to block 11 + i of the pool.
"""

import asyncio
import errno
import struct
from types import SimpleNamespace

import pytest
import xxhash

from argosy_engine.config import EngineConfig
from argosy_engine.core.handover import patience
from argosy_engine.core.handover.messages import PullAlive, PullDone, PullFailed, PullJob, PullReady
from argosy_engine.core.runner import KvLayout
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer import connection, fetch, puller
from argosy_engine.transfer.puller import Puller
from argosy_engine.transfer.wire import Kind, encode_control
from tests.kv.peers import ADMITTED, CLOSE, OPEN, TICKET, frame, liar

SIZE, BYTES = 16, 8
PROMPT = list(range(100, 100 + 3 * SIZE + 5))
PLACES = (11, 12, 13, 14)
WHOLE = {11: b"AAAAAAAA", 12: b"BBBBBBBB", 13: b"CCCCCCCC", 14: b"DDDDDDDD"}
CONFIG = EngineConfig(model="sim:m", served_name="m", role="decode")


class Landing:
    """Room for some blocks of a `Memory`, which notes when they are declared whole."""

    def __init__(self, memory, block_ids):
        self._memory, self._block_ids = memory, block_ids
        self.views = [memoryview(memory.pool[block]) for block in block_ids]

    def land(self):
        self._memory.landed_in += self._block_ids

    def wait(self):
        assert set(self._block_ids) <= set(self._memory.landed_in)


class Memory:
    """The part of a runner that a puller uses."""

    vocab_size = 1000
    on_cpu = True

    def __init__(self):
        self.pool, self.landed_in = {}, []

    def kv_layout(self):
        return KvLayout(
            fingerprint="f", block_size=SIZE, num_blocks=20, block_bytes=100,
            wire_block_bytes=BYTES, dtype="int8",
        )  # fmt: skip

    def incoming(self, block_ids):
        self.pool.update((block, bytearray(BYTES)) for block in block_ids)
        return Landing(self, block_ids)

    @property
    def verified(self):
        return {block: bytes(self.pool[block]) for block in self.landed_in}


def ready(**more):
    said = {
        "request_id": "r", "attempt": 1, "engine_epoch": "e", "fingerprint": "f", "dtype": "int8",
        "first_token": 5, "n_tokens": len(PROMPT), "n_blocks": 4, "pod": "p", **more,
    }  # fmt: skip
    return encode_control(Kind.READY, said)


def kv(first, count, text, *, digest=None, length=None):
    """A KV frame, by the document: head of 16 bytes, run head of 8, 8 bytes a letter, XXH3."""
    payload = struct.pack("!II", first, count) + b"".join(c.encode() * BYTES for c in text)
    payload += xxhash.xxh3_64(payload).digest() if digest is None else digest
    return frame(Kind.KV, payload, length=length)


def done(n_blocks=4):
    return encode_control(Kind.DONE, {"n_blocks": n_blocks})


DONE = done()


def peer(*frames, answer=None):
    return liar(ADMITTED, answer or ready(), kv=frames)


async def pulled(*candidates, have_tokens=0):
    """What one pull has verified and reports."""
    memory, events = await all_of(*candidates, have_tokens=have_tokens)
    return memory.verified, [event for event in events if not isinstance(event, PullAlive)]


async def all_of(*candidates, have_tokens=0):
    memory, events = Memory(), []
    job = PullJob(
        request_id="r",
        attempt=1,
        token_ids=PROMPT,
        sampling=SamplingParams(max_tokens=4),
        candidates=candidates,
        block_ids=PLACES,
        have_tokens=have_tokens,
        timeout_s=20.0,
    )
    puller = Puller(CONFIG, memory, events.append)
    await puller.pull(job)
    puller.close()
    return memory, events


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([kv(0, 4, "ABCD")], id="in one run"),
        pytest.param([kv(0, 1, "A"), kv(1, 1, "B"), kv(2, 1, "C"), kv(3, 1, "D")], id="one by one"),
        pytest.param([kv(0, 3, "ABC"), kv(3, 1, "D")], id="in unequal runs"),
    ],
)
async def test_a_whole_transfer_is_taken_and_each_block_lies_in_its_place(frames):
    async with peer(*frames, DONE) as it:
        written, (first, end) = await pulled(it.address)
    assert written == WHOLE
    assert (first.first_token, first.prefill_pod) == (5, "p")
    assert isinstance(end, PullDone)
    assert (first.request_id, first.attempt, first.failed) == ("r", 1, ())
    assert (end.request_id, end.attempt, end.bytes_moved) == ("r", 1, 400)
    assert it.pulls == [{"ticket": TICKET, "engine_epoch": "e", "first_block": 0, "n_blocks": 4}]


LEASE_GONE = encode_control(Kind.REFUSED, {"reason": "lease_gone", "message": "it ended"})
REFUSED_TRANSFERS = {
    "the last block is missing": ([kv(0, 3, "ABC"), DONE], "DONE came at block 3 of 4"),
    "the first block is missing": ([kv(1, 3, "BCD"), DONE], "blocks 1 to 4 came where 0 was due"),
    "another order": ([kv(2, 2, "CD"), kv(0, 2, "AB")], "blocks 2 to 4 came where 0 was due"),
    "a run of too many blocks": ([kv(0, 5, "ABCDE")], "4 blocks are due, not a frame of 56 bytes"),
    "one block more": (
        [kv(0, 4, "ABCD"), kv(4, 1, "E")], "0 blocks are due, not a frame of 24 bytes",
    ),
    "an empty run": ([kv(0, 0, "")], "blocks 0 to 0 came where 0 was due"),
    "fewer bytes than blocks": ([kv(0, 4, "ABC")], "4 blocks came in a frame of 40 bytes"),
    "damaged bytes": (
        [kv(0, 4, "ABCD", digest=b"x" * 8)], "the XXH3 of blocks 0 to 4 is wrong",
    ),
    "no room for a digest": (
        [kv(0, 4, "ABCD", length=15)], "4 blocks are due, not a frame of 15 bytes",
    ),
    "READY between the runs": (
        [kv(0, 2, "AB"), ready()], "READY came where DONE was due",
    ),
    "DONE about fewer blocks": (
        [kv(0, 4, "ABCD"), done(3)], "DONE is about 3 blocks; 4 were asked for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_TRANSFERS)
async def test_a_short_or_disordered_transfer_is_refused_by_what_is_wrong_with_it(name):
    frames, says = REFUSED_TRANSFERS[name]
    await assert_refused_and_nobody_else_is_asked(frames, "corrupt", says)


async def test_kv_whose_lease_ends_meanwhile_is_refused_by_that_name():
    end = await assert_refused_and_nobody_else_is_asked(
        [kv(0, 2, "AB"), LEASE_GONE], "refused", "lease_gone: it ended"
    )
    assert end.reason == "lease_gone"


async def test_an_engine_without_descriptors_blames_no_prefill_engine(monkeypatch):
    async def none_left(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    async with peer(kv(0, 4, "ABCD"), DONE) as it, peer(kv(0, 4, "ABCD"), DONE) as second:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_connection", none_left)
            _, (end,) = await pulled(it.address, second.address)
        assert (end.cause, end.failed) == ("shortage", ())


async def assert_refused_and_nobody_else_is_asked(frames, cause, says):
    async with peer(*frames) as it, peer(kv(0, 4, "ABCD"), DONE) as second:
        written, (first, end) = await pulled(it.address, second.address)
    assert isinstance(first, PullReady)
    assert isinstance(end, PullFailed)
    assert (end.request_id, end.attempt, end.cause) == ("r", 1, cause)
    assert says in end.message
    assert end.message.startswith(it.address)
    assert written.items() <= WHOLE.items()  # what came was in its place, if it was taken at all
    assert second.asked == 0
    return end


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"n_tokens": len(PROMPT) - 1}, "READY has n_tokens 52, not 53"),
        ({"n_blocks": 5}, "READY has n_blocks 5, not 4"),
        ({"first_token": 1000}, "this model has no token 1000"),
        ({"request_id": "s"}, "READY has request_id 's', not 'r'"),
        ({"fingerprint": "g"}, "READY has fingerprint 'g', not 'f'"),
    ],
)
async def test_an_answer_about_another_prompt_reaches_no_client_and_the_next_engine_is_asked(
    said, why
):
    async with liar(ADMITTED, ready(**said)) as it:
        _, (end,) = await pulled(it.address)
    assert end.message == f"{it.address}: {why}"
    async with (
        peer(kv(0, 4, "WXYZ"), DONE, answer=ready(**said)) as it,
        peer(kv(0, 4, "ABCD"), DONE, answer=ready(first_token=999)) as second,
    ):
        written, (first, end) = await pulled(it.address, second.address)
    assert first.failed == ((it.address, "corrupt"),)
    assert (first.first_token, type(end)) == (999, PullDone)
    assert written == WHOLE


async def test_blocks_that_are_here_are_neither_asked_for_nor_written():
    async with peer(kv(2, 2, "CD"), done(2)) as it:
        written, (_, end) = await pulled(it.address, have_tokens=2 * SIZE)
    assert [(asked["first_block"], asked["n_blocks"]) for asked in it.pulls] == [(2, 2)]
    assert (written, end.bytes_moved) == ({13: b"CCCCCCCC", 14: b"DDDDDDDD"}, 200)


def target(address):
    host, _, port = address.rpartition(":")
    return connection.Target(
        host=host, port=int(port), ssl=None, opening=OPEN, ticket=TICKET, engine_epoch="e"
    )


async def test_kv_that_trickles_in_ends_when_the_time_is_over_by_that_name(monkeypatch):
    """Each system call takes half a second here, and all together may take the grace of two."""
    now_s = 1000.0

    def clock():
        nonlocal now_s
        now_s += 0.5
        return now_s

    for module in (fetch, connection):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    async with liar(kv=(kv(0, 4, "ABCD"), DONE)) as it:
        pulling = fetch.Fetch(
            Memory(), target(it.address), PLACES, first=0, min_bytes_per_s=float("inf")
        )
        with pytest.raises(TimeoutError, match="the KV comes slower than the minimum rate"):
            await asyncio.to_thread(pulling.receive, 4)
        pulling.close()
    assert now_s == 1000.5 + patience.GRACE_S


@pytest.mark.parametrize(
    ("frames", "cause", "verified"),
    [
        ([kv(0, 2, "AB"), CLOSE], "broken", 2),
        ([kv(0, 2, "AB"), kv(2, 1, "C"), kv(3, 1, "D")[:-9], CLOSE], "broken", 3),
        ([CLOSE], "broken", 0),
        ([kv(0, 2, "AB"), kv(2, 1, "C", digest=bytes(8))], "corrupt", 0),
        ([kv(0, 2, "AB"), LEASE_GONE], "refused", 0),
    ],
)
async def test_blocks_that_came_count_when_the_peer_is_gone_but_not_when_it_is_wrong(
    frames, cause, verified
):
    async with peer(*frames) as it:
        _, (_, end) = await pulled(it.address)
    assert (end.cause, end.verified) == (cause, verified)


async def test_a_peer_that_is_gone_after_its_last_block_costs_nothing(monkeypatch):
    send = puller.send_control

    async def lost(writer, kind, said):
        if kind is Kind.RELEASE:
            raise ConnectionResetError
        await send(writer, kind, said)

    monkeypatch.setattr("argosy_engine.transfer.puller.send_control", lost)
    async with peer(kv(0, 4, "ABCD"), DONE) as there:
        verified, events = await pulled(there.address)
    assert verified == WHOLE
    assert [type(event) for event in events] == [PullReady, PullDone]
