"""What a client is told whose request found no place in the batch in time."""

import asyncio
import json

import httpx
import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.runtime.sim import SimTokenizer
from argosy_engine.server.openai.routes import OpenAiApi
from tests.kv.nodes import node, until


async def answer(engine, *, queue_timeout_s, stream):
    config = EngineConfig(model="x", served_name="m", queue_timeout_s=queue_timeout_s)
    app = OpenAiApi(config, engine.loop, SimTokenizer()).app()
    body = {"model": "m", "prompt": "one two", "max_tokens": 3, "stream": stream}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://e") as client:
        return await client.post("/v1/completions", json=body)


@pytest.fixture
async def engine():
    aio = asyncio.get_running_loop()
    with node("colocated") as started:
        deliver = started.loop._deliver
        started.loop._deliver = lambda batch: aio.call_soon_threadsafe(deliver, batch)
        yield started


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_longer_than_the_time_out_is_told_to_come_again(engine, stream):
    said = await answer(engine, queue_timeout_s=0.0, stream=stream)
    assert (said.status_code, said.headers["retry-after"]) == (503, "1")
    error = json.loads(said.text)["error"]
    assert (error["type"], error["code"]) == ("server_error", "queue_timeout")
    assert "waited too long" in error["message"]
    await until(lambda: not engine.loop.unfinished)
    assert engine.scheduler.sequences == {}
