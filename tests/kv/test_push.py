"""KV over staging memory: which slots, in which order, and how a failure goes on over TCP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.handover.messages import PullDone
from argosy_engine.core.handover.patience import transfer_s
from argosy_engine.transfer import service
from argosy_engine.transfer.nixl import LinkError, Offer, Routes, stage, unstage
from argosy_engine.transfer.wire import Digest, Kind, decode_control
from tests.kv.memory_links import MemoryLink
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import puller, read_frame, send_control

BLOCKS, BLOCK_BYTES = 41, 4 * BLOCK
PROMPT = list(range(100, 100 + 40 * BLOCK + 5))


class Ends:
    """Prefill and decode, each with its link."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, decode
        self.out, self.into = prefill.kv.link, decode.kv.link

    async def hand_over(self, prompt=PROMPT, name="r"):
        client = self.decode.ask(prompt, self.prefill.address, name=name)
        await until(lambda: client.end is not None, within_s=20)
        assert (len(client.ids), client.end) == (3, "length")
        assert isinstance(self.decode.events[-1], PullDone)
        whole = len(prompt) // BLOCK * BLOCK
        assert self.decode.text_of(prompt) == prompt[:whole]

    def assert_all_given_back(self):
        for link in (self.out, self.into):
            assert (len(link.free), link.awaited) == (link.slots, 0)


@pytest.fixture
def ends(monkeypatch, request):
    """The number of blocks in a slot, and of slots, are the test's."""
    blocks, slots = getattr(request, "param", (BLOCKS, 4))
    monkeypatch.setattr(
        service,
        "_link",
        lambda *_, **__: MemoryLink(blocks=blocks, block_bytes=BLOCK_BYTES, slots=slots),
    )
    nixl = {"kv_transport": "nixl", "max_num_batched_tokens": 2048}
    with node("prefill", **nixl) as prefill, node("decode", **nixl) as decode:
        yield Ends(prefill, decode)
    assert all(engine.kv.link.closed for engine in (prefill, decode))


@pytest.mark.parametrize(
    ("ends", "sizes"),
    [
        ((41, 4), [41]),
        ((40, 4), [40, 1]),
        ((14, 4), [14, 14, 13]),
    ],
    indirect=["ends"],
)
async def test_a_prompt_goes_through_slots_in_their_order(ends, sizes):
    await ends.hand_over()
    assert [size for size, _ in ends.out.writes] == [count * BLOCK_BYTES for count in sizes]
    assert ends.out.moved == BLOCKS * BLOCK_BYTES
    places = [at for _, at in ends.out.writes]
    assert len(set(places)) == min(2, len(sizes)), "decode uses two slots in turn"
    assert places == [places[index % 2] for index in range(len(places))]
    assert (ends.into.most_taken, ends.out.most_taken) == (min(2, len(sizes)), 1)
    assert (ends.into.most_awaited, ends.out.most_awaited) == (1, 0)
    ends.assert_all_given_back()


async def test_a_write_may_take_the_time_of_its_bytes_at_the_minimum_rate(ends):
    await ends.hand_over()
    (limit_s,) = ends.out.limits_s
    longest_s = transfer_s(BLOCKS * BLOCK_BYTES, 8e6)
    assert 0 < limit_s <= longest_s


@pytest.mark.parametrize("ends", [(10, 1)], indirect=True)
async def test_a_prompt_of_one_slot_needs_one_and_a_longer_one_goes_over_tcp(ends):
    await ends.hand_over(PROMPT[: 10 * BLOCK])
    assert [size for size, _ in ends.out.writes] == [10 * BLOCK_BYTES]
    await ends.hand_over([7, *PROMPT], name="longer")
    assert len(ends.out.writes) == 1
    ends.assert_all_given_back()


@pytest.mark.parametrize("ends", [(10, 4)], indirect=True)
@pytest.mark.parametrize("write", [0, 3])
async def test_what_a_failed_write_leaves_comes_over_tcp_and_that_peer_is_left_alone(ends, write):
    ends.out.fails_at = write
    await ends.hand_over()
    assert len(ends.out.writes) == write
    ends.assert_all_given_back()
    await ends.hand_over([7, *PROMPT], name="second")
    assert len(ends.out.writes) == write, "it has failed a moment ago"


async def test_a_decode_whose_process_has_ended_asks_over_tcp(ends):
    ends.into.offer = None
    await ends.hand_over()
    assert ends.out.writes == []


@pytest.mark.parametrize("side", ["into", "out"])
async def test_while_no_slot_is_free_kv_comes_over_tcp(ends, side):
    link = getattr(ends, side)
    taken = link.take(4)
    await ends.hand_over()
    assert ends.out.writes == []
    link.give(taken)
    ends.assert_all_given_back()


async def test_damage_in_a_slot_is_found_and_its_blocks_come_over_tcp(ends):
    write = ends.out.write

    def damaged(slot, size, peer, address, within_s):
        write(slot, size, peer, address, within_s)
        ends.into.memory[address - 1000 + size - 1] ^= 1

    ends.out.write = damaged
    await ends.hand_over()
    assert len(ends.out.writes) == 1
    ends.assert_all_given_back()


async def pushed(prefill, **said):
    """What prefill answers to a PUSH of a prompt that it has computed."""
    async with puller(prefill.address) as peer:
        kind, _ = await peer.prefill(PROMPT, prefill.runner.kv_layout().fingerprint)
        assert kind is Kind.READY
        reader, writer = await peer.open_data()
        asked = {"ticket": peer.ticket, "engine_epoch": peer.epoch, "first_block": 0,
                 "n_blocks": BLOCKS, "metadata": "bWV0YQ==", "address": 1000, **said}  # fmt: skip
        await send_control(writer, Kind.PUSH, asked)
        frame, payload = await read_frame(reader)
        answer = (frame.kind, decode_control(payload))
        kind, done = await peer.pull()
        assert (kind, done) == (Kind.DONE, {"n_blocks": BLOCKS}), "the lease serves a PULL as well"
        return answer


@pytest.mark.parametrize("ends", [(40, 4)], indirect=True)
async def test_a_push_of_more_blocks_than_a_slot_holds_is_refused(ends):
    kind, said = await pushed(ends.prefill)
    assert (kind, said["reason"]) == (Kind.REFUSED, "protocol")
    assert said["message"] == "a PUSH of 41 blocks is more than a slot holds"
    ends.assert_all_given_back()


async def test_a_push_whose_write_fails_is_refused_with_the_reason(ends):
    def fails(*_):
        raise LinkError("no route to it")

    ends.out.write = fails
    kind, said = await pushed(ends.prefill)
    assert (kind, said["reason"], said["message"]) == (Kind.REFUSED, "transport", "no route to it")
    ends.assert_all_given_back()


async def test_a_push_to_an_engine_without_nixl_is_refused_as_that():
    with node("prefill") as prefill:
        kind, said = await pushed(prefill)
    assert (kind, said["reason"]) == (Kind.REFUSED, "transport")
    assert said["message"] == "this engine offers no NIXL"


# ------------------------------------------------------------------ which transport


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


def test_the_checksum_is_of_what_arrived_at_the_places():
    slot, place = memoryview(bytearray(b"as sent.")), memoryview(bytearray(8))
    sent = stage(0, 1, [memoryview(b"as sent.")], slot)
    slot[0] ^= 1
    assert unstage(0, 1, [place], slot) != sent
