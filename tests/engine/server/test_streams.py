"""What a stream of server-sent events holds, event by event."""

import asyncio
import json

import pytest

from tests.engine.server.spelling import Engine, events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(**more) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **more}


async def chunks(engine: Engine, **more) -> list[dict]:
    answer = await engine.post(CHAT, chat(**more))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = events_of(answer.text)
    assert done.data == "[DONE]"
    return [event.chunk for event in events]


async def test_t45_role_then_content_then_reason_then_usage_then_done():
    engine = Engine(says="one")
    found = await chunks(engine, stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in found[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "one"
    assert not any("role" in delta for delta in deltas[1:])
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in found[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == len("one") + 1  # the end is a token
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1


async def test_t45_characters_of_several_tokens_arrive_whole():
    said = "é🙂 à la 🙂"
    found = await chunks(Engine(says=said))
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found]
    assert "".join(parts) == said
    assert [part for part in parts if part] == list(said)


@pytest.mark.parametrize("at", range(4))
async def test_t45_of_a_stop_over_several_tokens_no_part_is_sent(at):
    found = await chunks(Engine(says="x" * at + "stop it"), stop=["stop"])
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found]
    assert "".join(parts) == "x" * at
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


async def test_t45_what_only_begins_like_a_stop_is_sent():
    said = "stol then sto"
    found = await chunks(Engine(says=said), stop=["stop"])
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found]
    assert "".join(parts) == said


class Client:
    """Reads a stream through ASGI; its server's `send` may wait or fail from a chunk on."""

    def __init__(self, engine: Engine, **more) -> None:
        self.engine = engine
        self.body = {"model": "m", "prompt": "a", "stream": True, "ignore_eos": True, **more}
        self.left, self.reads = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.turns = 0
        """Of the event loop that each `send` waits."""
        self.fails: Exception | None = None
        self.sent: list[bytes] = []
        self._asked = False
        self.serving = asyncio.ensure_future(engine.app(self._scope(), self._receive, self._send))

    @property
    def text(self) -> str:
        return "".join(event.text for event in events_of(b"".join(self.sent).decode()))

    def _scope(self):
        return {
            "type": "http", "method": "POST", "path": COMPLETIONS,
            "raw_path": COMPLETIONS.encode(), "query_string": b"", "headers": [],
            "asgi": {"version": "3.0"}, "http_version": "1.1", "root_path": "", "scheme": "http",
            "server": ("engine", 80), "client": ("here", 1),
        }  # fmt: skip

    async def _receive(self):
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(self.body).encode()}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await self.reads.wait()
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        self.sent.append(message.get("body", b""))

    async def until(self, condition) -> None:
        """Run the engine until it holds."""
        while not condition():
            self.engine.loop._take_in(wait=False)
            self.engine.loop._turn()
            self.engine.loop._flush()
            await asyncio.sleep(0)


def released(engine: Engine) -> bool:
    engine.loop._take_in(wait=False)  # no step since the client left
    return not engine.loop.scheduler.sequences and engine.loop.scheduler.pool.used == 0


async def test_t45_a_client_that_leaves_ends_its_request_before_the_next_step():
    client = Client(Engine(), max_tokens=100)
    await client.until(lambda: len(client.sent) > 3)
    assert client.engine.loop.scheduler.pool.used > 0
    client.left.set()
    await client.serving
    assert released(client.engine)


async def test_a_client_that_reads_slowly_gets_all_later_and_holds_up_no_other():
    engine = Engine()
    slow, other = Client(engine, max_tokens=90, seed=1), Client(engine, max_tokens=90, seed=1)
    await slow.until(lambda: len(slow.sent) > 3)
    slow.reads.clear()
    before = len(slow.sent)
    await slow.until(other.serving.done)
    assert len(slow.sent) == before
    assert not slow.serving.done()
    slow.reads.set()
    await slow.until(slow.serving.done)
    assert slow.text == other.text
    assert b"".join(slow.sent).endswith(b"data: [DONE]\n\n")
    assert len(slow.sent) < len(other.sent)  # what waited went out at once
    assert released(engine)


async def test_a_stream_that_cannot_be_written_fails_alone():
    engine = Engine()
    broken, other = Client(engine, max_tokens=90, seed=1), Client(engine, max_tokens=90, seed=1)
    await broken.until(lambda: len(broken.sent) > 3)
    broken.fails = RuntimeError("the transport is gone")
    await broken.until(other.serving.done)
    with pytest.raises(RuntimeError, match="the transport is gone"):
        await broken.serving
    assert other.text.startswith(broken.text)
    assert b"".join(other.sent).endswith(b"data: [DONE]\n\n")
    assert released(engine)
