"""Both ends against peers that say anything: never a crash, never a leak."""

import asyncio
import itertools
import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argosy_engine.transfer.wire import Kind, encode_control, encode_tokens
from tests.kv.nodes import BLOCK, Node, until
from tests.kv.peers import (
    ADMITTED,
    OPEN,
    TICKET,
    frame,
    hello,
    kv_frame,
    liar,
    puller,
    ready_for,
)

pytestmark = pytest.mark.slow

PROMPT = list(range(100, 100 + 3 * BLOCK + 5))
COUNT = itertools.count()
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Ends:
    """A prefill and a decode engine, and an event loop for peers."""

    def __init__(self) -> None:
        self.prefill, self.decode = Node("prefill", "text"), Node("decode", "text")
        self._aio = asyncio.new_event_loop()
        self._peers = threading.Thread(target=self._aio.run_forever, daemon=True)
        self._peers.start()

    def play(self, scene) -> None:
        asyncio.run_coroutine_threadsafe(scene, self._aio).result(60)

    def close(self) -> None:
        for engine in (self.prefill, self.decode):
            engine.close()
        self._aio.call_soon_threadsafe(self._aio.stop)
        self._peers.join()
        self._aio.close()


@pytest.fixture(scope="module")
def ends():
    both = Ends()
    yield both
    both.close()


def fingerprint(engine) -> str:
    return engine.runner.kv_layout().fingerprint


@st.composite
def damaged(draw, frames):
    """Frames in any order, some missing, some twice, some cut, some with other bytes."""
    chosen = draw(st.lists(st.sampled_from(frames), max_size=6))
    data = bytearray(b"".join(chosen))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["flip", "cut", "add"])):
            case "flip":
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "add":
                data[at:at] = draw(st.binary(max_size=20))
    return bytes(data)


ASKING = [
    OPEN,
    encode_control(Kind.PREFILL, hello(len(PROMPT), "text")),
    encode_control(Kind.PREFILL, hello(len(PROMPT), "")),
    encode_tokens(PROMPT),
    encode_control(
        Kind.PULL, {"ticket": TICKET, "engine_epoch": "e", "first_block": 0, "n_blocks": 1}
    ),
    encode_control(Kind.RENEW, {}),
    encode_control(Kind.RELEASE, {}),
    frame(Kind.PREFILL, b"[" * 1000),
    frame(200, b""),
    b"GET / HTTP/1.1\r\n\r\n",
]


@FUZZ
@given(said=damaged(ASKING) | st.binary(max_size=300))
def test_whatever_a_stranger_says_prefill_serves_the_next_one_and_holds_nothing(ends, said):
    good = json.dumps(fingerprint(ends.prefill)).encode()
    said = said.replace(b'"text"', good)

    async def scene() -> None:
        async with puller(ends.prefill.address) as peer:
            peer.writer.write(said)
            peer.writer.write_eof()
            async with asyncio.timeout(20):
                try:
                    while await peer.reader.read(1 << 16):
                        pass
                except ConnectionError:
                    pass
        await until(lambda: not ends.prefill.loop.leases.active)
        async with puller(ends.prefill.address) as peer:
            assert (await peer.prefill(PROMPT, fingerprint(ends.prefill)))[0] is Kind.READY
            assert (await peer.pull())[0] is Kind.DONE
            await peer.tell(Kind.RELEASE)
        await until(lambda: not ends.prefill.loop.leases.active)
        await until(lambda: not ends.prefill.scheduler.pool.used)

    ends.play(scene())
    assert ends.prefill.metric("argosy_loop_errors_total") == 0


def answers(request_id: str, layout: str) -> list[bytes]:
    said = hello(len(PROMPT), layout, request_id=request_id)
    return [
        encode_control(*ADMITTED),
        encode_control(Kind.WAIT, {"step": 1, "n_ready": 2}),
        encode_control(*ready_for(said, 4)),
        encode_control(*ready_for(said, 5)),
        encode_control(Kind.DONE, {"n_blocks": 4}),
        encode_control(Kind.REFUSED, {"reason": "failed", "message": ""}),
        frame(Kind.READY, b"{}"),
        frame(200, b""),
    ]


BLOCKS = [
    kv_frame(0, 4, bytes(4 * 4 * BLOCK)),
    kv_frame(0, 2, bytes(2 * 4 * BLOCK)),
    kv_frame(2, 2, bytes(2 * 4 * BLOCK)),
    encode_control(Kind.DONE, {"n_blocks": 4}),
    encode_control(Kind.DONE, {"n_blocks": 2}),
    frame(Kind.KV, b"\0" * 40),
]


@FUZZ
@given(data=st.data())
def test_whatever_a_prefill_engine_says_decode_answers_and_holds_nothing(ends, data):
    decode = ends.decode
    said = data.draw(damaged(answers("fuzz", fingerprint(decode))))
    kv = data.draw(damaged(BLOCKS))
    opening = encode_control(*ADMITTED) if data.draw(st.booleans()) else b""

    async def scene() -> None:
        async with liar(opening + said, b"", kv=(kv, b"")) as it:
            prompt = [100 + next(COUNT), *PROMPT[1:]]  # no prefix hit saves it from asking
            client = decode.ask(prompt, it.address, name="fuzz")
            await until(lambda: client.end is not None, within_s=30)
            assert (len(client.ids), client.end) == (3, "length")
        await until(lambda: not decode.scheduler.pool.used)
        decode.kv._puller._suspects._of.clear()  # so that the next peer is asked, too

    ends.play(scene())
    assert decode.metric("argosy_loop_errors_total") == 0
