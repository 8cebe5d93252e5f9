"""One attempt without a Relay: it calls one engine, reports, and leaves the next step open."""

import asyncio
import json
from dataclasses import replace

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Role
from argosy_gateway.relay.answer import Answer
from argosy_gateway.relay.attempt import Attempt, FailedAttempt
from argosy_gateway.relay.metrics import RetryReason
from argosy_gateway.relay.resume import Resume
from argosy_gateway.relay.verdicts import Ending
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire.openai import read_completion
from tests.gateway.direct import direct
from tests.gateway.engines import Call, Engine, answer, front

PATH = "/v1/completions"


class Client:
    """What ASGI's `send` was given."""

    def __init__(self):
        self.messages = []

    async def send(self, message):
        self.messages.append(message)

    def heads(self):
        return [m for m in self.messages if m["type"] == "http.response.start"]

    def text(self):
        return b"".join(m.get("body", b"") for m in self.messages).decode()


def completion(**more):
    body = json.dumps({"model": "m", "prompt": "hello", **more}).encode()
    return read_completion(PATH, body, served_names=("m",))


def answer_to(client, fleet):
    resume = Resume(fleet.id_budget, 100)
    return Answer(client.send, "id", clock=fleet.clock, close=False, resume=resume)


async def run(fleet, engine, request, to, number=1):
    with Attempt(fleet, request, Route(engine.endpoint()), number, to) as attempt:
        return await attempt.run()


def refusing(code: str, prefills: int):
    """A decode engine with `onFailure: fail` that gets KV from none of so many prefill pods."""
    named = ",".join(f"127.0.0.1:{number}=silent" for number in range(1, prefills + 1))

    async def behaviour(call: Call) -> None:
        error = {"error": {"code": code, "message": "retry"}}
        await call.status(503, error, x_argosy_failed_prefills=named)

    return behaviour


@pytest.mark.parametrize(
    ("code", "prefills", "fails"),
    [
        ("kv_transfer_failed", 1, False),
        ("kv_transfer_failed", 2, True),
        ("kv_transfer_failed", 0, True),
        ("internal_error", 1, True),
    ],
    ids=["of one pair", "with both prefill pods", "without prefill pods", "another error"],
)
async def test_a_refused_rest_of_a_stream_is_a_failure_of_the_head_unless_it_is_of_the_pair(
    code, prefills, fails
):
    broken, head = Engine("a", first_token), Engine("b", refusing(code, prefills), Role.DECODE)
    pods = [Engine(f"p{number}", role=Role.PREFILL).endpoint() for number in range(1, prefills + 1)]
    named = tuple(replace(pod, kv_port=number) for number, pod in enumerate(pods, 1))
    async with front(broken, head) as f:
        request, to = completion(stream=True), answer_to(Client(), f.state)
        await run(f.state, broken, request, to)
        with Attempt(f.state, request, Route(head.endpoint(), named), 2, to) as attempt:
            result = await attempt.run()
        assert isinstance(result, FailedAttempt)
        assert (result.reason, result.worked) == (RetryReason.SERVER_ERROR, True)
        assert len(f.state.directory.pairs.failing(9)) == prefills
        assert f.state.directory.health.failed_recently("b") is fails


PENDING = ("x-argosy-token-ids: 1", "x-argosy-prefill-pod: p1", "x-argosy-handover: pending")


@pytest.mark.parametrize(
    ("said", "failing", "handed_over"),
    [
        (b"whole", 0, True),
        (b"failed 127.0.0.1:1=broken", 1, False),
        (b"failed p1=cancelled", 0, False),
        (b"failed ", 0, False),
        (None, 0, False),
        (b"", 0, False),
    ],
)
async def test_a_handover_that_outlasts_the_head_of_a_stream_counts_when_its_end_is_known(
    said, failing, handed_over
):
    async def tells(call: Call) -> None:
        await call.begin_stream(*PENDING)
        await call.token("one", 5)
        if said is not None:
            await call.raw(b": argosy-handover " + said + b"\n")
        await call.token(" two", 6)
        await call.finish(2)

    decode, prefill = Engine("d", tells, Role.DECODE), Engine("p1", role=Role.PREFILL)
    client = Client()
    async with front(decode) as f:
        request, to = completion(stream=True), answer_to(client, f.state)
        route = Route(decode.endpoint(), (replace(prefill.endpoint(), kv_port=1),))
        with Attempt(f.state, request, route, 1, to) as attempt:
            assert await attempt.run() is Ending.OK
        pairs = f.state.directory.pairs
        assert len(pairs.failing(9)) == failing
        assert pairs.handover_ages().keys() == ({"p1", "d"} if handed_over else set())
    assert ": argosy" not in client.text()
    assert client.text().count("data: ") == 4


async def test_an_older_engines_head_says_that_the_handover_was_whole():
    async def older(call: Call) -> None:
        await call.begin_stream(*PENDING[:2])
        await call.token("one", 5)
        await call.finish(1)

    decode, prefill = Engine("d", older, Role.DECODE), Engine("p1", role=Role.PREFILL)
    async with front(decode) as f:
        request, to = completion(stream=True), answer_to(Client(), f.state)
        with Attempt(f.state, request, Route(decode.endpoint(), (prefill.endpoint(),)), 1, to) as a:
            assert await a.run() is Ending.OK
        assert f.state.directory.pairs.handover_ages().keys() == {"p1", "d"}


async def first_token(call: Call) -> None:
    await call.begin_stream("x-argosy-token-ids: 1")
    await call.token("one", 5)
    call.writer.transport.abort()


async def full(call: Call) -> None:
    await call.status(429, {"error": {"message": "full"}})


# What the engine is sent

OWN = {"host", "content-length", "content-type", "x-request-id", "x-argosy-attempt"}


async def test_an_engine_is_sent_the_clients_request_and_which_attempt_of_which_pod_it_is():
    engine = Engine("a")
    async with front(engine) as f:
        request = completion()._replace(request_id="r1")
        await run(f.state, engine, request, answer_to(Client(), f.state), 3)
    (call,) = engine.calls
    assert (call.method, call.path) == ("POST", PATH)
    assert call.headers.keys() == {*OWN, "x-argosy-pod-uid"}
    assert call.headers["content-type"] == "application/json"
    assert call.headers["x-request-id"] == "r1"
    assert call.headers["x-argosy-attempt"] == "3"
    assert call.headers["x-argosy-pod-uid"] == "a"
    assert call.body == json.loads(request.body)


async def test_a_decode_engine_is_told_addresses_and_uids_of_its_prefill_pods_in_their_order():
    decode = Engine("d", role=Role.DECODE)
    prefills = tuple(
        replace(Engine(name, role=Role.PREFILL).endpoint(), ip=ip, kv_port=port)
        for name, ip, port in (("p1", "10.0.0.1", 9001), ("p2", "fd00::2", 9002))
    )
    async with front(decode) as f:
        request, to = completion(stream=True), answer_to(Client(), f.state)
        with Attempt(f.state, request, Route(decode.endpoint(), prefills), 1, to) as attempt:
            assert await attempt.run() is Ending.OK
    (call,) = decode.calls
    prefill = {"x-argosy-prefill", "x-argosy-prefill-uids", "x-argosy-handover"}
    assert call.headers.keys() == {*OWN, "x-argosy-pod-uid", "x-argosy-token-ids", *prefill}
    assert call.headers["x-argosy-prefill"] == "10.0.0.1:9001,[fd00::2]:9002"
    assert call.headers["x-argosy-prefill-uids"] == "p1,p2"
    assert call.headers["x-argosy-token-ids"] == "1"
    assert call.headers["x-argosy-handover"] == "1"


# What it shows about the pod


async def test_the_prompt_of_an_answer_in_one_piece_leaves_the_load_when_its_time_is_over():
    free, on_arrival = asyncio.Event(), []

    async def held(call: Call) -> None:
        load = gateway.state.in_flight.loads["a"]
        on_arrival.append((load.sequences, load.prompt_tokens))
        await free.wait()
        await answer(call)

    async with direct(Engine("a", held)) as gateway:
        for number in range(20):  # 400 tokens a second: 250 ms for its hundred
            gateway.state.pace.observe("a", 400, began=float(number), first=number + 1.0)
        client = gateway.ask({"model": "m", "prompt": "x" * 400}, PATH)
        await gateway.until(lambda: on_arrival)
        assert on_arrival == [(1, 100)]
        loads = gateway.state.in_flight.loads
        await gateway.until(lambda: loads["a"].prompt_tokens == 0)
        assert (loads["a"].sequences, loads["a"].prompts) == (1, 0)
        free.set()
        await client.whole
        assert client.status == 200


# What is learnt about the pace: a prompt of 200 tokens has its first token after half a second

PROMPT = {"model": "m", "prompt": "x" * 800}


async def paced(gateway, body, times):
    for _ in range(times):
        assert (await gateway.answered(body, PATH)).status == 200
    return gateway.state.pace.tokens_per_s(), gateway.state.queue.dispatch.pace.tokens_per_s("a")


async def test_streams_teach_the_pace_of_prompts_from_sending_to_the_first_token():
    async def slow(call: Call) -> None:
        gateway.advance(0.5)
        await call.begin_stream()
        await call.token("one")
        await call.finish(1)

    slo = Slo(ttft_s=2.0, tpot_s=1.0)
    async with direct(Engine("a", slow), queue="deadline", slo=slo) as gateway:
        gateway.state.tokens_per_char.learn = lambda **_: None
        _, of_queue = await paced(gateway, {**PROMPT, "stream": True}, 4)
        assert of_queue == pytest.approx(1.2 * 200 / 0.5)
        of_all, _ = await paced(gateway, {**PROMPT, "stream": True}, 16)
        assert of_all == pytest.approx(200 / 0.5)


@pytest.mark.parametrize(("reported", "known"), [({"x_argosy_ttft_ms": "500"}, True), ({}, False)])
async def test_an_answer_in_one_piece_teaches_the_pace_only_if_its_engine_says_the_ttft(
    reported, known
):
    async def slow(call: Call) -> None:
        gateway.advance(9.0)
        content = {"choices": [{"text": "one"}], "usage": {"completion_tokens": 1}}
        await call.status(200, content, **reported)

    slo = Slo(ttft_s=2.0, tpot_s=1.0)
    async with direct(Engine("a", slow), queue="deadline", slo=slo) as gateway:
        gateway.state.tokens_per_char.learn = lambda **_: None
        of_all, of_queue = await paced(gateway, PROMPT, 20)
    if not known:
        assert (of_all, of_queue) == (None, None)
        return
    assert of_all == pytest.approx(200 / 0.5)
    assert of_queue == pytest.approx(1.2 * 200 / 0.5)
