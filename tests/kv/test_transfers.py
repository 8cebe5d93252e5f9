"""Which KV transfers are taken and which are refused: short, disordered, repeated, damaged ones.

A decode engine's puller meets a peer that sends exactly the frames of a row, over a real socket.
The prompt has 4 blocks; block i of the prompt goes to block 11 + i of the pool.
"""

import struct

import pytest
import xxhash

from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import PullAlive, PullDone, PullFailed, PullJob, PullReady
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.ports.runner import KvLayout
from argosy_engine.transfer.puller import Puller
from argosy_engine.transfer.wire import Kind, encode_control
from tests.kv.peers import ADMITTED, CLOSE, TICKET, liar

SIZE, BYTES = 16, 8
PROMPT = list(range(100, 100 + 3 * SIZE + 5))
PLACES = (11, 12, 13, 14)
WHOLE = {11: b"AAAAAAAA", 12: b"BBBBBBBB", 13: b"CCCCCCCC", 14: b"DDDDDDDD"}
CONFIG = EngineConfig(model="sim:m", served_name="m", role="decode")


class Memory:
    """The part of a runner that a puller uses."""

    vocab_size = 1000

    def __init__(self):
        self.pool, self.landed_in = {}, []

    def kv_layout(self):
        return KvLayout(
            fingerprint="f", block_size=SIZE, num_blocks=20, block_bytes=100,
            wire_block_bytes=BYTES, dtype="int8",
        )  # fmt: skip

    def incoming(self, block_ids):
        self.pool.update((block, bytearray(BYTES)) for block in block_ids)
        return [memoryview(self.pool[block]) for block in block_ids]

    def landed(self, block_ids, views):
        assert [bytes(view) for view in views] == [bytes(self.pool[b]) for b in block_ids]
        self.landed_in += block_ids

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
    """A KV frame, by the document: head of 12 bytes, run head of 8, 8 bytes a letter, XXH3."""
    payload = struct.pack("!II", first, count) + b"".join(c.encode() * BYTES for c in text)
    payload += xxhash.xxh3_64(payload).digest() if digest is None else digest
    size = len(payload) if length is None else length
    return struct.pack("!4sBBHI", b"AGSY", 3, 8, 0, size) + payload


def done(n_blocks=4):
    return encode_control(Kind.DONE, {"n_blocks": n_blocks})


DONE = done()


def peer(*frames, answer=None):
    return liar(ADMITTED, answer or ready(), kv=frames)


async def pulled(*candidates, have_tokens=0):
    """What one pull has verified and reports."""
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
    return memory.verified, [event for event in events if not isinstance(event, PullAlive)]


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
    assert (end.request_id, end.attempt, end.bytes_moved) == ("r", 1, 400)
    assert it.pulls == [{"ticket": TICKET, "engine_epoch": "e", "first_block": 0, "n_blocks": 4}]


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
        pytest.param([kv(0, 4, "ABCD", digest=b"x" * 8), DONE], "corrupt", id="damaged bytes"),
        pytest.param([kv(0, 4, "ABCD", length=15), DONE], "corrupt", id="no room for a digest"),
        pytest.param([kv(0, 4, "ABCD", length=16), DONE], "corrupt", id="no room for a block"),
        pytest.param([kv(0, 2, "AB"), ready(), DONE], "corrupt", id="READY between the runs"),
        pytest.param([kv(0, 4, "ABCD"), done(3)], "corrupt", id="DONE about fewer blocks"),
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
    async with peer(*frames) as it, peer(kv(0, 4, "ABCD"), DONE) as second:
        written, (first, end) = await pulled(it.address, second.address)
    assert isinstance(first, PullReady)
    assert isinstance(end, PullFailed)
    assert (end.request_id, end.attempt, end.cause) == ("r", 1, cause)
    assert written.items() <= WHOLE.items()  # what came was in its place, if it was taken at all
    assert second.asked == 0


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"n_tokens": len(PROMPT) - 1}, id="a shorter prompt"),
        pytest.param({"n_tokens": len(PROMPT) + 1}, id="a longer prompt"),
        pytest.param({"n_blocks": 3}, id="fewer blocks"),
        pytest.param({"n_blocks": 5}, id="more blocks"),
        pytest.param({"first_token": 1000}, id="a token that the model does not have"),
        pytest.param({"request_id": "s"}, id="another request"),
        pytest.param({"attempt": 2}, id="another attempt"),
        pytest.param({"engine_epoch": "f"}, id="another start of the engine"),
        pytest.param({"fingerprint": "g"}, id="another layout"),
        pytest.param({"dtype": "int4"}, id="another type of number"),
    ],
)
async def test_an_answer_about_another_prompt_reaches_no_client_and_the_next_engine_is_asked(said):
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


async def test_a_peer_that_sends_blocks_that_are_here_is_refused():
    async with peer(kv(0, 4, "ABCD"), DONE) as it:
        written, (_, end) = await pulled(it.address, have_tokens=2 * SIZE)
    assert (written, end.cause) == ({}, "corrupt")
