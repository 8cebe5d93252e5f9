"""Parts of a stream that are passed on at once: while the client reads and the stream goes on."""

import pytest

from argosy_gateway.relay.answer import Answer
from argosy_gateway.relay.resume import IdBudget, Resume
from argosy_gateway.wire.sse import StreamScan
from tests.gateway.direct import direct
from tests.gateway.engines import Engine

TOKEN = b'data: {"choices":[{"text":"one"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no"}}\n\n'


class Body:
    has_room = True

    def __init__(self):
        self.parts = []

    def write(self, part):
        self.parts.append(part)


class Client:
    def __init__(self, *, started=True, hide_usage=True):
        self.body, self.sent, self.now = Body(), [], 5.0
        self.answer = self.answer_of(body=self.body)
        self.scan = StreamScan(hide_usage=hide_usage)
        self.answer.begin_stream(self.scan, ())
        self.answer.started = started

    def answer_of(self, **more):
        resume = Resume(IdBudget(1000), 1000)
        clock = lambda: self.now  # noqa: E731
        return Answer(self._send, "id", clock=clock, close=False, resume=resume, **more)

    async def _send(self, message):
        self.sent.append(message)


def test_an_event_in_the_middle_of_a_stream_is_written_and_counted():
    client = Client()
    assert client.answer.pass_on_now(TOKEN)
    client.now = 6.0
    assert client.answer.pass_on_now(TOKEN + TOKEN)
    assert client.body.parts == [TOKEN, TOKEN + TOKEN]
    assert (client.answer.first_content_at, client.answer.last_content_at) == (5.0, 6.0)
    assert client.answer.output_tokens == 3
    assert client.sent == []


@pytest.mark.parametrize(
    "data",
    [DONE, ERROR, TOKEN + DONE, TOKEN[:-1], TOKEN + b"data", b"", TOKEN.replace(b"\n", b"\r\n")],
)
def test_what_may_end_the_stream_or_is_not_whole_is_left_to_the_reader(data):
    client = Client()
    assert not client.answer.pass_on_now(data)
    assert client.body.parts == []
    assert client.scan.size == 0


async def test_a_stream_that_goes_on_while_its_client_reads_is_written_past_asgi():
    """The first event, the end and what a slow client waits for go through ASGI."""
    parts = []

    async def three(call):
        await call.begin_stream()
        await call.token("one")
        await client.reads("one")
        for text in ("two", "three"):
            await call.token(text)
            await gateway.until(lambda text=text: text in b"".join(parts).decode())
        client.has_room = False
        await call.token("four")
        await client.reads("four")
        await call.finish(4)

    ask = {"model": "m", "messages": [], "stream": True}
    async with direct(Engine("a", three)) as gateway:
        client = gateway.ask(ask)
        client.has_room, client.write = True, parts.append
        await client.whole
        for text in ("one", "four", "[DONE]"):
            assert client.text.count(text) == 1
        assert "two" not in client.text
        assert "three" not in client.text


def test_an_event_of_several_tokens_counts_as_many():
    client = Client()
    client.answer.resume.begin("r", with_ids=True)
    for now, ids, pace in ((5.0, b"1,2", None), (6.0, b"3,4,5,6", 0.25), (7.0, b"", None)):
        client.now = now
        if ids:
            client.answer.resume.add(ids, closing=False)
            client.answer.pass_on_now(TOKEN)
        assert client.answer.take_tpot() == pace
    client.answer.resume.end()  # its ids are not kept any more
    client.answer.pass_on_now(TOKEN)
    assert client.answer.take_tpot() is None
