"""The gateway leads the handovers of vLLM and SGLang: who is asked what, and what a failure costs.

The engines speak the protocol as vLLM 0.32 was seen to, and SGLang's sources have it.
"""

import asyncio
import contextlib
import dataclasses
import json
from dataclasses import dataclass

import httpx
import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Role, State
from argosy_gateway.relay.handover import nixl
from argosy_gateway.relay.metrics import HandoverReason
from argosy_gateway.routing.estimates import Transfers
from argosy_gateway.server.admin import failing_pairs, pod_loads
from tests.gateway.direct import direct
from tests.gateway.engines import Engine, answer, close_early, fail, front

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**CHAT, "stream": True}
FAILED = "argosy_gateway_handovers_failed_total"
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_host": "10.0.0.1"}


@dataclass
class Pod(Engine):
    """An engine of another kind, in one revision."""

    engine: str = "vllm"

    def endpoint(self, state=State.SERVING):
        return dataclasses.replace(super().endpoint(state), engine=self.engine)

    def pod(self):
        return "server", "uvicorn"


@contextlib.asynccontextmanager
async def led(*engines, **settings):
    """A gateway that holds no prefill pod when its requests have ended."""
    async with direct(*engines, **settings) as world:
        yield world
        await world.settled()
        assert world.state.in_flight.holding == {}


def on_pods(world):
    """What the operator is told of each pod: requests there, and whether more may come."""
    return {uid: (row["requests"], row["left"]) for uid, row in pod_loads(world.state).items()}


async def computed(call):
    """Phase 1: the KV is kept."""
    await call.status(
        200,
        {
            "choices": [{"message": {"content": "one"}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 1},
            "kv_transfer_params": PARAMS,
        },
    )


async def role_then_error(call):
    """What vLLM streams when the KV does not come."""
    await call.begin_stream()
    await call.event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
    await call.event(b'{"error":{"message":"Internal server error","code":500}}')
    await call.event(b"[DONE]")
    await call.write(b"0\r\n\r\n")


def fails_with_kv(how):
    async def behave(call):
        await (how(call) if call.body.get("kv_transfer_params") else answer(call))

    return behave


def failures(world):
    """Failed handovers by reason, of those that are not 0."""
    counted = {reason: world.count(FAILED, reason=reason) for reason in HandoverReason}
    return {reason.value: number for reason, number in counted.items() if number}


def pair(prefill=computed, decode=answer, engine="vllm"):
    return (
        Pod("p", prefill, Role.PREFILL, engine=engine),
        Pod("d", decode, Role.DECODE, engine=engine),
    )


async def test_the_decode_pod_gets_the_clients_request_and_what_the_prefill_pod_answered():
    prefill, decode = pair()
    asked = {**STREAM, "max_tokens": 9, "min_tokens": 2, "stream_options": {"include_usage": True}}
    async with led(prefill, decode) as f:
        answered = await f.answered(asked)
        assert f.state.in_flight.loads == {}
        assert f.state.directory.pairs.handover_ages().keys() == {"p", "d"}
    first, second = prefill.calls[0], decode.calls[0]
    assert first.body["max_tokens"] == 1
    assert first.body["stream"] is False
    assert first.body["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
    }
    assert not {"stream_options", "min_tokens"} & first.body.keys()
    assert second.body["kv_transfer_params"] == PARAMS
    assert (second.body["max_tokens"], second.body["min_tokens"]) == (9, 2)
    assert first.headers["x-request-id"] == second.headers["x-request-id"]
    assert (answered.status, "three" in answered.text) == (200, True)


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"prompt_logprobs": 1}, {"max_tokens": 0}, {"max_tokens": "x"}, {"n": 0}],
    ids=str,
)
async def test_what_vllm_hands_over_wrongly_or_refuses_goes_to_decode_alone(more):
    prefill, decode = pair()
    async with led(prefill, decode) as f:
        await f.answered({**CHAT, **more})
    assert prefill.calls == []
    assert "kv_transfer_params" not in decode.calls[0].body


@pytest.mark.parametrize("asked", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_decode_pod_that_gets_no_kv_computes_the_prompt_and_the_client_sees_nothing(asked):
    broken = role_then_error if asked.get("stream") else fail
    prefill, decode = pair(decode=fails_with_kv(broken))
    async with led(prefill, decode) as f:
        answered = await f.answered(asked)
        assert f.state.directory.pairs.avoids("p", "d")
        assert failures(f) == {"no_kv": 1}
        assert [pair["reason"] for pair in failing_pairs(f.state)] == ["no_kv"]
    assert (answered.status, "three" in answered.text) == (200, True)
    assert "error" not in answered.text
    assert ["kv_transfer_params" in call.body for call in decode.calls] == [True, False]


async def test_engines_whose_streams_do_not_go_on_elsewhere_get_no_seed():
    prefill, decode = pair()
    async with led(prefill, decode) as f:
        await f.answered(STREAM)
        await f.answered({**STREAM, "seed": 7})
    for calls in (prefill.calls, decode.calls):
        assert [call.body.get("seed") for call in calls] == [None, 7]


async def hang(call):
    await call.gone()


async def hang_alive(call):
    await call.begin_stream()
    await call.raw(b": keep-alive\n\n")
    await call.gone()


@pytest.mark.parametrize("how", [hang, hang_alive])
async def test_a_pull_that_hangs_ends_when_no_first_token_has_come(how):
    prefill, decode = pair(decode=fails_with_kv(how))
    async with front(prefill, decode) as f, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f.url + "/v1/chat/completions", json=STREAM))
        await f.until(lambda: decode.calls)
        f.advance(nixl.LEASE_S / 3 + 1)
        answered = await asking
        assert failures(f) == {"hung": 1}
    assert (answered.status_code, "three" in answered.text) == (200, True)
    assert ["kv_transfer_params" in call.body for call in decode.calls] == [True, False]


async def test_a_pull_has_not_hung_while_requests_asked_before_it_begin():
    first, second, third = (asyncio.Event() for _ in range(3))

    async def one_after_the_other(call):
        begin = (first, second, third)[len(decode.calls) - 1]
        await begin.wait()
        await answer(call)

    prefill, decode = pair(decode=one_after_the_other)
    async with front(prefill, decode) as f, httpx.AsyncClient() as client:
        asking = []
        for calls in (1, 2, 3):
            asked = client.post(f.url + "/v1/chat/completions", json=STREAM)
            asking.append(asyncio.create_task(asked))
            await f.until(lambda calls=calls: len(decode.calls) == calls)
        for begin in (first, second, third):
            f.advance(nixl.LEASE_S / 4)
            f.state.sweep()
            begin.set()
            answered = await asking.pop(0)
            assert answered.status_code == 200
        assert failures(f) == {}
    assert len(decode.calls) == 3


async def be_another_program(call):
    await call.status(200, {"choices": []}, x_argosy_pod="p")


async def be_full(call):
    await call.status(429, {"error": {"message": "full"}})


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (None, "connect"),
        (close_early, "closed"),
        (fail, "refused"),
        (hang, "silent"),
        (be_another_program, "wrong_pod"),
        (answer, "invalid"),
    ],
)
async def test_a_prefill_pod_that_fails_is_passed_over_and_decode_computes_at_last(
    behaviour, reason, monkeypatch
):
    monkeypatch.setattr(nixl, "_PREFILL_UNKNOWN_S", 0.05)
    prefill, decode = pair(prefill=behaviour)
    async with led(prefill, decode) as f:
        if behaviour is None:
            await prefill.stop()
        answered = await f.answered(CHAT)
        assert f.state.directory.pairs.avoids("p", "d")
        assert failures(f) == {reason: 1}
        assert [pair["reason"] for pair in failing_pairs(f.state)] == [reason]
    assert answered.status == 200
    assert "kv_transfer_params" not in decode.calls[0].body


async def test_a_prefill_pod_that_is_full_is_passed_over_and_not_avoided():
    prefill, decode = pair(prefill=be_full)
    async with led(prefill, decode) as f:
        answered = await f.answered(CHAT)
        assert not f.state.directory.pairs.avoids("p", "d")
        assert failures(f) == {"busy": 1}
    assert answered.status == 200


async def test_another_prefill_pod_is_asked_where_the_first_one_fails():
    prefill, decode = pair(prefill=fail)
    second = Pod("q", computed, Role.PREFILL)
    async with led(prefill, second, decode) as f:
        for _ in range(2):  # whichever is chosen first
            assert (await f.answered(CHAT)).status == 200
    assert all(call.body.get("kv_transfer_params") for call in decode.calls)


async def test_a_prefill_pod_that_drains_stays_until_its_kv_is_pulled():
    asked, pull = asyncio.Event(), asyncio.Event()

    async def pull_slowly(call):
        await call.begin_stream()
        await call.event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
        asked.set()
        await pull.wait()
        await call.token("one")
        await call.gone()

    async def drain_then_compute(call):
        assert on_pods(f) == {"p": (1, False), "d": (1, False)}
        f.state.directory.replace([prefill.endpoint(State.DRAINING), decode.endpoint()])
        await computed(call)

    prefill, decode = pair(prefill=drain_then_compute, decode=pull_slowly)
    async with led(prefill, decode) as f:
        client = f.ask(STREAM)
        await asked.wait()
        assert on_pods(f) == {"p": (1, True), "d": (1, False)}
        pull.set()
        await client.reads("one")
        assert on_pods(f) == {"p": (0, True), "d": (1, False)}
        await client.leave()
    assert decode.calls[0].body["kv_transfer_params"] == PARAMS


async def test_a_prefill_pod_is_let_go_when_decode_computes_the_prompt_itself():
    computes = asyncio.Event()

    async def compute_slowly(call):
        if call.body.get("kv_transfer_params"):
            await fail(call)
        else:
            computes.set()
            await call.gone()

    prefill, decode = pair(decode=compute_slowly)
    async with led(prefill, decode) as f:
        client = f.ask(STREAM)
        await computes.wait()
        assert on_pods(f)["p"] == (0, False)
        await client.leave()


async def test_a_prefill_pod_that_drains_is_asked_for_no_other_prompt():
    async def fail_while_the_other_drains(call):
        leaving = [pod.endpoint(State.DRAINING) for pod in prefills if not pod.calls]
        f.state.directory.replace([*(p.endpoint() for p in prefills if p.calls), *leaving])
        await fail(call)

    prefills = [Pod(name, fail_while_the_other_drains, Role.PREFILL) for name in ("p", "q")]
    decode = Pod("d", answer, Role.DECODE)
    async with led(*prefills, decode) as f:
        assert (await f.answered(CHAT)).status == 200
    assert sum(len(pod.calls) for pod in prefills) == 1


async def test_sglang_s_prefill_pod_stays_until_its_half_is_answered():
    sends, sent = asyncio.Event(), asyncio.Event()

    async def send_slowly(call):
        sends.set()
        await sent.wait()
        await answer(call)

    async def tokens_first(call):
        await call.begin_stream()
        await call.token("one")
        await call.gone()

    prefill, decode = pair(prefill=send_slowly, decode=tokens_first, engine="sglang")
    async with led(prefill, decode) as f:
        client = f.ask(STREAM)
        await sends.wait()
        await client.reads("one")
        assert on_pods(f)["p"] == (1, False)
        sent.set()
        await f.until(lambda: on_pods(f)["p"] == (0, False))
        await client.leave()


async def test_a_request_that_the_prefill_pod_refuses_is_answered_with_its_words():
    async def refuse(call):
        await call.status(400, {"error": {"message": "bad schema", "code": 400}})

    prefill, decode = pair(prefill=refuse)
    async with led(prefill, decode) as f:
        answered = await f.answered(CHAT)
    assert (answered.status, "bad schema" in answered.text) == (400, True)
    assert decode.calls == []


async def test_an_error_of_the_client_in_a_led_stream_is_not_tried_again():
    async def refuse(call):
        await call.begin_stream()
        await call.event(b'{"error":{"message":"too long","code":400}}')
        await call.event(b"[DONE]")
        await call.write(b"0\r\n\r\n")

    prefill, decode = pair(decode=refuse)
    async with led(prefill, decode) as f:
        answered = await f.answered(STREAM)
    assert (answered.status, "too long" in answered.text) == (400, True)
    assert len(decode.calls) == 1


async def test_kv_whose_lease_may_be_over_is_not_pulled(monkeypatch):
    monkeypatch.setattr(nixl, "_USABLE_S", -1.0)
    prefill, decode = pair()
    async with led(prefill, decode) as f:
        answered = await f.answered(CHAT)
        assert failures(f) == {"late": 1}
        assert not f.state.directory.pairs.avoids("p", "d"), "the gateway was late"
    assert answered.status == 200
    assert len(prefill.calls) == 1
    assert ["kv_transfer_params" in call.body for call in decode.calls] == [False]


@pytest.mark.parametrize("after_s", [0.0, nixl.LEASE_S / 2], ids=["at once", "late"])
async def test_kv_is_released_if_the_client_leaves_while_it_is_sure_to_be_its_own(after_s):
    waits = asyncio.Event()
    prefill, decode = pair()
    async with led(prefill, decode) as f:
        post = f.state.connections.post

        async def slow(peer, target, headers, body, **kwargs):
            if peer.uid == "d" and not waits.is_set():
                waits.set()
                await asyncio.sleep(60)
            return await post(peer, target, headers, body, **kwargs)

        f.state.connections.post = slow
        asking = asyncio.create_task(f.answered(CHAT))
        await waits.wait()
        f.advance(after_s)
        for relay in list(f.state.relays):
            relay.stop()
        asking.cancel()
        await f.until(lambda: not (f.state.relays or f.state._running))
        if not after_s:
            await f.until(lambda: decode.calls)
    released = [call.body["kv_transfer_params"] for call in decode.calls]
    assert released == ([] if after_s else [PARAMS])


def test_a_prompt_is_moved_if_computing_it_takes_longer():
    now = 0.0
    transfers = Transfers(lambda: now)
    for seconds in (0.2, 0.1, 0.3, 0.2):
        assert transfers.least_tokens(1000.0) == 0
        transfers.observe(seconds)
    assert transfers.least_tokens(1000.0) == 100
    assert transfers.least_tokens(None) == 0
    now = 61.0
    assert transfers.least_tokens(1000.0) == 0


async def test_sglang_is_asked_at_both_pods_at_once_with_one_room():
    prefill, decode = pair(prefill=answer, engine="sglang")
    async with led(prefill, decode) as f:
        answered = await f.answered(STREAM)
    assert answered.status == 200
    first, second = prefill.calls[0].body, decode.calls[0].body
    assert first == second
    assert first["bootstrap_host"] == "127.0.0.1"
    assert first["bootstrap_port"] == 8998
    assert 0 <= first["bootstrap_room"] < 2**63


async def test_a_room_whose_prefill_half_fails_is_left_for_another_one():
    failed = asyncio.Event()

    async def once(call):
        if failed.is_set():
            await answer(call)
        else:
            failed.set()
            await fail(call)

    async def wait_for_prefill(call):
        if len(prefill.calls) < 2:
            await call.gone()
        else:
            await answer(call)

    prefill, decode = pair(prefill=once, decode=wait_for_prefill, engine="sglang")
    async with led(prefill, decode) as f:
        answered = await f.answered(STREAM)
        assert failures(f) == {"refused": 1}
    assert answered.status == 200
    rooms = [json.dumps(call.body["bootstrap_room"]) for call in decode.calls]
    assert len(rooms) == len(set(rooms)) == 2


@pytest.mark.parametrize("asked", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("asks", ["before", "after"])
async def test_a_request_that_only_the_prefill_half_refuses_does_not_wait_for_decode(asked, asks):
    async def refuse(call):
        if asks == "before":
            await f.until(lambda: decode.calls)
        await call.status(400, {"error": {"message": "too long", "code": 400}})

    prefill, decode = pair(prefill=refuse, decode=hang, engine="sglang")
    async with direct(prefill, decode) as f:
        post = f.state.connections.post

        async def connect_late(peer, *args, **kwargs):
            if peer.uid == "d" and asks == "after":
                await f.until(lambda: [r for r in f.state.relays if r._attempt._given_up])
            return await post(peer, *args, **kwargs)

        f.state.connections.post = connect_late
        answered = await f.answered(asked)
        assert failures(f) == {}
    assert (answered.status, "too long" in answered.text) == (400, True)


async def test_an_unstreamed_answer_has_time_for_its_tokens():
    prefill, decode = pair()
    async with led(prefill, decode, slo=Slo(1.0, 0.05)) as f:
        await f.answered({**CHAT, "max_tokens": 100})
    assert decode.calls[0].body["kv_transfer_params"] == PARAMS


async def refuse_for_a_proxy(call):
    await call.begin(403, "content-type: text/html", "content-length: 6")
    await call.write(b"denied")


async def misdirect(call):
    await call.status(421, {"error": {"message": "misdirected"}})


async def name_no_blocks(call):
    await call.status(200, {"kv_transfer_params": {**PARAMS, "remote_block_ids": None}})


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (refuse_for_a_proxy, "refused"),
        (misdirect, "refused"),
        (name_no_blocks, "invalid"),
    ],
)
async def test_a_prefill_pods_answer_that_is_not_vllms_costs_no_request(behaviour, reason):
    prefill, decode = pair(prefill=behaviour)
    async with direct(prefill, decode) as f:
        answered = await f.answered(CHAT)
        assert failures(f) == {reason: 1}
        assert [pair["reason"] for pair in failing_pairs(f.state)] == [reason]
    assert answered.status == 200
    assert "kv_transfer_params" not in decode.calls[0].body


async def test_a_clients_body_in_utf16_is_handed_over():
    prefill, decode = pair()
    async with direct(prefill, decode) as f:
        answered = await f.answered(json.dumps(CHAT).encode("utf-16"))
    assert answered.status == 200
    assert decode.calls[0].body["kv_transfer_params"] == PARAMS


async def test_a_decode_pod_of_sglang_gets_no_request_without_a_prefill_pod():
    _, decode = pair(engine="sglang")
    async with direct(decode, queue_timeout_s=0.05) as f:
        f.state.clock = asyncio.get_running_loop().time
        answered = await f.answered(CHAT)
    assert (answered.status, decode.calls) == (503, [])


async def test_the_connection_of_a_prefill_pod_that_writes_on_is_closed_before_decode_is_asked():
    gone = asyncio.Event()

    async def write_on(call):
        await call.begin(200, "content-type: application/json")
        with contextlib.suppress(ConnectionError):
            while True:
                await call.write(b" " * (1 << 20))
        gone.set()

    async def answer_then(call):
        await asyncio.wait_for(gone.wait(), 3)
        await answer(call)

    prefill, decode = pair(prefill=write_on, decode=answer_then)
    async with direct(prefill, decode) as f:
        assert (await f.answered(CHAT)).status == 200
        assert failures(f) == {"closed": 1}


async def test_a_led_stream_whose_tokens_its_parser_holds_back_is_not_taken_for_a_hanging_pull():
    goes_on = asyncio.Event()

    async def hold_back(call):
        await call.begin_stream()
        await call.event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
        await goes_on.wait()
        await call.token("text")
        await call.finish(1)

    prefill, decode = pair(decode=hold_back)
    async with front(prefill, decode) as f, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f.url + "/v1/chat/completions", json=STREAM))
        await f.until(lambda: [r for r in f.state.relays if r._attempt and r._attempt._heard])
        f.advance(nixl.LEASE_S / 2)
        f.state.sweep()
        goes_on.set()
        assert "text" in (await asking).text
        assert failures(f) == {}
    assert len(decode.calls) == 1


async def test_cached_prompts_do_not_shorten_the_time_for_one_that_is_not():
    def ask(word):
        return f.answered({**CHAT, "messages": [{"role": "user", "content": word * 250}]})

    async def compute(call):
        new = "new" in str(call.body)
        f.advance(2.0 if new else 0.001)
        usage = {"prompt_tokens": 250, "completion_tokens": 1}
        params = {**PARAMS, "remote_prefill_cached_tokens": 0 if new else 250}
        choices = [{"message": {"content": "x"}}]
        await call.status(200, {"choices": choices, "usage": usage, "kv_transfer_params": params})

    prefill, decode = pair(prefill=compute, decode=compute)
    async with direct(prefill, decode) as f:
        for _ in range(40):
            await ask("old ")
        assert f.state.computing.tokens_per_s() is None
        for _ in range(20):
            await ask("new ")
        pace = f.state.computing.tokens_per_s()
    assert pace == pytest.approx(125, rel=0.1)
