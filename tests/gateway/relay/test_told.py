"""What a client is told: errors of the gateway, word for word, and how an answer is framed."""

import asyncio
import json

import httpx
import pytest

from argosy_gateway.errors import RequestError
from argosy_gateway.relay.answer import Answer
from argosy_gateway.relay.resume import IdBudget, Resume
from argosy_gateway.wire.sse import StreamScan
from tests.gateway.direct import CHAT, Client, direct
from tests.gateway.engines import Call, Engine, close_early, front

WHOLE = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**WHOLE, "stream": True}
TOKEN = b'data: {"choices":[{"text":"one"}]}\n\n'


async def silent(call: Call) -> None:
    await call.gone()


def error(client: Client) -> dict[str, object]:
    assert client.headers["content-type"] == "application/json"
    assert client.headers["content-length"] == str(len(client.text.encode()))
    assert client.headers["x-request-id"]
    found: dict[str, object] = json.loads(client.text)["error"]
    return found


def says(message: str, code: str | None) -> dict[str, object]:
    return {"message": message, "type": "server_error", "param": None, "code": code}


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_without_an_engine_the_client_is_told_to_come_again(body):
    async with direct(queue_timeout_s=7.0) as gateway:
        client = gateway.ask(body)
        await gateway.until(lambda: gateway.state.relays)
        gateway.advance(7.0)
        gateway.state.directory.notify()
        await gateway.settled()
        await client.whole
    assert (client.status, client.headers["retry-after"]) == (503, "1")
    assert error(client) == says("No engine is ready; try again later.", "no_engine_ready")


async def test_a_request_that_no_engine_answers_in_time_is_not_tried_again():
    engines = [Engine("a", silent), Engine("b", silent)]
    async with front(*engines) as f, httpx.AsyncClient(base_url=f.url, verify=False) as web:
        asked = asyncio.create_task(web.post(CHAT, json=STREAM, timeout=20))
        await f.until(lambda: engines[0].calls or engines[1].calls)
        f.advance(290.0)
        f.state.sweep()
        assert f.state.relays
        f.advance(11.0)
        f.state.sweep()
        answer = await asked
        await f.settled()
        assert len(engines[0].calls) + len(engines[1].calls) == 1
        assert f.state.in_flight.loads == {}
    assert (answer.status_code, answer.headers["retry-after"]) == (504, "1")
    text = "The engine did not answer in time; a shorter request may succeed."
    assert answer.json()["error"] == says(text, "engine_timeout")


async def test_when_two_engines_break_off_the_client_is_told_how():
    engines = [Engine(name, close_early) for name in "abc"]
    async with direct(*engines) as gateway:
        client = await gateway.answered(WHOLE)
        assert sum(len(engine.calls) for engine in engines) == 2
        assert gateway.count("argosy_requests_completed_total", result="failed") == 1
    assert (client.status, client.headers["retry-after"]) == (503, "1")
    assert error(client) == says("Every engine failed (closed); try again later.", "engines_failed")


async def test_a_fault_of_the_gateway_is_a_500_that_is_counted_as_failed():
    class Broken:
        def choose(self, *_):
            raise RuntimeError("a fault")

    async with direct(Engine("a")) as gateway:
        gateway.state.strategy = Broken()
        client = await gateway.answered(WHOLE)
        await gateway.settled()
        assert gateway.count("argosy_requests_completed_total", result="failed") == 1
    assert client.status == 500
    assert error(client) == says("The gateway failed.", None)


async def test_a_stream_that_ends_without_its_end_says_so_in_its_last_event():
    async def no_done(call: Call) -> None:
        await call.begin_stream()
        await call.token("one")
        await call.write(b"0\r\n\r\n")

    async with direct(Engine("a", no_done)) as gateway:
        client = await gateway.answered(STREAM)
    event = client.text.rpartition("data: ")[2]
    text = "The engine's stream broke off: the stream ended without [DONE]."
    assert json.loads(event)["error"] == says(text, "stream_broken")
    assert event.endswith("}\n\n")


# How an answer is framed


class Sent:
    """What ASGI's `send` was given."""

    def __init__(self, *, close: bool = False) -> None:
        self.messages: list[dict[str, object]] = []
        resume = Resume(IdBudget(1000), 1000)
        self.answer = Answer(self._send, "id", clock=lambda: 5.0, close=close, resume=resume)

    async def _send(self, message: dict[str, object]) -> None:
        self.messages.append(message)


def head(status: int, *headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


ID = (b"x-request-id", b"id")
TYPE = (b"content-type", b"text/event-stream")
OF_THE_ENGINE = [
    (name, b"x")
    for name in (
        b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding",
        b"x-request-id", b"x-argosy-ttft-ms", b"x-argosy-token-ids", b"x-argosy-resumed",
        b"x-argosy-handover", b"x-argosy-first-token-held-ms", b"x-argosy-failed-prefills",
    )
]  # fmt: skip


@pytest.mark.parametrize("close", [False, True])
async def test_a_whole_answer_has_its_length_and_none_of_what_is_the_engines_own(close):
    sent = Sent(close=close)
    await sent.answer.send_whole(201, [*OF_THE_ENGINE, TYPE], b"hello")
    more = [(b"connection", b"close")] if close else []
    assert sent.messages == [head(201, TYPE, (b"content-length", b"5"), ID, *more), body(b"hello")]
    assert sent.answer.started


async def test_a_stream_begins_with_its_first_event_and_ends_with_its_last():
    sent, scan = Sent(), StreamScan(hide_usage=False)
    sent.answer.begin_stream(scan, [*OF_THE_ENGINE, TYPE])
    await sent.answer.pass_on(b"")
    assert (sent.messages, sent.answer.started) == ([], False)
    await sent.answer.pass_on(scan.feed(TOKEN))
    assert sent.messages == [head(200, TYPE, ID), body(TOKEN, True)]
    await sent.answer.pass_on(scan.feed(b"data: [DONE]\n\n"))
    assert sent.messages[2:] == [body(b"data: [DONE]\n\n")]


async def test_an_error_after_the_first_event_is_the_last_event():
    sent, scan = Sent(), StreamScan(hide_usage=False)
    sent.answer.begin_stream(scan, [TYPE])
    await sent.answer.pass_on(scan.feed(TOKEN))
    await sent.answer.send_error(RequestError(503, "it broke"))
    (last,) = sent.messages[2:]
    text = "The engine's stream broke off: it broke."
    said = {"message": text, "type": "server_error", "param": None, "code": "stream_broken"}
    assert last == body(last["body"])
    assert json.loads(last["body"].removeprefix(b"data: "))["error"] == said


async def test_an_error_before_the_first_byte_is_an_answer_of_its_own():
    sent = Sent(close=True)
    await sent.answer.send_error(RequestError(429, "later", headers={"retry-after": "3"}))
    start, content = sent.messages
    assert start == head(
        429, (b"retry-after", b"3"), (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content["body"])), ID, (b"connection", b"close"),
    )  # fmt: skip
    assert content == body(content["body"])
