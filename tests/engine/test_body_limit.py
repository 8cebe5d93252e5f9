"""How large a request body may be, and who says so."""

from types import SimpleNamespace

import httpx
import pytest

from argosy_engine.cli import parse
from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.server.api import OpenAiApi

WORDS = ["--model", "sim:opt-13b-a100", "--served-name", "m"]
USAGE = b',"stream":true,"stream_options":{"include_usage":true}'


def api(config):
    loop = SimpleNamespace(draining=True, scheduler=SimpleNamespace(max_model_len=100))
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
