"""One attempt without a Relay: it calls one engine, reports, and leaves the next step open."""

import json

from argosy_gateway.accounting.table import RetryReason
from argosy_gateway.accounting.verdicts import Ending
from argosy_gateway.relay.answer import Answer
from argosy_gateway.relay.attempt import Attempt, FailedAttempt
from argosy_gateway.relay.resume import Resume
from argosy_gateway.routing.groups import Route
from argosy_gateway.wire.openai import read_completion
from tests.gateway.engines import Engine, answer, fail, front

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
    return read_completion(PATH, body, served_name="m")


def answer_to(client, fleet):
    resume = Resume(fleet.kept_ids, 100)
    return Answer(client.send, "id", clock=fleet.clock, close=False, resume=resume)


async def run(fleet, engine, request, to, number=1):
    with Attempt(fleet, request, Route(engine.endpoint()), number, to) as attempt:
        return await attempt.run()


async def test_a_stream_that_breaks_is_reported_and_another_attempt_can_go_on_with_the_answer():
    async def half(call):
        await call.begin_stream("x-argosy-token-ids: 1")
        await call.token("one", 5)
        call.writer.transport.abort()

    async def rest(call):
        await call.begin_stream("x-argosy-token-ids: 1", "x-argosy-resumed: 1")
        await call.token(" two", 7)
        await call.finish(1)

    broken, healthy, client = Engine("a", half), Engine("b", rest), Client()
    async with front(broken, healthy) as f:
        request, to = completion(stream=True), answer_to(client, f.fleet)
        result = await run(f.fleet, broken, request, to)
        assert isinstance(result, FailedAttempt)
        assert (result.reason, result.worked) == (RetryReason.CLOSED, True)
        assert to.started
        assert to.stream_ending is None
        assert "stream_broken" not in client.text()
        assert await run(f.fleet, healthy, request, to, 2) is Ending.OK
        assert f.fleet.in_flight.loads == {}
    assert len(client.heads()) == 1
    assert client.text().index("one") < client.text().index(" two")
    assert to.stream_ending is Ending.OK


async def test_an_engines_error_is_returned_and_not_sent_to_the_client():
    engine, client = Engine("a", fail), Client()
    async with front(engine) as f:
        result = await run(f.fleet, engine, completion(), answer_to(client, f.fleet))
    assert isinstance(result, FailedAttempt)
    assert (result.reason, result.status) == (RetryReason.SERVER_ERROR, 500)
    assert json.loads(result.body)["error"]["message"] == "boom"
    assert client.messages == []


async def test_a_whole_answer_leaves_its_times_and_usage_on_the_answer():
    engine, client = Engine("a", answer), Client()
    async with front(engine) as f:
        to = answer_to(client, f.fleet)
        assert await run(f.fleet, engine, completion(), to) is Ending.OK
    assert json.loads(client.text())["choices"]
    assert to.output_tokens == 3
    assert to.first_content_at <= to.last_content_at
