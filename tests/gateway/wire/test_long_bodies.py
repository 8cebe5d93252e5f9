"""Long bodies delay no other request, and reach the engine unchanged."""

import asyncio
import json
import threading

import httpx
import pytest

from argosy_gateway.server import app
from argosy_gateway.wire.openai import read_completion
from tests.gateway.engines import Engine, front

PATH = "/v1/completions"
PATIENCE_S = 10


async def test_others_are_answered_while_a_long_body_is_read(monkeypatch):
    started, go = threading.Event(), threading.Event()

    def held(path, body, **more):
        if len(body) > 1 << 20:
            started.set()
            assert go.wait(PATIENCE_S)
        return read_completion(path, body, **more)

    monkeypatch.setattr(app, "read_completion", held)
    async with (
        front(Engine("a")) as f,
        httpx.AsyncClient(base_url=f.url, verify=False, timeout=60) as client,
    ):
        body = {"model": "m", "prompt": [5] * 800_000}
        long = asyncio.ensure_future(client.post(PATH, json=body))
        assert await asyncio.to_thread(started.wait, PATIENCE_S)
        models = await client.get("/v1/models")
        assert not long.done()
        go.set()
        assert ((await long).status_code, models.status_code) == (200, 200)


@pytest.mark.parametrize("end", [b"", b" \r\n\t"])
def test_a_streamed_body_is_sent_on_unchanged_but_for_include_usage(end):
    raw = b'{ "model": "m", "prompt": "\\ud83d", "stream": true,\n "top_p": 1e0, "seed": 0}'
    request = read_completion(PATH, raw + end, served_names=("m",))
    assert request.body == raw[:-1] + b',"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize("seed", [{}, {"seed": None}])
def test_a_stream_without_a_seed_gets_one(seed):
    body = json.dumps({"model": "m", "prompt": "a", "stream": True, **seed}).encode()
    first, second = (read_completion(PATH, body, served_names=("m",)).seed for _ in range(2))
    assert first is not None
    assert 0 <= first < 1 << 31
    assert first != second


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_body_in_another_encoding_is_sent_on_in_utf_8(encoding):
    body = {"model": "m", "prompt": "é", "stream": True, "seed": 7}
    request = read_completion(
        PATH, json.dumps(body, ensure_ascii=False).encode(encoding), served_names=("m",)
    )
    assert json.loads(request.body.decode()) == {**body, "stream_options": {"include_usage": True}}
