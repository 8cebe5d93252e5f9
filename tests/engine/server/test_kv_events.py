"""Changes of the prefix cache as vLLM's subscribers read them: msgspec's typed decoder, arrays."""

import subprocess
import sys

import httpx
import msgspec
import pytest
import zmq

from argosy_bench.ports import free_ports
from argosy_engine.core.blocks.changes import Removed, Stored
from argosy_engine.errors import LoadError
from argosy_engine.server.kv_events import KvEvents, events_of
from tests.engine.processes import eventually, sim_engines

BLOCK = 32


class BlockStored(msgspec.Struct, array_like=True, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


READER = msgspec.msgpack.Decoder(Batch)


def named(number):
    """16 bytes, of which the last 8 are what is published."""
    return b"\xff" * 8 + number.to_bytes(8, "big")


def test_neighbours_of_one_text_and_removals_in_a_row_share_an_event():
    changes = [
        Stored(named(1), None, (10, 11)),
        Stored(named(2), named(1), (12, 13)),
        Stored(named(3), named(1), (14, 15)),
        Removed(named(2)),
        Removed(named(3)),
        Stored(named(2**64 - 1), named(3), (16, 17)),
    ]
    assert events_of(changes, 2) == [
        ["BlockStored", [1, 2], None, [10, 11, 12, 13], 2, None, "GPU"],
        ["BlockStored", [3], 1, [14, 15], 2, None, "GPU"],
        ["BlockRemoved", [2, 3], "GPU"],
        ["BlockStored", [2**64 - 1], 3, [16, 17], 2, None, "GPU"],
    ]
    assert events_of([], 2) == []


@pytest.fixture
def port():
    (free,) = free_ports(1)
    return free


def test_messages_are_numbered_and_the_first_one_says_that_the_cache_was_empty(port):
    events = KvEvents("127.0.0.1", port, topic="kv@pod", block_size=2, clock=lambda: 7.5)
    sent = [events.message([Removed(named(number))]) for number in (1, 2)]
    events.close()
    assert [(topic, number) for topic, number, _ in sent] == [
        (b"kv@pod", bytes(8)),
        (b"kv@pod", bytes(7) + b"\x01"),
    ]
    assert [READER.decode(payload) for _, _, payload in sent] == [
        Batch(7.5, [AllBlocksCleared(), BlockRemoved([1], "GPU")]),
        Batch(7.5, [BlockRemoved([2], "GPU")]),
    ]


def test_a_port_that_is_taken_is_said_at_the_start(port):
    first = KvEvents("127.0.0.1", port, topic="", block_size=2)
    with pytest.raises(LoadError, match=f"port {port} for KV events.*another --kv-events-port"):
        KvEvents("127.0.0.1", port, topic="", block_size=2)
    first.close()
    KvEvents("127.0.0.1", port, topic="", block_size=2).close()


@pytest.fixture
def followed(port):
    """An engine with room for 32 blocks, and a subscriber of its events."""
    options = ("--kv-events-port", str(port), "--kv-events-topic", "kv@m")
    room = ("--kv-cache-tokens", str(32 * BLOCK), "--max-model-len", str(32 * BLOCK))
    with (
        sim_engines("colocated", options=(*options, *room)) as (engine,),
        zmq.Context() as context,
        context.socket(zmq.SUB) as subscriber,
    ):
        subscriber.setsockopt(zmq.RCVTIMEO, 15_000)
        subscriber.subscribe(b"kv@m")
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        yield engine, subscriber


def ask(engine, tokens):
    body = {"model": "m", "prompt": tokens, "max_tokens": 1, "ignore_eos": True}
    answer = httpx.post(f"http://127.0.0.1:{engine.api}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
def test_a_subscriber_sees_which_prompts_an_engine_has_in_its_cache(followed):
    engine, subscriber = followed
    starts = iter(range(1, 1000))

    def is_heard():
        """A subscription reaches the engine a moment after the connection."""
        ask(engine, [next(starts)] * (BLOCK + 1))
        return subscriber.poll(200)

    eventually(is_heard)
    mine = list(range(2000, 2000 + 3 * BLOCK + 5))
    ask(engine, mine)
    known, numbers, texts = {}, [], {}

    def read():
        _, number, payload = subscriber.recv_multipart()
        numbers.append(int.from_bytes(number, "big"))
        for event in READER.decode(payload).events:
            if isinstance(event, BlockStored):
                assert event.block_size == BLOCK
                assert len(event.token_ids) == BLOCK * len(event.block_hashes)
                known.update(dict.fromkeys(event.block_hashes, event))
                texts[tuple(event.token_ids)] = event
            elif isinstance(event, BlockRemoved):
                for digest in event.block_hashes:
                    known.pop(digest, None)

    whole = tuple(mine[: 3 * BLOCK])
    while whole not in texts:
        read()
    stored = texts[whole]
    assert stored.parent_block_hash is None
    assert set(stored.block_hashes) <= known.keys()
    for start in range(3000, 3000 + 12 * 100, 100):
        ask(engine, [start + place % 97 for place in range(3 * BLOCK + 5)])
    while known.keys() & set(stored.block_hashes):
        read()
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_without_the_option_zeromq_is_not_imported():
    code = "import argosy_engine.server.serve, sys; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
