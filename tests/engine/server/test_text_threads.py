"""Long prompts are tokenised beside the event loop, one at a time, or refused."""

import asyncio
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.errors import ClientGoneError
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.server.openai.text_threads import TextThreads, while_connected

LONG = "a" * 90_000
PATIENCE_S = 20


class HeldTokenizer:
    """Every prompt is too long; a long text is not tokenised before `go` is set."""

    vocab_size = 10

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()

    def fewest_tokens(self, text):
        return 0

    def encode(self, text, **_):
        if len(text) >= len(LONG):
            self.started.set()
            assert self.go.wait(PATIENCE_S)
        return [1] * 1000


@asynccontextmanager
async def engine(tokenizer):
    runner = SimpleNamespace(grammars=None)
    scheduler = SimpleNamespace(max_model_len=100)
    loop = SimpleNamespace(alive=True, draining=False, scheduler=scheduler, runner=runner)
    config = EngineConfig(model="x", served_name="m", max_body_bytes=100_000)
    api = OpenAiApi(config, loop, tokenizer)
    transport = httpx.ASGITransport(api.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        try:
            yield client
        finally:
            tokenizer.go.set()
            api.close()


def ask(client, prompt):
    return client.post("/v1/completions", json={"model": "m", "prompt": prompt}, timeout=60)


async def test_others_are_answered_while_a_long_prompt_is_tokenised():
    tokenizer = HeldTokenizer()
    async with engine(tokenizer) as client:
        long = asyncio.ensure_future(ask(client, LONG))
        assert await asyncio.to_thread(tokenizer.started.wait, PATIENCE_S)
        health = await client.get("/health")
        short = await ask(client, "b")
        assert not long.done()
        tokenizer.go.set()
        assert (await long).json()["error"]["code"] == "context_length_exceeded"
    assert (health.status_code, short.status_code) == (200, 400)


async def test_long_prompts_beyond_what_may_wait_are_answered_429():
    tokenizer = HeldTokenizer()
    async with engine(tokenizer) as client:
        asked = [asyncio.ensure_future(ask(client, LONG)) for _ in range(12)]
        done, waiting = await asyncio.wait(asked, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
        first = done.pop().result()
        assert waiting
        tokenizer.go.set()
        statuses = [(await answer).status_code for answer in asked]
    assert (first.status_code, first.headers["retry-after"]) == (429, "1")
    assert first.json()["error"]["code"] == "queue_full"
    assert (statuses.count(400), statuses.count(429)) == (8, 4)


async def test_what_waits_for_a_thread_is_given_up_when_its_client_leaves():
    threads, go, ran = TextThreads(max_queue=4, max_body_bytes=1000), threading.Event(), []
    first = asyncio.ensure_future(threads.run(1, go.wait))

    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGoneError):
        await while_connected(threads.run(1, lambda: ran.append("late")), receive)
    while len(asyncio.all_tasks()) > 2:  # noqa: ASYNC110, until its cancelled tasks ended
        await asyncio.sleep(0)
    go.set()
    assert await first
    await threads.run(1, lambda: ran.append("next"))
    assert ran == ["next"]
    threads.close()
