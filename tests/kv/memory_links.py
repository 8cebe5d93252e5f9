"""NIXL without its package: staging memory of one process, in place of `nixl.Link`.

`tests/kv/test_nixl.py` has the real one. This one moves no byte between processes, so a test of the
frames around it needs neither the package nor a start of seconds, and a transfer fails when a test
says so.
"""

import contextlib
from collections.abc import Iterator

from argosy_engine.transfer.nixl import LinkError, Offer, Slot

_PLACES: dict[str, "MemoryLink"] = {}
"""Links by their metadata: where a peer's bytes go to."""


class MemoryLink:
    """Slots in this process. Its address space begins at 1000, to tell it from an offset."""

    def __init__(self, *, blocks: int, block_bytes: int, slots: int) -> None:
        self.slot_bytes = blocks * block_bytes
        self.memory = bytearray(slots * self.slot_bytes)
        self.free = list(range(0, len(self.memory), self.slot_bytes))
        self.slots = slots
        self.offer: Offer | None = Offer(f"link {len(_PLACES)}", 1000)
        self.moved = 0
        self.writes: list[tuple[int, int]] = []
        """Bytes of each write, and the place in the peer's memory."""
        self.limits_s: list[float] = []
        """Seconds that each write could take."""
        self.awaited = self.most_awaited = self.most_taken = 0
        self.fails_at: int | None = None
        """The number of the write that fails; None: all succeed."""
        self.closed = False
        _PLACES[self.offer.metadata] = self

    def wait(self) -> bool:
        return True

    def take(self, count: int) -> list[Slot] | None:
        if len(self.free) < count:
            return None
        places = [self.free.pop() for _ in range(count)]
        self.most_taken = max(self.most_taken, self.slots - len(self.free))
        view = memoryview(self.memory)
        return [Slot(at, view[at : at + self.slot_bytes]) for at in places]

    def give(self, slots: list[Slot]) -> None:
        self.free += [slot.at for slot in slots]

    def write(self, slot: Slot, size: int, peer: str, address: int, within_s: float) -> None:
        if self.fails_at == len(self.writes):
            self.fails_at = None
            raise LinkError("no route")
        other = _PLACES[peer]
        assert other.awaited, "the peer awaits no bytes"
        at = address - 1000
        other.memory[at : at + size] = slot.memory[:size]
        self.writes.append((size, at))
        self.limits_s.append(within_s)
        self.moved += size

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        self.awaited += 1
        self.most_awaited = max(self.most_awaited, self.awaited)
        try:
            yield
        finally:
            self.awaited -= 1

    def close(self) -> None:
        self.closed = True
