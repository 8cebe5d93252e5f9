"""What a stream of server-sent events holds, event by event."""

import asyncio
import json

import pytest

from tests.engine.server.spelling import EOS, Engine, SpellingRunner, events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def saying(text: str, monkeypatch) -> Engine:
    """An engine that spells `text`, a byte a token, and ends."""
    said = [*text.encode(), EOS]

    def drawn(_runner, chunk):
        return said[min(len(chunk.tokens) - chunk.n_prompt, len(said) - 1)]

    monkeypatch.setattr(SpellingRunner, "_drawn", drawn)
    return Engine()


def chat(**more) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **more}


async def chunks(engine: Engine, **more) -> list[dict]:
    answer = await engine.post(CHAT, chat(**more))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = events_of(answer.text)
    assert done.data == "[DONE]"
    return [event.chunk for event in events]


async def test_t45_role_then_content_then_reason_then_usage_then_done(monkeypatch):
    engine = saying("one", monkeypatch)
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


async def test_t45_characters_of_several_tokens_arrive_whole(monkeypatch):
    said = "é🙂 à la 🙂"
    found = await chunks(saying(said, monkeypatch))
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found]
    assert "".join(parts) == said
    assert [part for part in parts if part] == list(said)


@pytest.mark.parametrize("at", range(4))
async def test_t45_of_a_stop_over_several_tokens_no_part_is_sent(monkeypatch, at):
    found = await chunks(saying("x" * at + "stop it", monkeypatch), stop=["stop"])
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found]
    assert "".join(parts) == "x" * at
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


async def test_t45_what_only_begins_like_a_stop_is_sent(monkeypatch):
    said = "stol then sto"
    found = await chunks(saying(said, monkeypatch), stop=["stop"])
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found]
    assert "".join(parts) == said


async def test_t45_a_client_that_leaves_ends_its_request_before_the_next_step():
    engine = Engine()
    body = {"model": "m", "prompt": "a", "stream": True, "max_tokens": 100, "ignore_eos": True}
    left, events = asyncio.Event(), []

    async def receive():
        if not events:
            events.append("body")
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        events.append(message["type"])

    scope = {
        "type": "http", "method": "POST", "path": COMPLETIONS, "raw_path": COMPLETIONS.encode(),
        "query_string": b"", "headers": [], "asgi": {"version": "3.0"}, "http_version": "1.1",
        "root_path": "", "scheme": "http", "server": ("engine", 80), "client": ("here", 1),
    }  # fmt: skip
    serving = asyncio.ensure_future(engine.app(scope, receive, send))
    while events.count("http.response.body") < 3:
        engine.loop._take_in(wait=False)
        engine.loop._turn()
        engine.loop._flush()
        await asyncio.sleep(0)
    assert engine.loop.scheduler.pool.used > 0
    left.set()
    await serving
    engine.loop._take_in(wait=False)  # no step since the client left
    assert not engine.loop.scheduler.sequences
    assert engine.loop.scheduler.pool.used == 0
