"""What a client asks for is never booked as a failure of the pods that were asked."""

import json

import pytest

from argosy_gateway.config import Limits, Slo
from argosy_gateway.pods.health import HEALTHY
from tests.gateway.direct import direct
from tests.gateway.engines import Engine

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
IDS = "x-argosy-token-ids: 1"


def seen(gateway, *names):
    """Ranks, and whether failures are remembered, of these pods."""
    health = gateway.state.directory.health
    return {(health.rank(name), health.failed_recently(name)) for name in names}


async def invalid(gateway, engines):
    """The request was refused for itself, once, and no pod is the worse for it."""
    await gateway.settled()
    assert gateway.count("argosy_requests_received_total", outcome="accepted") == 1
    assert sum(len(engine.calls) for engine in engines) == 1
    assert seen(gateway, "a", "b") == {(HEALTHY, False)}
    assert gateway.verdicts() == {}


@pytest.mark.parametrize(
    "error",
    [
        {"message": "no token is left", "type": "invalid_request_error", "code": "invalid"},
        {"message": "too long", "type": "BadRequestError", "param": None, "code": 400},
    ],
)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("ours", [False, True], ids=["another engine", "our engine"])
async def test_an_error_in_a_stream_that_blames_the_request_is_no_failure_of_the_pod(
    error, begun, ours
):
    async def refuses(call):
        await call.begin_stream(*([IDS] if ours else []))
        if begun:
            await call.token("one", *([1] if ours else []))
        await call.event(json.dumps({"error": error}).encode())
        await call.event(b"[DONE]")
        await call.write(b"0\r\n\r\n")

    engines = [Engine("a", refuses), Engine("b", refuses)]
    async with direct(*engines, slo=Slo(1, 1)) as gateway:
        client = await gateway.answered(STREAM)
        if ours and not begun:
            assert (client.status, json.loads(client.text)) == (400, {"error": error})
        else:
            assert client.status == 200
            assert client.text.count(json.dumps({"error": error})) == 1
        await invalid(gateway, engines)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "boom", "type": "server_error", "code": "internal_error"},
        {"message": "boom", "type": "InternalServerError", "code": 500},
        {"message": "full", "type": "x", "code": 429},
    ],
)
async def test_another_error_in_a_stream_is_the_pods(error):
    async def fails(call):
        await call.begin_stream()
        await call.token("one")
        await call.event(json.dumps({"error": error}).encode())
        await call.event(b"[DONE]")
        await call.write(b"0\r\n\r\n")

    async with direct(Engine("a", fails)) as gateway:
        await gateway.answered(STREAM)
        assert seen(gateway, "a") == {(HEALTHY, True)}


async def test_an_answer_that_is_too_long_for_one_piece_is_refused_and_not_tried_again():
    content = {"choices": [], "x": "x" * 80}
    size = len(json.dumps(content))

    async def long(call):
        await call.status(200, content)

    for limit, status in ((size, 200), (size - 1, 400)):
        engines = [Engine("a", long), Engine("b", long)]
        limits = Limits(answer_bytes=limit)
        async with direct(*engines, limits=limits) as gateway:
            client = await gateway.answered(ASK)
            assert client.status == status
            if status == 400:
                error = json.loads(client.text)["error"]
                assert (error["param"], error["code"]) == ("max_tokens", "answer_too_long")
                await invalid(gateway, engines)


async def test_an_event_that_is_too_long_ends_its_stream_and_fails_no_pod():
    async def long(call):
        await call.begin_stream()
        await call.token("one")
        await call.raw(b'data: {"prompt_logprobs":"' + b"x" * (4 << 20))
        await call.gone()

    engines = [Engine("a", long), Engine("b", long)]
    async with direct(*engines) as gateway:
        client = await gateway.answered(STREAM)
        assert "logprobs" in json.loads(client.text.rpartition("data: ")[2])["error"]["message"]
        await invalid(gateway, engines)


async def test_a_client_is_told_of_no_address_of_a_pod():
    async def named(call):
        await call.status(
            200,
            {"choices": [{"message": {"content": "one"}}]},
            x_argosy_failed_prefills="10.1.2.3:8002=connect",
        )

    async def breaks(call):
        await call.begin_stream(IDS)
        await call.token("one", 1)
        engine._server.close()
        call.writer.transport.abort()

    engine = Engine("a", named)
    async with direct(engine, queue_timeout_s=0.2) as gateway:
        whole = await gateway.answered(ASK)
        engine.behaviour = breaks
        broken = gateway.ask(STREAM)
        await broken.reads("one")
        await gateway.until(lambda: gateway.state.directory.health.rank("a") is None)
        gateway.advance(1.0)
        gateway.state.directory.notify()
        await broken.whole
    assert whole.status == 200
    assert "10.1.2.3" not in str(whole.headers)
    assert "stream_broken" in broken.text
    assert "127.0.0.1" not in broken.text
