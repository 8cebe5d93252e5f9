"""What becomes of clients, blocks and leases when a handover goes wrong, over real sockets."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
from functools import partial

import pytest

from argosy import logs
from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.transfer import prefill_server, sending
from argosy_engine.transfer.wire import Kind
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import puller
from tests.support.fault_proxy import Fault, fault_proxy

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))
SHORT = PROMPT[: 2 * BLOCK]  # computed in one step
TALK, KV = 0, 1  # a pull's first connection has the conversation, its second the KV


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


@pytest.fixture
def decode():
    with node("decode") as started:
        yield started


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return f"127.0.0.1:{unused.getsockname()[1]}"


def failure(decode) -> PullFailed:
    return next(event for event in decode.events if isinstance(event, PullFailed))


async def served_all(client, decode, *others) -> None:
    """The client has three tokens, and no engine holds anything for it any more."""
    await until(lambda: client.end is not None)
    assert (len(client.ids), client.end) == (3, "length")
    for engine in (decode, *others):
        await until(lambda engine=engine: not engine.scheduler.pool.used)
        await until(lambda engine=engine: not engine.loop.leases.active)


async def test_a_prompts_kv_arrives_byte_for_byte_and_both_sides_count_it(prefill, decode):
    client = decode.ask(PROMPT, prefill.address)
    await served_all(client, decode, prefill)
    assert client.prefill_pod == "prefill-pod"
    assert decode.text_of(PROMPT) == PROMPT[: 40 * BLOCK]
    for side, engine in (("send", prefill), ("receive", decode)):
        count = partial(engine.metric, "argosy_kv_transfer_seconds_count", side=side)
        await until(lambda count=count: count() == 1)
        assert engine.metric("argosy_kv_transfer_bytes_total", side=side) == 41 * 4 * BLOCK


async def test_a_handed_over_grammar_is_compiled_before_its_prompt_is_queued_and_kept_until_its_end(
    prefill, decode
):
    """As it was: the step that drew the first token compiled it, and all streams waited."""
    seen = []

    class Grammars:
        def prepare(self, grammar):
            seen.append((grammar, len(prefill.scheduler.sequences)))

        @contextlib.contextmanager
        def held(self, grammar):
            yield
            seen.append("released")

    prefill.runner.grammars = Grammars()
    execute = prefill.runner.execute
    prefill.runner.execute = lambda plan: seen.append("step") or execute(plan)
    client = decode.ask(SHORT, prefill.address, grammar="start: /a/")
    await served_all(client, decode, prefill)
    await until(lambda: len(seen) == 3)
    assert seen == [("start: /a/", 0), "step", "released"]


@pytest.mark.slow
async def test_a_prompt_whose_ids_take_more_than_a_mebibyte_of_json_is_handed_over():
    prompt = [30_000 + i % 2000 for i in range(200_000)]
    assert len(json.dumps(prompt, separators=(",", ":"))) > 1 << 20
    room = {"kv_cache_tokens": 201_000, "max_model_len": 200_100}
    room["max_num_batched_tokens"] = 50_000
    room["kv_min_bytes_per_s"] = 20_000.0  # both ends are one process, and the machine may be busy
    with node("prefill", **room) as prefill, node("decode", **room) as decode:
        client = decode.ask(prompt, prefill.address)
        await until(lambda: client.end is not None, within_s=60)
        assert (len(client.ids), client.end) == (3, "length")
        assert isinstance(decode.events[-1], PullDone)
        assert decode.text_of(prompt) == prompt


async def test_kv_travels_over_ipv6_with_the_address_as_the_gateway_writes_it(decode):
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with node("prefill", host="::1") as prefill:
        client = decode.ask(PROMPT, prefill.address)
        await served_all(client, decode, prefill)
    assert isinstance(decode.events[-1], PullDone)


async def test_the_next_candidate_computes_what_a_draining_one_refuses(prefill, decode):
    with node("prefill") as draining:
        draining.loop.draining = True
        client = decode.ask(PROMPT, draining.address, prefill.address)
        await served_all(client, decode, prefill, draining)
    assert isinstance(decode.events[-1], PullDone)


async def test_signs_of_life_come_while_a_prompt_is_computed(monkeypatch, prefill):
    monkeypatch.setattr(prefill_server, "_WAIT_EVERY_S", 0.01)
    computing, go_on = prefill.hold_steps()
    async with puller(prefill.address) as peer:
        asked = asyncio.create_task(peer.prefill(SHORT, prefill.runner.kv_layout().fingerprint))
        await until(computing.is_set)
        await until(lambda: len(peer.waits) >= 3)
        go_on.set()
        assert (await asked)[0] is Kind.READY


async def test_prefills_lines_about_a_handover_name_the_clients_request_and_attempt(
    prefill, decode
):
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(json.loads(logs._Json().format(record)))

    log, keep = logging.getLogger("argosy_engine.transfer.prefill_server"), Keep()
    log.addHandler(keep)
    log.setLevel(logging.DEBUG)
    try:
        client = decode.ask(PROMPT, prefill.address, name="chat-1.0123abcd")
        await served_all(client, decode, prefill)
    finally:
        log.removeHandler(keep)
        log.setLevel(logging.NOTSET)
    assert lines[-1]["message"] == "handed over"
    assert {(line.get("request_id"), line.get("attempt")) for line in lines} == {("chat-1", 1)}


async def test_a_prompt_that_every_candidate_refuses_is_computed_by_decode(prefill, decode):
    prefill.loop.draining = True
    client = decode.ask(PROMPT, prefill.address)
    await served_all(client, decode, prefill)
    assert failure(decode).cause == "refused"
    assert "this engine is draining" in failure(decode).message
    assert decode.metric("argosy_kv_transfer_failures_total", cause="refused") == 1


async def test_unreachable_candidates_are_skipped(prefill, decode):
    client = decode.ask(PROMPT, nobody(), prefill.address)
    await served_all(client, decode, prefill)
    assert isinstance(decode.events[-1], PullDone)


async def test_decode_computes_the_prompt_when_nobody_is_reachable(decode):
    client = decode.ask(PROMPT, nobody(), nobody())
    await served_all(client, decode)
    assert failure(decode).cause == "connect"
    assert decode.metric("argosy_local_prefill_fallback_total") == 1


@pytest.mark.parametrize(
    ("connection", "cut_after"),
    [(TALK, 0), (TALK, 10), (TALK, 100), (KV, 0), (KV, 10), (KV, 1500), (KV, 2640)],
)
async def test_a_prefill_engine_that_dies_on_the_way_costs_no_token(
    prefill, decode, connection, cut_after
):
    cut = Fault(cut_after=cut_after)
    async with fault_proxy(prefill.address, back=cut, only=connection) as network:
        client = decode.ask(PROMPT, network.address)
        await served_all(client, decode, prefill)
    assert failure(decode).cause == "broken"


@pytest.mark.parametrize("flip_at", [0, 19, 23, 24, 1500, 16 + 8 + 41 * 4 * BLOCK])
async def test_damaged_kv_is_thrown_away_and_never_found_again(prefill, decode, flip_at):
    flip = Fault(flip_at=flip_at)
    async with fault_proxy(prefill.address, back=flip, only=KV) as network:
        client = decode.ask(PROMPT, network.address)
        await served_all(client, decode, prefill)
    assert failure(decode).cause in ("corrupt", "refused")  # a damaged version is another release
    assert decode.text_of(PROMPT) == PROMPT[: 40 * BLOCK]


async def test_engines_of_different_layouts_refuse_each_other_with_both_texts(decode):
    with node("prefill", preset="other") as other:
        client = decode.ask(PROMPT, other.address)
        await served_all(client, decode, other)
        assert failure(decode).cause == "fingerprint"
        for engine in (decode, other):
            assert engine.runner.kv_layout().fingerprint in failure(decode).message


async def test_an_expired_lease_is_refused_by_name_and_its_blocks_are_free(prefill):
    fingerprint = prefill.runner.kv_layout().fingerprint
    async with puller(prefill.address) as peer:
        kind, _ = await peer.prefill(PROMPT, fingerprint, lease_s=0.05)
        assert kind is Kind.READY
        await until(lambda: prefill.loop.leases.expired == 1)
        kind, payload = await peer.pull()
        assert (kind, payload["reason"]) == (Kind.REFUSED, "lease_gone")
        assert "ended" in payload["message"]
        assert prefill.scheduler.pool.used == 0


def expiry_s(leases):
    (lease,) = leases._table._leases.values()
    return lease.expires_s


async def test_a_renewed_lease_outlives_its_first_term(prefill):
    now = 0.0
    leases = prefill.loop.leases
    leases._clock = lambda: now
    async with puller(prefill.address) as peer:
        await peer.prefill(PROMPT, prefill.runner.kv_layout().fingerprint, lease_s=30.0)
        for now in (20.0, 40.0, 60.0):
            await peer.tell(Kind.RENEW)
            await until(lambda now=now: expiry_s(leases) == now + 30.0)
        assert (await peer.pull())[0] is Kind.DONE
    assert leases.expired == 0


async def test_a_peer_that_vanishes_frees_its_lease(prefill):
    fingerprint = prefill.runner.kv_layout().fingerprint
    async with puller(prefill.address) as peer:
        assert (await peer.prefill(PROMPT, fingerprint))[0] is Kind.READY
        assert prefill.loop.leases.active == 1
        peer.writer.transport.abort()
        await until(lambda: not prefill.loop.leases.active)
    await until(lambda: not prefill.scheduler.pool.used)


async def test_a_client_that_leaves_during_a_pull_frees_both_engines(prefill, decode):
    slow = Fault(swallow_after=1000)
    async with fault_proxy(prefill.address, back=slow, only=KV) as network:
        client = decode.ask(PROMPT, network.address, max_tokens=1000)
        await until(lambda: client.ids)  # READY: the rest is on its way, and stuck
        decode.loop.abort("r")
        await until(lambda: not decode.scheduler.sequences)
        await until(lambda: not prefill.scheduler.pool.used)
    assert decode.scheduler.pool.used == 0


async def test_a_draining_prefill_engine_takes_no_prompt_but_serves_its_leases(prefill):
    fingerprint = prefill.runner.kv_layout().fingerprint
    async with puller(prefill.address) as holder, puller(prefill.address) as late:
        assert (await holder.prefill(PROMPT, fingerprint))[0] is Kind.READY
        prefill.loop.draining = True
        kind, payload = await late.prefill(PROMPT, fingerprint, request_id="late")
        assert (kind, payload["reason"]) == (Kind.REFUSED, "draining")
        assert (await holder.pull())[0] is Kind.DONE
        await holder.tell(Kind.RELEASE)
        await until(lambda: not prefill.loop.leases.active)


async def test_a_peers_token_that_the_model_does_not_know_is_refused_and_harms_nobody(prefill):
    fingerprint = prefill.runner.kv_layout().fingerprint
    for unknown in (prefill.runner.vocab_size, (1 << 32) - 1):
        async with puller(prefill.address) as peer:
            asked = {"fingerprint": fingerprint, "request_id": str(unknown)}
            kind, payload = await peer.prefill([*PROMPT, unknown], **asked)
            assert (kind, payload["reason"]) == (Kind.REFUSED, "invalid")
    async with puller(prefill.address) as peer:
        assert (await peer.prefill(PROMPT, fingerprint))[0] is Kind.READY


async def test_a_peer_that_vanishes_while_its_prompt_is_computed_leaves_no_lease(prefill):
    computing, go_on = prefill.hold_steps()
    async with puller(prefill.address) as peer:
        asked = asyncio.create_task(peer.prefill(SHORT, prefill.runner.kv_layout().fingerprint))
        await until(computing.is_set)
        asked.cancel()
        peer.writer.transport.abort()
        await until(lambda: prefill.loop.unfinished == 2)  # the prompt, and the news in the inbox
    go_on.set()
    await until(lambda: not prefill.scheduler.pool.used)
    assert (prefill.loop.leases.active, prefill.loop.leases.expired) == (0, 0)


@pytest.mark.slow
async def test_a_peer_that_stops_reading_its_kv_is_cut_off_and_holds_nothing(monkeypatch):
    monkeypatch.setattr(sending, "transfer_s", lambda size, rate: 0.3)
    stuck = 48 << 20  # more than the kernel takes for two ends of a connection
    with node("prefill") as prefill:
        prefill.runner.outgoing = lambda _: [memoryview(bytes(stuck))]
        async with puller(prefill.address) as peer:
            await peer.prefill(PROMPT, prefill.runner.kv_layout().fingerprint)
            reader, writer = await peer.open_data()
            await peer.ask_for(writer, 0, peer.n_blocks)
            await until(lambda: kv_threads("kv-send"))
            received = 0
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(30):
                    while data := await reader.read(1 << 20):
                        await asyncio.sleep(0.05)  # slower than the minimum rate
                        received += len(data)
            assert received < stuck
            await peer.tell(Kind.RELEASE)
        await until(lambda: not prefill.scheduler.pool.used)


def kv_threads(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]
