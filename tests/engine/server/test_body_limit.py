"""How large a request body may be, and who says so."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from argosy_engine.cli import parse
from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.server.openai.text_threads import Bodies, long_bytes

WORDS = ["--model", "sim:opt-13b-a100", "--served-name", "m"]
USAGE = b',"stream":true,"stream_options":{"include_usage":true}'


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


async def test_what_the_gateway_adds_to_a_body_of_the_limit_is_not_too_large():
    config = EngineConfig(model="x", served_name="m", max_body_bytes=4096)
    async with api(config) as client:
        answer = await client.post("/v1/completions", content=b" " * 4096 + USAGE)
    assert answer.json()["error"]["code"] == "draining"  # the body was read to its end


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


async def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr("argosy_engine.server.openai.text_threads._WHOLE_WITHIN_S", 0.01)
    with pytest.raises(ApiError) as given_up:
        await Bodies(100_000).read(stalled(10))
    assert (given_up.value.status, given_up.value.code) == (408, "body_timeout")


def test_a_large_limit_does_not_multiply_what_may_wait():
    assert long_bytes(8 << 20) == 64 << 20
    assert long_bytes(256 << 20) == 256 << 20
