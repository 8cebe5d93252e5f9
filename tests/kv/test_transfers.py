"""Which KV transfers are taken and which are refused: short, disordered, repeated, damaged ones.

A decode engine's puller meets a peer that sends exactly the frames of a row, over a real socket.
The prompt has 4 blocks; block i of the prompt goes to block 11 + i of the pool.
"""

import asyncio
import contextlib
import struct
from zlib import crc32

import pytest

from argosy_engine.core.handover.messages import PullDone, PullFailed, PullJob, PullReady
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.ports.runner import KvLayout
from argosy_engine.transfer.puller import Puller
from argosy_engine.transfer.wire import Kind, encode_control
from tests.kv.peers import read_control, read_frame

SIZE, BYTES = 16, 8
PROMPT = list(range(100, 100 + 3 * SIZE + 5))
PLACES = (11, 12, 13, 14)
WHOLE = {11: b"AAAAAAAA", 12: b"BBBBBBBB", 13: b"CCCCCCCC", 14: b"DDDDDDDD"}


class Memory:
    """The part of a runner that a puller uses."""

    vocab_size = 1000

    def __init__(self):
        self.blocks = {}

    def kv_layout(self):
        return KvLayout(
            fingerprint="f", block_size=SIZE, num_blocks=20, block_bytes=100, wire_block_bytes=BYTES
        )

    def write_blocks(self, block_ids, data):
        for index, block in enumerate(block_ids):
            self.blocks[block] = bytes(data[index * BYTES : (index + 1) * BYTES])


def ready(**more):
    said = {
        "lease": ["r", 1], "engine_epoch": "e", "first_token": 5, "n_tokens": len(PROMPT),
        "n_blocks": 4, "pod": "p", "timings": {"queue_s": 0.0, "prefill_s": 0.1}, **more,
    }  # fmt: skip
    return encode_control(Kind.READY, said)


def kv(first, count, text, *, crc=None, length=None):
    """A KV frame, by the document: head of 12 bytes, run head of 12, 8 bytes for each letter."""
    data = b"".join(letter.encode() * BYTES for letter in text)
    payload = struct.pack("!III", first, count, crc32(data) if crc is None else crc) + data
    size = len(payload) if length is None else length
    return struct.pack("!4sBBHI", b"AGSY", 2, 6, 0, size) + payload


DONE = encode_control(Kind.DONE, {"n_blocks": 4})
CLOSE = b""
"""The peer closes its connection here."""


@contextlib.asynccontextmanager
async def peer(*frames, answer=None):
    """A prefill engine; yields its address and what PULL asked for."""
    leaving, asked = asyncio.Event(), []

    async def serve(reader, writer):
        with contextlib.suppress(OSError, EOFError):
            for _ in ("PREFILL", "TOKENS"):
                await read_frame(reader)
            writer.write(encode_control(Kind.ACCEPTED, {"engine_epoch": "e"}) + (answer or ready()))
            asked.append((await read_control(reader))[1])
            for frame in frames:
                writer.write(frame)
                if frame == CLOSE:
                    writer.close()
                    return
            await leaving.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        leaving.set()
        server.close()


async def pulled(*candidates, have_tokens=0):
    """What one pull writes and reports."""
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
    await Puller(memory, 30.0, events.append).pull(job)
    return memory.blocks, events


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([kv(0, 4, "ABCD")], id="in one run"),
        pytest.param([kv(0, 1, "A"), kv(1, 1, "B"), kv(2, 1, "C"), kv(3, 1, "D")], id="one by one"),
        pytest.param([kv(0, 3, "ABC"), kv(3, 1, "D")], id="in unequal runs"),
    ],
)
async def test_a_whole_transfer_is_taken_and_each_block_lies_in_its_place(frames):
    async with peer(*frames, DONE) as (address, asked):
        written, (first, end) = await pulled(address)
    assert written == WHOLE
    assert (first.first_token, first.prefill_pod) == (5, "p")
    assert isinstance(end, PullDone)
    assert (end.request_id, end.attempt, end.bytes_moved) == ("r", 1, 400)
    assert asked == [{"lease": ["r", 1], "from_token": 0}]


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        pytest.param([DONE], "corrupt", id="nothing"),
        pytest.param([kv(0, 3, "ABC"), DONE], "corrupt", id="the last block is missing"),
        pytest.param([kv(1, 3, "BCD"), DONE], "corrupt", id="the first block is missing"),
        pytest.param([kv(0, 1, "A"), kv(2, 2, "CD"), DONE], "corrupt", id="a gap"),
        pytest.param([kv(2, 2, "CD"), kv(0, 2, "AB"), DONE], "corrupt", id="another order"),
        pytest.param(
            [kv(0, 2, "AB"), kv(0, 2, "AB"), kv(2, 2, "CD"), DONE], "corrupt", id="a run twice"
        ),
        pytest.param([kv(0, 2, "AB"), kv(1, 3, "BCD"), DONE], "corrupt", id="runs that overlap"),
        pytest.param([kv(0, 5, "ABCDE"), DONE], "corrupt", id="a run of too many blocks"),
        pytest.param([kv(0, 4, "ABCD"), kv(4, 1, "E"), DONE], "corrupt", id="one block more"),
        pytest.param([kv(0, 0, ""), kv(0, 4, "ABCD"), DONE], "corrupt", id="an empty run"),
        pytest.param([kv(0, 4, "ABC"), DONE], "corrupt", id="fewer bytes than blocks"),
        pytest.param(
            [kv(0, 3, "ABCX"), kv(3, 1, "D"), DONE], "corrupt", id="more bytes than blocks"
        ),
        pytest.param([kv(0, 4, "ABCD", crc=1), DONE], "corrupt", id="damaged bytes"),
        pytest.param([kv(0, 4, "ABCD", length=11), DONE], "corrupt", id="half of a run's head"),
        pytest.param([kv(0, 2, "AB"), ready(), DONE], "corrupt", id="READY between the runs"),
        pytest.param([kv(0, 2, "AB"), CLOSE], "broken", id="the connection ends between runs"),
        pytest.param([kv(0, 4, "ABCD")[:-1], CLOSE], "broken", id="the connection ends in a run"),
        pytest.param([kv(0, 4, "ABCD"), CLOSE], "broken", id="the connection ends before DONE"),
        pytest.param(
            [
                kv(0, 2, "AB"),
                encode_control(Kind.REFUSED, {"reason": "lease_gone", "message": "it ended"}),
            ],
            "refused",
            id="the lease ended",
        ),
    ],
)
async def test_a_short_or_disordered_transfer_is_refused_and_no_other_engine_is_asked(
    frames, cause
):
    async with peer(*frames) as (address, _), peer(kv(0, 4, "ABCD"), DONE) as (second, asked):
        written, (first, end) = await pulled(address, second)
    assert isinstance(first, PullReady)
    assert isinstance(end, PullFailed)
    assert (end.request_id, end.attempt, end.cause) == ("r", 1, cause)
    assert written.items() <= WHOLE.items()  # what came was in its place, if it was taken at all
    assert asked == []


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"n_tokens": len(PROMPT) - 1}, id="a shorter prompt"),
        pytest.param({"n_tokens": len(PROMPT) + 1}, id="a longer prompt"),
        pytest.param({"n_blocks": 3}, id="fewer blocks"),
        pytest.param({"n_blocks": 5}, id="more blocks"),
        pytest.param({"first_token": 1000}, id="a token that the model does not have"),
    ],
)
async def test_an_answer_about_another_prompt_reaches_no_client_and_the_next_engine_is_asked(said):
    async with (
        peer(kv(0, 4, "WXYZ"), DONE, answer=ready(**said)) as (address, _),
        peer(kv(0, 4, "ABCD"), DONE, answer=ready(first_token=999)) as (second, _),
    ):
        written, (first, end) = await pulled(address, second)
    assert (first.first_token, type(end)) == (999, PullDone)
    assert written == WHOLE


async def test_blocks_that_are_here_are_neither_asked_for_nor_written():
    async with peer(kv(2, 2, "CD"), DONE) as (address, asked):
        written, (_, end) = await pulled(address, have_tokens=2 * SIZE)
    assert asked == [{"lease": ["r", 1], "from_token": 32}]
    assert (written, end.bytes_moved) == ({13: b"CCCCCCCC", 14: b"DDDDDDDD"}, 200)


async def test_a_peer_that_sends_blocks_that_are_here_is_refused():
    async with peer(kv(0, 4, "ABCD"), DONE) as (address, _):
        written, (_, end) = await pulled(address, have_tokens=2 * SIZE)
    assert (written, end.cause) == ({}, "corrupt")
