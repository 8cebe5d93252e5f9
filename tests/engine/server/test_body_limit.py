"""How large a request body may be, and who says so."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from argosy_engine.cli import parse
from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.server.openai.text_threads import Bodies

WORDS = ["--model", "sim:opt-13b-a100", "--served-name", "m"]


def api(config):
    loop = SimpleNamespace(
        draining=True,
        runner=SimpleNamespace(grammars=None),
        scheduler=SimpleNamespace(max_model_len=100),
    )
    transport = httpx.ASGITransport(OpenAiApi(config, loop, None).app())
    return httpx.AsyncClient(transport=transport, base_url="http://engine")


def test_the_engine_takes_8_mib_unless_it_is_told_otherwise():
    assert parse(WORDS).max_body_bytes == 8 << 20
    assert parse([*WORDS, "--max-body-bytes", "4096"]).max_body_bytes == 4096
    with pytest.raises(LoadError, match="--max-body-bytes must be greater than 0"):
        parse([*WORDS, "--max-body-bytes", "0"])


async def test_a_body_beyond_the_limit_is_answered_413_with_the_limit():
    config = EngineConfig(model="x", served_name="m", max_body_bytes=4096)
    async with api(config) as client:
        refused = await client.post("/v1/completions", content=b" " * 9000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    assert "4096 bytes" in refused.json()["error"]["message"]


def stalled(size):
    """A client that sends so many bytes and never ends."""
    parts = [b" " * size]

    async def receive():
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    return receive


async def test_bodies_that_never_end_hold_a_bounded_number_of_bytes():
    reader = Bodies(100_000)
    begun = [asyncio.ensure_future(reader.read(stalled(90_000))) for _ in range(12)]
    refused, _ = await asyncio.wait(begun, timeout=20, return_when="FIRST_COMPLETED")
    assert {task.exception().status for task in refused} == {429}
    assert len(refused) == 12 - 8
    short = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive():
        return short.pop()

    assert await reader.read(receive) == b"{}"  # the others do not keep out what is short
    for task in begun:
        task.cancel()
