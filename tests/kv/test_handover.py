"""What becomes of clients, blocks and leases when a handover goes wrong, over real sockets."""

import asyncio
import contextlib
import socket
import threading
from functools import partial

import pytest

from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.core.runner import InPlace
from argosy_engine.transfer import prefill_server, sending
from argosy_engine.transfer.wire import Kind
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import puller

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


async def test_kv_travels_over_ipv6_with_the_address_as_the_gateway_writes_it(decode):
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with node("prefill", host="::1") as prefill:
        client = decode.ask(PROMPT, prefill.address)
        await served_all(client, decode, prefill)
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


async def test_decode_computes_the_prompt_when_nobody_is_reachable(decode):
    client = decode.ask(PROMPT, nobody(), nobody())
    await served_all(client, decode)
    assert failure(decode).cause == "connect"
    assert decode.metric("argosy_local_prefill_fallback_total") == 1


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
        prefill.runner.outgoing = lambda _: InPlace([memoryview(bytes(stuck))])
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


async def test_a_prefill_engine_computes_the_prompt_with_the_lower_number_first():
    def prompt(number):
        return [1000 * number + i for i in range(8 * BLOCK)]

    room = {"max_num_batched_tokens": 8 * BLOCK}
    with node("prefill", **room) as prefill, node("decode", **room) as decode:
        computed = []
        execute = prefill.runner.execute

        def watched(plan):
            computed.extend(chunk.tokens[0] // 1000 for chunk in plan.chunks)
            return execute(plan)

        prefill.runner.execute = watched
        computing, go_on = prefill.hold_steps()
        clients = [decode.ask(prompt(1), prefill.address, name="first")]
        await until(computing.is_set)
        for number, priority in ((2, 0), (3, 7), (4, -7)):
            clients.append(
                decode.ask(prompt(number), prefill.address, name=f"{number}", priority=priority)
            )
        await until(lambda: prefill.loop.unfinished == 4)
        go_on.set()
        await until(lambda: all(client.end == "length" for client in clients))
    assert computed == [1, 4, 2, 3]
