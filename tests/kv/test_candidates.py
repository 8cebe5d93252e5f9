"""Prefill engines that are silent, gone or unwilling: what they cost this request and the next."""

import contextlib
import socket
import time

import pytest

from argosy_engine.core.handover import patience
from argosy_engine.core.handover.messages import PullFailed
from argosy_engine.transfer.wire import Kind
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import ADMITTED, liar

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


@pytest.fixture
def decode():
    with node("decode") as started:
        yield started


@pytest.fixture
def impatient(monkeypatch):
    """Silence is noticed at once."""
    monkeypatch.setattr("argosy_engine.transfer.puller._ACCEPT_S", 0.2)


@pytest.fixture(autouse=True)
def long_memory(monkeypatch):
    """However slow this machine is, the next request comes within the back-off."""
    for name in ("_FIRST_S", "_REFUSED_S"):
        monkeypatch.setattr(patience, name, 60.0)


@contextlib.contextmanager
def stopped_engine():
    """The kernel takes connections, the process does not: (address, connections so far)."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        server.setblocking(False)
        taken = []

        def asked() -> int:
            with contextlib.suppress(BlockingIOError):
                while True:
                    taken.append(server.accept()[0])
            return len(taken)

        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        for sock in taken:
            sock.close()


def failures(engine) -> list[str]:
    return [event.cause for event in engine.events if isinstance(event, PullFailed)]


async def answered(asked) -> None:
    await until(lambda: asked.end is not None, within_s=30)
    assert (len(asked.ids), asked.end) == (3, "length")


async def test_a_candidate_that_stops_after_it_took_the_prompt_is_noticed_by_its_silence(
    monkeypatch, decode
):
    monkeypatch.setattr("argosy_engine.transfer.puller._SILENCE_S", 0.2)
    async with liar(ADMITTED) as silent, liar(ADMITTED) as second:
        decode.ask(PROMPT, silent.address, second.address)
        await until(lambda: second.asked, within_s=25)


@pytest.mark.slow
async def test_a_candidate_that_computes_a_long_prompt_may_take_more_than_its_share(monkeypatch):
    """And its engine is not left alone for it: the prompt is long, the engine is well."""
    monkeypatch.setattr("argosy_engine.transfer.puller._SILENCE_S", 20.0)
    share_s = 3.0
    with node("prefill") as busy, node("decode", kv_timeout_s=8 * share_s) as decode:
        _, go_on = busy.hold_steps()
        async with liar() as other:
            asked = decode.ask(PROMPT[: 2 * BLOCK], busy.address, *[other.address] * 7)
            began = time.monotonic()
            await until(lambda: other.asked or time.monotonic() > began + share_s + 1, within_s=60)
            go_on.set()
            await until(lambda: asked.ids, within_s=30)
            assert other.asked == 0
            assert not failures(decode)


async def test_a_silent_candidate_costs_the_next_request_nothing(impatient, decode, prefill):
    with stopped_engine() as (address, asked):
        await answered(decode.ask(PROMPT, address, prefill.address))
        await answered(decode.ask(PROMPT[::-1], address, prefill.address, name="next"))
        assert asked() == 1


async def test_without_another_candidate_decode_computes_at_once_what_a_suspect_would_delay(
    impatient, decode
):
    with stopped_engine() as (address, asked):
        for name in ("first", "second"):
            prompt = PROMPT if name == "first" else PROMPT[::-1]
            await answered(decode.ask(prompt, address, name=name))
        assert asked() == 1
    assert failures(decode) == ["timeout", "suspended"]
    assert decode.metric("argosy_kv_transfer_failures_total", cause="suspended") == 1
    assert decode.metric("argosy_local_prefill_fallback_total") == 2


async def test_a_candidate_that_refuses_for_itself_is_not_asked_by_the_next_request(
    decode, prefill
):
    refused = {"reason": "draining", "message": "ask another one"}
    async with liar((Kind.REFUSED, refused)) as draining:
        for name, prompt in (("first", PROMPT), ("next", PROMPT[::-1])):
            await answered(decode.ask(prompt, draining.address, prefill.address, name=name))
        assert draining.asked == 1


async def test_t38_what_a_prefill_engine_says_of_the_prompt_reaches_the_client_and_no_other_engine(
    decode, prefill
):
    async with liar((Kind.REFUSED, {"reason": "invalid", "message": "too long"})) as it:
        for name, prompt in (("first", PROMPT), ("next", PROMPT[::-1])):
            asked = decode.ask(prompt, it.address, prefill.address, name=name)
            await until(lambda asked=asked: asked.end is not None)
            assert (asked.ids, asked.end, asked.code) == ([], "error", "invalid")
            assert asked.message == "too long"
        assert it.asked == 2  # it is not held against the engine
    assert prefill.scheduler.unfinished == 0
    await until(lambda: not decode.scheduler.pool.used)


async def test_pulls_from_a_silent_engine_leave_half_of_the_places_to_others(
    monkeypatch, decode, prefill
):
    monkeypatch.setattr("argosy_engine.transfer.puller._SILENCE_S", 60.0)
    async with liar(ADMITTED) as silent:
        waiting = [
            decode.ask([100 + i] * BLOCK, silent.address, name=f"silent{i}") for i in range(8)
        ]
        await until(lambda: len(decode.scheduler.sequences) == 8)
        await answered(decode.ask(PROMPT, prefill.address, name="pulled"))
        await answered(decode.ask(PROMPT[::-1], name="local"))
        assert silent.asked <= 4
        assert not any(one.end for one in waiting)
