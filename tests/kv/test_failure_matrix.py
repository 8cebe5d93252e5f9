"""What can fail in a handover, cell by cell: the text stays, and both pools are empty afterwards.

The engines' KV is the text itself, and the tokens that they draw depend on all of it. So a wrong
block gives another text. `node` checks after each test that its engine holds no block and no lease.
"""

import asyncio
import itertools
import threading

import pytest

from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.core.request import State
from argosy_engine.errors import LeaseGoneError
from argosy_engine.transfer import fetch, sending
from argosy_engine.transfer.wire import HEADER_BYTES, Kind, decode_header
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import ADMITTED, liar, puller
from tests.support.fault_proxy import Fault, fault_proxy

LONG = list(range(100, 100 + 40 * BLOCK + 5))
"""Computed in two chunks by an engine of 512 tokens a step."""
TALK, KV = 0, 1
COUNT = itertools.count()


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


@pytest.fixture
def decode():
    with node("decode") as started:
        yield started


def fingerprint(engine) -> str:
    return engine.runner.kv_layout().fingerprint


async def text(decode, prompt, *candidates, tokens=8):
    """What a client reads."""
    client = decode.ask(prompt, *candidates, max_tokens=tokens, name=f"r{next(COUNT)}")
    await until(lambda: client.end is not None, within_s=30)
    assert client.end == "length"
    return client.ids


@pytest.fixture(scope="module")
def true_text():
    """The text of a prompt as one engine alone computes it."""
    with node("colocated") as alone:

        async def of(prompt, tokens=8):
            return await text(alone, prompt, tokens=tokens)

        yield of


def ends(decode) -> list[str]:
    """ "done", or the cause of the failure, of all pulls so far."""
    return [
        "done" if isinstance(event, PullDone) else event.cause
        for event in decode.events
        if isinstance(event, PullDone | PullFailed)
    ]


# ------------------------------------------------------------------ blocks of both ends


async def test_t23_blocks_stay_referenced_until_release_and_are_found_again_afterwards(prefill):
    async with puller(prefill.address) as peer:
        await peer.prefill(LONG, fingerprint(prefill))
        held = prefill.scheduler.pool
        assert (held.used, prefill.loop.leases.active) == (41, 1)
        assert (await peer.pull())[0] is Kind.DONE
        assert held.used == 41
        await peer.tell(Kind.RELEASE)
        await until(lambda: not held.used)
    assert held.cached == 40
    assert prefill.text_of(LONG) == LONG[: 40 * BLOCK]


@pytest.mark.parametrize("tokens", [1, BLOCK + 1])
async def test_t24_a_block_that_is_not_full_is_handed_over(prefill, decode, true_text, tokens):
    prompt = LONG[:tokens]
    assert await text(decode, prompt, prefill.address) == await true_text(prompt)
    assert ends(decode) == ["done"]


async def test_t26_pulled_and_local_requests_run_beside_each_other(prefill, decode, true_text):
    prompts = [[100 + i] * (5 + 29 * i) for i in range(6)]
    texts = await asyncio.gather(
        *(text(decode, p, *[prefill.address] * (i % 2)) for i, p in enumerate(prompts))
    )
    assert texts == [await true_text(prompt) for prompt in prompts]
    assert ends(decode) == ["done"] * 3


async def test_t27_blocks_that_have_not_come_are_not_found(prefill, decode):
    stuck = Fault(swallow_after=1000)
    async with fault_proxy(prefill.address, back=stuck, only=KV) as network:
        client = decode.ask(LONG, network.address)
        await until(lambda: client.ids)  # READY; some of the KV is here, the rest is not
        assert decode.text_of(LONG) == []
        assert decode.scheduler.pool.cached == 0
        decode.loop.abort("r")
        await until(lambda: not decode.scheduler.sequences)
    assert decode.text_of(LONG) == []


async def test_t28_of_a_prompt_of_full_blocks_decode_computes_no_token(prefill, decode, true_text):
    prompt, computed = LONG[: 4 * BLOCK], []
    execute = decode.runner.execute

    def noting(plan):  # at once: a chunk is used again in the next step
        computed.extend((chunk.start, chunk.count) for chunk in plan.chunks)
        return execute(plan)

    decode.runner.execute = noting
    assert await text(decode, prompt, prefill.address, tokens=3) == await true_text(prompt, 3)
    assert computed == [(64, 1), (65, 1)]


async def test_blocks_come_while_later_chunks_are_computed_and_only_the_last_ones_after_ready(
    prefill, decode, true_text
):
    expected = await true_text(LONG)
    second, go_on = asyncio.Event(), threading.Event()
    aio, execute = asyncio.get_running_loop(), prefill.runner.execute

    def in_two_chunks(plan):
        if plan.chunks[0].start:
            aio.call_soon_threadsafe(second.set)
            go_on.wait(10)
        return execute(plan)

    prefill.runner.execute = in_two_chunks
    async with fault_proxy(prefill.address) as network:
        client = decode.ask(LONG, network.address, max_tokens=8)
        await second.wait()
        await until(lambda: network.connections == 2 and network.passed_back(KV))
        await until(lambda: frames_of(network.passed_back(KV))[1:])  # DONE of the first chunk
        assert client.ids == []
        go_on.set()
        await until(lambda: client.end is not None)
        sent = network.passed_back(KV)
    assert client.ids == expected
    kinds = [decode_header(sent[at : at + HEADER_BYTES]).kind for at in frames_of(sent)]
    assert kinds == [Kind.KV, Kind.DONE, Kind.KV, Kind.DONE]
    assert decode.events[-1].bytes_moved == 41 * 4 * BLOCK


# ------------------------------------------------------------------ clients that leave


@pytest.mark.parametrize("moment", ["queued", "computing", "streaming", "decoding"])
async def test_t31_a_client_that_leaves_at_any_time_empties_both_pools(prefill, decode, moment):
    computing, go_on = prefill.hold_steps()
    if moment not in ("queued", "computing"):
        go_on.set()
    stuck = Fault(swallow_after=900) if moment == "streaming" else Fault()
    async with fault_proxy(prefill.address, back=stuck, only=KV) as network:
        client = decode.ask(LONG, network.address, max_tokens=500)
        if moment == "computing":
            await until(computing.is_set)
        elif moment == "streaming":
            await until(lambda: client.ids)
        elif moment == "decoding":
            await until(lambda: len(client.ids) > 3)
        decode.loop.abort("r")
        await until(lambda: not decode.scheduler.sequences)
        go_on.set()
        await until(lambda: not prefill.loop.leases.active and not prefill.scheduler.sequences)
    assert (decode.scheduler.pool.used, prefill.scheduler.pool.used) == (0, 0)


# ------------------------------------------------------------------ leases


async def test_t32_a_lease_does_not_end_under_a_send_and_is_refused_by_name_afterwards(prefill):
    async with puller(prefill.address) as peer:
        await peer.prefill(LONG, fingerprint(prefill), lease_s=0.2)
        key = prefill.loop.find_lease(peer.ticket)
        assert len(prefill.loop.begin_send(key)) == 41
        await asyncio.sleep(0.4)  # the lease's own time, twice
        assert (prefill.loop.leases.active, prefill.scheduler.pool.used) == (1, 41)
        prefill.loop.end_send(key)
        await until(lambda: not prefill.scheduler.pool.used)
        assert prefill.loop.leases.expired == 1
        with pytest.raises(LeaseGoneError, match="it ended"):
            prefill.loop.begin_send(key)
        kind, said = await peer.pull()
        assert (kind, said["reason"]) == (Kind.REFUSED, "lease_gone")


async def test_t34_a_decode_engine_that_dies_frees_the_blocks_that_it_was_sent(prefill):
    """Its kernel closes the connections; then the send, and with it the lease, ends."""
    async with puller(prefill.address) as peer:
        await peer.prefill(LONG, fingerprint(prefill))
        reader, writer = await peer.open_data()
        await peer.ask_for(writer, 0, 41)
        await reader.readexactly(1000)
        writer.transport.abort()
        peer.writer.transport.abort()
        await until(lambda: not prefill.scheduler.pool.used)
    assert prefill.loop.leases.expired == 0


async def test_t34_a_decode_engine_that_falls_silent_frees_them_when_the_lease_is_over(prefill):
    """The network is cut, so nothing tells prefill."""
    async with fault_proxy(prefill.address) as network, puller(network.address) as peer:
        await peer.prefill(LONG, fingerprint(prefill), lease_s=0.2)
        await until(lambda: not prefill.scheduler.pool.used)
    assert prefill.loop.leases.expired == 1


async def test_t36_a_ticket_of_an_engine_that_has_started_anew_is_refused_by_name(prefill):
    async with puller(prefill.address) as before:
        await before.prefill(LONG, fingerprint(prefill))
        with node("prefill") as anew:
            async with puller(anew.address) as after:
                await after.prefill(LONG, fingerprint(anew))  # the same ids
                after.ticket, ticket = before.ticket, after.ticket
                assert before.epoch != after.epoch
                for shown in ({"engine_epoch": before.epoch}, {}):
                    kind, said = await after.pull(**shown)
                    assert (kind, said["reason"]) == (Kind.REFUSED, "lease_gone")
                    assert ("started since" in said["message"]) is bool(shown)
                after.ticket = ticket
                assert (await after.pull())[0] is Kind.DONE


async def test_t37_engines_whose_kv_does_not_fit_say_why(prefill):
    async with puller(prefill.address) as peer:
        kind, payload = await peer.prefill(LONG, fingerprint="another model")
        assert (kind, payload["reason"]) == (Kind.REFUSED, "fingerprint")
        assert fingerprint(prefill) in payload["message"]
        assert "another model" in payload["message"]


async def test_t37_engines_that_split_their_kv_heads_hand_over_if_one_number_divides_the_other():
    with node("prefill", tensor_parallel_size=2) as prefill:
        for size, reason in ((1, None), (2, None), (4, None), (3, "fingerprint")):
            with node("decode", tensor_parallel_size=size) as decode:
                client = decode.ask(LONG, prefill.address)
                await until(lambda client=client: client.end is not None)
                refused = [failed.reason for failed in client.failed_prefills]
                assert refused == ([reason] if reason else [])


# ------------------------------------------------------------------ prefill dies


def frames_of(data: bytes) -> list[int]:
    """Where each frame begins."""
    starts, at = [], 0
    while at + HEADER_BYTES <= len(data):
        starts.append(at)
        at += HEADER_BYTES + decode_header(data[at : at + HEADER_BYTES]).length
    return starts


async def test_t33_prefill_may_die_before_and_within_any_frame_and_the_text_stays(
    monkeypatch, prefill, decode, true_text
):
    # A machine that is busy for seconds is no prefill pod that is slow.
    monkeypatch.setattr("argosy_engine.core.handover.patience.GRACE_S", 20.0)
    for patience in ("_ACCEPT_S", "_SILENCE_S", "CONNECT_S"):
        monkeypatch.setattr(f"argosy_engine.transfer.puller.{patience}", 20.0)
    expected = await true_text(LONG)
    async with fault_proxy(prefill.address) as network:
        assert await text(decode, LONG, network.address) == expected
        starts = {index: frames_of(network.passed_back(index)) for index in (TALK, KV)}
    assert len(starts[TALK]) >= 3
    assert len(starts[KV]) >= 2
    for connection, places in starts.items():
        for cut_after in sorted({*places, *(place + 5 for place in places)}):
            with node("prefill") as victim, node("decode") as asking_one:
                cut = Fault(cut_after=cut_after)
                async with fault_proxy(victim.address, back=cut, only=connection) as network:
                    assert await text(asking_one, LONG, network.address) == expected
                assert ends(asking_one)[0] in ("broken", "done"), (connection, cut_after)


@pytest.mark.parametrize("answer", ["refuses", "fails", "is gone", "is silent", "lies", "is stuck"])
async def test_t38_whatever_the_first_candidate_does_the_next_one_hands_the_prompt_over(
    monkeypatch, prefill, decode, true_text, answer
):
    monkeypatch.setattr("argosy_engine.transfer.puller._SILENCE_S", 0.3)
    said = {
        "refuses": ((Kind.REFUSED, {"reason": "queue_full", "message": ""}),),
        "fails": (ADMITTED, (Kind.REFUSED, {"reason": "failed", "message": "a bug"})),
        "is gone": (b"",),
        "is silent": (),
        "lies": (ADMITTED, (Kind.READY, {})),
        "is stuck": (ADMITTED, (Kind.WAIT, {"step": 1, "n_ready": 0})),
    }[answer]
    async with liar(*said) as first:
        if answer == "is silent":
            monkeypatch.setattr("argosy_engine.transfer.puller._ACCEPT_S", 0.3)
        client = decode.ask(LONG, first.address, prefill.address, max_tokens=8)
        await until(lambda: client.end is not None, within_s=30)
    assert client.ids == await true_text(LONG)
    assert client.prefill_pod == "prefill-pod"
    (failed,) = client.failed_prefills
    assert failed.address == first.address
    expected = {"refuses": "queue_full", "fails": "failed", "is gone": "broken", "lies": "corrupt"}
    assert failed.reason == expected.get(answer, "timeout")


# ------------------------------------------------------------------ bad networks


@pytest.mark.parametrize("flip_at", [24, 1234, 16 + 8 + 41 * 4 * BLOCK])
async def test_t39_damage_is_never_found_in_the_prefix_cache(prefill, decode, true_text, flip_at):
    expected = await true_text(LONG)
    async with fault_proxy(prefill.address, back=Fault(flip_at=flip_at), only=KV) as network:
        assert await text(decode, LONG, network.address) == expected
    assert ends(decode) == ["corrupt"]
    assert decode.text_of(LONG) == LONG[: 40 * BLOCK]
    assert await text(decode, LONG) == expected


@pytest.mark.parametrize("direction", ["back", "forth"])
@pytest.mark.parametrize("connection", [TALK, KV])
async def test_a_network_that_is_cut_one_way_costs_a_bounded_time_and_no_text(
    monkeypatch, true_text, direction, connection
):
    monkeypatch.setattr("argosy_engine.transfer.puller._SILENCE_S", 0.5)
    monkeypatch.setattr("argosy_engine.transfer.puller._ACCEPT_S", 0.5)
    for module in (fetch, sending):
        monkeypatch.setattr(module, "transfer_s", lambda size, rate: 0.5)
    cut = {direction: Fault(swallow_after=40)}
    with node("prefill", lease_s=0.5) as prefill, node("decode", lease_s=0.5) as decode:
        async with fault_proxy(prefill.address, only=connection, **cut) as network:
            assert await text(decode, LONG, network.address) == await true_text(LONG)
            assert ends(decode) == ["timeout"]
            await until(lambda: not prefill.loop.leases.active, within_s=20)


# ------------------------------------------------------------------ the decode engine's batch


async def test_t35_events_of_an_earlier_attempt_change_nothing(prefill, decode, true_text):
    computing, go_on = prefill.hold_steps()
    client = decode.ask(LONG, prefill.address, max_tokens=8)
    await until(computing.is_set)
    late = {"request_id": "r", "attempt": 0}
    decode.loop.post(PullFailed(**late, cause="broken", message=""))
    decode.loop.post(PullDone(**late, bytes_moved=1, seconds=0.0, exposed_s=0.0))
    await until(lambda: not decode.loop._inbox.qsize())
    assert decode.scheduler.sequences["r"].state is State.PULLING
    go_on.set()
    await until(lambda: client.end is not None)
    assert client.ids == await true_text(LONG)


async def test_t40_a_pulled_request_that_is_preempted_goes_on_with_the_same_text(
    prefill, true_text
):
    prompts = [[100 + i] * (3 * BLOCK) for i in range(2)]
    with node("decode", kv_cache_tokens=8 * BLOCK, evicts=True) as decode:
        texts = await asyncio.gather(
            *(text(decode, prompt, prefill.address, tokens=40) for prompt in prompts)
        )
        assert decode.metric("argosy_preemptions_total", mode="recompute") > 0
    assert texts == [await true_text(prompt, 40) for prompt in prompts]
