"""Which transport decode uses towards a peer, and how blocks pass the staging memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.transfer.nixl import Offer, Routes, stage, unstage
from argosy_engine.transfer.wire import Digest


class Works:
    offer: Offer | None = Offer("metadata", 1)


def test_nixl_is_used_with_peers_that_offer_it():
    link = Works()
    routes = Routes(link)
    assert routes.to("a:1", ("nixl",)) is link
    assert routes.to("a:1", ("other", "nixl")) is link
    assert routes.to("a:1", ()) is None
    assert routes.to("a:1", ("other",)) is None


def test_nixl_is_not_used_without_a_process_that_runs():
    assert Routes(None).to("a:1", ("nixl",)) is None
    link = Works()
    link.offer = None
    assert Routes(link).to("a:1", ("nixl",)) is None


def test_a_peer_to_which_it_failed_is_left_alone_for_a_minute_and_others_are_not():
    now = 100.0
    routes = Routes(Works(), lambda: now)
    routes.failed("a:1")
    now = 159.9
    assert routes.to("a:1", ("nixl",)) is None
    assert routes.to("b:1", ("nixl",)) is not None
    now = 160.0
    assert routes.to("a:1", ("nixl",)) is not None


def test_failures_that_are_over_are_forgotten():
    now = 0.0
    routes = Routes(Works(), lambda: now)
    for peer in range(100):
        routes.failed(f"{peer}:1")
        now += 60
    assert list(routes._avoided) == ["99:1"]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), st.integers(0, 9))
def test_blocks_pass_a_slot_unchanged_and_with_the_checksum_of_a_kv_frame(blocks, first):
    whole = b"".join(blocks)
    slot = memoryview(bytearray(len(whole) + 7))
    staged = stage(first, len(blocks), [memoryview(block) for block in blocks], slot)
    head = first.to_bytes(4) + len(blocks).to_bytes(4)
    assert staged == (len(whole), Digest(head + whole).hexdigest())
    places = [memoryview(bytearray(len(block))) for block in blocks]
    assert unstage(first, len(blocks), places, slot) == staged
    assert [bytes(place) for place in places] == blocks


def test_pieces_of_a_long_view_are_in_order():
    data = bytes(range(256)) * (3 << 12)  # three pieces of a mebibyte
    slot, place = memoryview(bytearray(len(data))), memoryview(bytearray(len(data)))
    staged = stage(0, 1, [memoryview(data)], slot)
    assert bytes(slot) == data
    assert unstage(0, 1, [place], slot) == staged
    assert bytes(place) == data


def test_the_checksum_is_of_what_arrived_at_the_places():
    slot, place = memoryview(bytearray(b"as sent.")), memoryview(bytearray(8))
    sent = stage(0, 1, [memoryview(b"as sent.")], slot)
    slot[0] ^= 1
    assert unstage(0, 1, [place], slot) != sent


@pytest.mark.parametrize("first", [0, 1])
def test_the_checksum_says_which_blocks_they_are(first):
    slot = memoryview(bytearray(8))
    assert (
        stage(first, 1, [memoryview(b"12345678")], slot)
        == stage(0, 1, [memoryview(b"12345678")], slot)
    ) is (first == 0)
