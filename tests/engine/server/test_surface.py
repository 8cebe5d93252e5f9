"""The paths of the engine's API: tokens, version, and what it does not have."""

import httpx
import pytest

from argosy_engine.server.openai.routes import BEYOND
from tests.engine.server.spelling import Engine

SAID = "so it goes é"


async def test_a_prompts_tokens_are_those_that_a_completion_counts():
    engine = Engine()
    found = (await engine.post("/tokenize", {"model": "m", "prompt": SAID})).json()
    assert found["tokens"] == list(SAID.encode())
    assert (found["count"], found["max_model_len"]) == (len(SAID.encode()), 160)
    assert found["token_strs"] is None
    body = {"model": "m", "prompt": SAID, "max_tokens": 1}
    usage = (await engine.post("/v1/completions", body)).json()["usage"]
    assert usage["prompt_tokens"] == found["count"]
    back = await engine.post("/detokenize", {"model": "m", "tokens": found["tokens"]})
    assert back.json() == {"prompt": SAID}


async def test_clients_are_told_of_the_tokenizer():
    """tests/engine_torch/test_tokenizer.py has that of a model's folder."""
    transport = httpx.ASGITransport(Engine().app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        found = await client.get("/tokenizer_info")
    assert found.status_code == 200
    assert found.json() == {
        "tokenizer_class": "ByteTokenizer",
        "eos_token": None,
        "chat_template": None,
    }


async def test_a_chats_tokens_are_those_of_its_template():
    engine, messages = Engine(), [{"role": "user", "content": "hi"}]
    body = {"model": "m", "messages": messages, "return_token_strs": True}
    found = (await engine.post("/tokenize", body)).json()
    assert "".join(found["token_strs"]) == "user: hi\n"
    usage = (await engine.post("/v1/chat/completions", {**body, "max_tokens": 1})).json()["usage"]
    assert usage["prompt_tokens"] == found["count"]


@pytest.mark.parametrize("path", BEYOND)
async def test_a_path_that_is_out_of_scope_says_what_there_is_instead(path):
    response = await Engine().post(path, {"model": "m", "input": "a"})
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message == f"{path}: {BEYOND[path]}"
    assert ": " in BEYOND[path]


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        f'{{"model": "m", "prompt": {NESTED}}}'.encode(),
        f'{{"model": "m", "prompt": "a", "logit_bias": {NESTED}}}'.encode(),
        b'{"model": "m", "prompt": "a", "temperature": NaN}',
        b'{"model": "m", "prompt": "a", "top_p": Infinity}',
        b'{"model": "m", "prompt": "a", "n": 10000}',
        b'{"model": "m", "prompt": "a", "best_of": 10000}',
        b'{"model": "m", "prompt": "a", "stop": [' + b'"x",' * 99 + b'"x"]}',
        b'{"model": "m", "prompt": "a", "max_tokens": 1.5}',
        b'{"model": "m", "prompt": ["a", {"b": 1}]}',
    ],
    ids=lambda content: content[:50].decode(),
)
async def test_after_bad_input_the_pool_is_empty_and_the_next_request_is_served(content):
    engine = Engine()
    response = await engine.post("/v1/completions", content)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert engine.loop.scheduler.pool.used == 0
    assert not engine.loop.scheduler.sequences
    good = await engine.post("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 2})
    assert good.status_code == 200
