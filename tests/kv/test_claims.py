"""Prompts that were computed for a router, claimed by a decode engine or by a peer that lies."""

import asyncio
import json
import threading

import pytest

from argosy_engine.core.handover.fit import prompt_digest
from argosy_engine.core.handover.messages import LeaseReady, Offer, PullFailed, RemotePrefill
from argosy_engine.core.request import Claim
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer.wire import Kind, encode_control
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import OPEN, TICKET, claim, frame, puller

PROMPT = list(range(100, 100 + 3 * BLOCK + 5))


def offered(prefill, prompt=PROMPT, lease_s=30.0) -> Claim:
    """What a prefill engine does for `do_remote_decode`."""
    computed, events = threading.Event(), []

    def on_event(event) -> None:
        if isinstance(event, LeaseReady):
            events.append(event)
            computed.set()

    job = RemotePrefill(
        request_id="router",
        attempt=1,
        token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        lease_s=lease_s,
    )
    ticket = prefill.loop.submit_remote_prefill(job, on_event)
    assert computed.wait(20)
    prefill.loop.offer(Offer(ready=events[0], prompt=prompt_digest(prompt)))
    return Claim(ticket, prefill.loop.engine_epoch)


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


@pytest.fixture
def decode():
    with node("decode") as started:
        yield started


def why(decode) -> str:
    """What the log says of the last pull that failed."""
    return [event.message for event in decode.events if isinstance(event, PullFailed)][-1]


async def answered(client) -> list[int]:
    await until(lambda: client.end is not None, 20)
    assert client.end == "length", client.message
    return client.ids


async def test_decode_goes_on_with_the_kv_that_it_claimed(prefill, decode):
    took = offered(prefill)
    claimed = decode.ask(PROMPT, prefill.address, claim=took)
    ids = await answered(claimed)
    assert claimed.prefill_pod == "prefill-pod"
    assert claimed.failed_prefills == ()
    assert decode.text_of(PROMPT) == PROMPT[: 3 * BLOCK]
    with node("decode") as other:
        assert ids == await answered(other.ask(PROMPT))
    await until(lambda: not prefill.loop.leases.active)


async def test_a_claim_teaches_decode_nothing_about_how_long_prompts_take(prefill, decode):
    """Its prompt was computed before it asked: a real one would be given up too early."""
    pace = decode.kv._puller._shared.pace
    unknown = pace.patience_s(len(PROMPT))
    await answered(decode.ask(PROMPT, prefill.address, claim=offered(prefill)))
    assert pace.patience_s(len(PROMPT)) == unknown
    await answered(decode.ask([7, *PROMPT], prefill.address, name="s"))
    assert pace.patience_s(len(PROMPT)) != unknown


@pytest.mark.parametrize(
    "other", [[*PROMPT[:-1], 5], PROMPT[:-1], [5, *PROMPT[1:]]], ids=["end", "length", "start"]
)
async def test_kv_of_another_prompt_is_not_used(prefill, decode, other):
    """A router that mixes two requests up would fill the prefix cache with the wrong text."""
    took = offered(prefill)
    mixed = decode.ask(other, prefill.address, claim=took)
    ids = await answered(mixed)
    assert [reason for _, reason in mixed.failed_prefills] == ["other_prompt"]
    assert "the ticket is for another prompt: send the same body" in why(decode)
    with node("decode") as alone:
        assert ids == await answered(alone.ask(other))
    await until(lambda: not prefill.loop.leases.active)


async def test_an_engine_that_started_since_has_nothing(prefill, decode):
    took = offered(prefill)
    older = decode.ask(PROMPT, prefill.address, claim=Claim(took.ticket, "older"))
    await answered(older)
    assert [reason for _, reason in older.failed_prefills] == ["lease_gone"]
    assert "this engine started since: the prompt is not here any more" in why(decode)
    assert prefill.loop.leases.active == 1
    assert (await answered(decode.ask(PROMPT, prefill.address, claim=took, name="s"))) == older.ids
    await until(lambda: not prefill.loop.leases.active)


async def test_an_offer_that_nobody_claims_ends_by_time(prefill, decode):
    took = offered(prefill, lease_s=0.05)
    await until(lambda: not prefill.loop.leases.active and not prefill.scheduler.pool.used)
    late = decode.ask(PROMPT, prefill.address, claim=took)
    await answered(late)
    assert [reason for _, reason in late.failed_prefills] == ["lease_gone"]


async def test_the_lease_of_a_claim_ends_with_its_connection(prefill):
    took = offered(prefill)
    layout = prefill.runner.kv_layout().fingerprint
    async with puller(prefill.address) as peer:
        peer.writer.write(OPEN + encode_control(Kind.CLAIM, claim(PROMPT, layout, *took)))
        kind, said = await peer.answer()
        assert (kind, said["request_id"], said["n_tokens"]) == (Kind.READY, "r", len(PROMPT))
        assert said["engine_epoch"] == took.engine_epoch
        assert prefill.loop.leases.active == 1
    await until(lambda: not prefill.loop.leases.active)


async def test_the_lease_of_a_claim_lives_on_while_it_is_renewed_and_ends_with_release(prefill):
    with node("prefill", lease_s=0.4) as short:
        took = offered(short, lease_s=30.0)
        layout = short.runner.kv_layout().fingerprint
        async with puller(short.address) as peer:
            peer.writer.write(OPEN + encode_control(Kind.CLAIM, claim(PROMPT, layout, *took)))
            await peer.answer()
            for _ in range(6):
                await asyncio.sleep(0.1)
                await peer.tell(Kind.RENEW)
            assert short.loop.leases.active == 1
            await peer.tell(Kind.RELEASE)
            await until(lambda: not short.loop.leases.active)
            assert await peer.reader.read() == b""
        assert short.loop.leases.expired == 0


@pytest.mark.parametrize(
    ("said", "reason", "kept"),
    [
        ({"ticket": TICKET}, "lease_gone", 1),
        ({"engine_epoch": "older"}, "lease_gone", 1),
        ({"ticket": "short"}, "protocol", 1),
        ({"prompt": "x"}, "protocol", 1),
        ({"n_tokens": 0}, "protocol", 1),
        ({"surprise": 1}, "protocol", 1),
        ({"fingerprint": "another"}, "fingerprint", 0),
        ({"prompt": "0" * 32}, "other_prompt", 0),
        ({"n_tokens": len(PROMPT) + 1}, "other_prompt", 0),
    ],
)
async def test_a_wrong_claim_is_refused_and_one_with_the_ticket_ends_the_lease(
    prefill, said, reason, kept
):
    took = offered(prefill)
    right = claim(PROMPT, prefill.runner.kv_layout().fingerprint, *took)
    async with puller(prefill.address) as peer:
        peer.writer.write(OPEN + frame(Kind.CLAIM, json.dumps({**right, **said}).encode()))
        kind, answer = await asyncio.wait_for(peer.answer(), 10)
        assert (kind, answer["reason"]) == (Kind.REFUSED, reason)
        await until(lambda: prefill.loop.leases.active == kept)
    prefill.loop.abort_remote_prefill("router", 1)


async def test_a_claim_without_the_fleets_proof_is_refused():
    with node("prefill", authorize=lambda _: "who are you") as guarded:
        took = offered(guarded)
        with node("decode") as stranger:
            asked = stranger.ask(PROMPT, guarded.address, claim=took)
            await answered(asked)
            assert [reason for _, reason in asked.failed_prefills] == ["unauthorized"]
        assert guarded.loop.leases.active == 1
        guarded.loop.abort_remote_prefill("router", 1)
