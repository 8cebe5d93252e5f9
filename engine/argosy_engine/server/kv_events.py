"""Publishes changes of the prefix cache as vLLM's engines do, for routers that follow these.

Changes come from the pool, once a turn of the engine loop. They go out over ZeroMQ (PUB): topic,
number of the message in 8 bytes (big endian), and in msgpack [seconds since the epoch, events].
An event is an array that begins with its name: BlockStored, BlockRemoved or AllBlocksCleared. This
is the form of vllm/distributed/kv_events.py with `array_like=True`, as its releases send it.

A subscriber that is too slow misses messages, and sees that in their numbers.
"""

import time
from collections.abc import Callable, Sequence
from itertools import count

import msgpack
import zmq

from argosy_engine.core.blocks.changes import Change, Removed, Stored
from argosy_engine.errors import LoadError

__all__ = ["KvEvents", "events_of"]

MEDIUM = "GPU"
"""vLLM's word for the pool that an engine computes from."""
MOST_WAITING = 10_000
"""Messages kept for a subscriber that does not keep up; further ones are lost to it."""


class KvEvents:
    """A bound socket. It is made in one thread and then used by the engine's alone."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        topic: str,
        block_size: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises LoadError if the port is taken."""
        self._topic, self._block_size, self._clock = topic.encode(), block_size, clock
        self._numbers = count()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(MOST_WAITING)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        try:
            self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close()
            message = f"cannot listen on {host} port {port} for KV events: {error.strerror}"
            raise LoadError("BadArgument", f"{message}; choose another --kv-events-port") from error

    def publish(self, changes: Sequence[Change]) -> None:
        """Send one message with these changes. Never waits."""
        self._socket.send_multipart(self.message(changes))

    def message(self, changes: Sequence[Change]) -> tuple[bytes, bytes, bytes]:
        """The parts of the next message: topic, number, payload."""
        number = next(self._numbers)
        events = events_of(changes, self._block_size)
        if number == 0:  # who followed the process before this one knows blocks that are gone
            events = [["AllBlocksCleared"], *events]
        payload = msgpack.packb([self._clock(), events])
        return self._topic, number.to_bytes(8, "big"), payload

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


def events_of(changes: Sequence[Change], block_size: int) -> list[list[object]]:
    """The events in their order. Neighbours of one text, and removals in a row, share an event."""
    events: list[list[object]] = []
    last: Change | None = None
    for change in changes:
        match change:
            case Stored(digest, parent, token_ids):
                if isinstance(last, Stored) and parent == last.digest:
                    _extend(events[-1], 1, [number_of(digest)])
                    _extend(events[-1], 3, token_ids)
                else:
                    before = None if parent is None else number_of(parent)
                    hashes, lora = [number_of(digest)], None
                    stored = [hashes, before, list(token_ids), block_size, lora, MEDIUM]
                    events.append(["BlockStored", *stored])
            case Removed(digest):
                if isinstance(last, Removed):
                    _extend(events[-1], 1, [number_of(digest)])
                else:
                    events.append(["BlockRemoved", [number_of(digest)], MEDIUM])
        last = change
    return events


def _extend(event: list[object], at: int, more: Sequence[int]) -> None:
    numbers = event[at]
    assert isinstance(numbers, list)
    numbers.extend(more)


def number_of(digest: bytes) -> int:
    """The last 8 bytes as a number, as vLLM publishes its hashes."""
    return int.from_bytes(digest[-8:], "big")
