"""KV blocks to bytes and back: in place, and as copies that a device makes when it likes."""

import gc
import weakref
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.model.attention.carrier import (  # noqa: E402
    LaneCarrier,
    carrier_of,
    neighbors,
)

BLOCKS, BYTES = 9, 64
ids = st.lists(st.integers(1, BLOCKS - 1), min_size=1, unique=True)


class Device:
    """A lane whose device is as late as it may be: it copies when somebody waits, in order."""

    def __init__(self):
        self.queue = []
        self.copies = 0
        self.rooms = []

    def room(self, blocks, block_bytes):
        memory = array("B", bytes(blocks * block_bytes))  # torch keeps it as long as its own
        self.rooms.append(weakref.ref(memory))
        return torch.frombuffer(memory, dtype=torch.uint8).view(blocks, block_bytes)

    def copy(self, pairs):
        before = len(self.queue)
        self.queue += pairs
        upto = self.copies = self.copies + len(self.queue) - before
        return lambda: self.run(upto)

    def run(self, upto):
        while self.queue and self.copies - len(self.queue) < upto:
            into, source = self.queue.pop(0)
            into.copy_(source)


def pool():
    return torch.randint(0, 255, (BLOCKS, BYTES), dtype=torch.uint8)


def bytes_of(blocks, block_ids):
    return blocks[block_ids].numpy().tobytes()


def joined(copies):
    return b"".join(map(bytes, copies.views))


def fill(copies, data):
    for view in copies.views:
        view[:], data = data[: view.nbytes], data[view.nbytes :]
    assert not data


def carriers(blocks):
    return [carrier_of(blocks), LaneCarrier(blocks, Device())]


@given(ids, st.integers(0, 1))
def test_blocks_leave_and_land_in_the_order_of_their_ids(block_ids, which):
    blocks = pool()
    before = blocks.clone()
    carrier = carriers(blocks)[which]
    leaving = carrier.outgoing(block_ids)
    leaving.wait()
    data = joined(leaving)
    assert data == bytes_of(before, block_ids)

    targets = sorted(block_ids)
    coming = carrier.incoming(targets)
    fill(coming, data)
    coming.land()
    coming.wait()
    before[targets] = before[block_ids]
    assert torch.equal(blocks, before)


@given(st.lists(ids, min_size=2, max_size=5))
def test_several_copies_may_be_under_way_and_each_wait_is_for_its_own(runs):
    blocks = pool()
    carrier = LaneCarrier(blocks, Device())
    leaving = [carrier.outgoing(block_ids) for block_ids in runs]
    for copies, block_ids in zip(leaving, runs, strict=True):
        copies.wait()
        assert joined(copies) == bytes_of(blocks, block_ids)


def test_blocks_that_come_are_written_after_land_and_are_there_after_wait():
    blocks = torch.zeros(BLOCKS, BYTES, dtype=torch.uint8)
    device = Device()
    coming = LaneCarrier(blocks, device).incoming([3, 4])
    fill(coming, b"\x07" * 2 * BYTES)
    assert not blocks.any()
    assert not device.queue  # damaged bytes are never landed
    coming.land()
    coming.wait()
    assert blocks[3:5].eq(7).all()
    assert blocks.eq(7).sum() == 2 * BYTES


def test_neighbors_are_one_copy():
    blocks, device = pool(), Device()
    LaneCarrier(blocks, device).outgoing([4, 5, 6, 2, 3, 8]).wait()
    assert device.copies == 3
    assert neighbors([4, 5, 6, 2, 3, 8]) == [(4, 7), (2, 4), (8, 9)]


def test_the_memory_goes_back_with_the_last_view_of_it():
    blocks, device = pool(), Device()
    copies = LaneCarrier(blocks, device).outgoing([1, 2])
    copies.wait()
    (view,) = copies.views
    del copies
    gc.collect()
    (room,) = device.rooms
    assert room() is not None
    assert bytes(view) == bytes_of(blocks, [1, 2])
    del view
    gc.collect()
    assert room() is None


def test_on_a_cpu_the_views_are_the_pool_itself():
    blocks = pool()
    coming = carrier_of(blocks).incoming([5, 6])
    coming.views[0][:1] = b"\x2a"
    assert blocks[5, 0] == 42
    assert len(coming.views) == 1
