"""The paths of the engine's API: tokens, version, and what it does not have."""

import json

import httpx
import pytest

from argosy_engine.server.openai.request import parse_chat, tokenize
from argosy_engine.server.openai.routes import BEYOND
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from tests.engine.server.spelling import Engine

SAID = "so it goes é"
HI = [{"role": "user", "content": "hi"}]


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


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("/v1/models/", "/v1/models"),
        ("/health/", "/health"),
        ("/ping", "/health"),
        ("/ping/", "/health"),
        ("/v1/nothing/", "/v1/nothing"),
    ],
)
async def test_a_trailing_slash_means_the_same_path_and_is_no_redirect(path, same):
    """A redirect names a scheme and a host, which behind a proxy are not the client's."""
    engine = Engine()
    transport = httpx.ASGITransport(engine.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        found, other = await client.get(path), await client.get(same)
    assert (found.status_code, found.content) == (other.status_code, other.content)
    assert not found.has_redirect_location
    body = {"model": "m", "prompt": "hi", "max_tokens": 1}
    assert (await engine.post("/v1/completions/", body)).status_code == 200


async def test_a_chats_tokens_are_those_of_its_template():
    engine, messages = Engine(), [{"role": "user", "content": "hi"}]
    body = {"model": "m", "messages": messages, "return_token_strs": True}
    found = (await engine.post("/tokenize", body)).json()
    assert "".join(found["token_strs"]) == "user: hi\n"
    usage = (await engine.post("/v1/chat/completions", {**body, "max_tokens": 1})).json()["usage"]
    assert usage["prompt_tokens"] == found["count"]


def test_a_chats_tools_are_shown_to_its_template():
    class Tokenizer(ByteTokenizer):
        def chat_text(self, messages, *, tools=(), **options):
            return super().chat_text(messages, **options) + json.dumps(tools)

    tools = [{"type": "function", "function": {"name": "time"}}]
    body = {"model": "m", "messages": HI, "tools": tools}
    known = {"served_name": "m", "max_model_len": 1000}
    told = json.loads(tokenize(body, Tokenizer(256), **known))["tokens"]
    assert bytes(told) == b"user: hi\n" + json.dumps(tools).encode()
    assert told == parse_chat({**body, "tool_choice": "none"}, Tokenizer(256), **known).token_ids


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"model": "x", "prompt": "a"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "x" * 16_385}, 400, "prompt"),
        ("/tokenize", {"messages": HI, "tools": "x"}, 400, "tools"),
        (
            "/tokenize",
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            400,
            "continue_final_message",
        ),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"prompt": "a", "truncate_prompt_tokens": 1}, 400, "truncate_prompt_tokens"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [256]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1] * 161}, 400, "tokens"),
    ],
)
async def test_what_has_no_tokens_is_named(path, body, status, param):
    response = await Engine().post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("path", BEYOND)
async def test_a_path_that_is_out_of_scope_says_what_there_is_instead(path):
    response = await Engine().post(path, {"model": "m", "input": "a"})
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message == f"{path}: {BEYOND[path]}"
    assert ": " in BEYOND[path]


async def test_other_paths_are_said_to_be_unknown():
    response = await Engine().post("/v1/nothing", {})
    assert response.status_code == 404
    assert "/v1/completions" in response.json()["error"]["message"]


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


async def test_the_version_is_read_only():
    transport = httpx.ASGITransport(Engine().app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert (await client.get("/version")).status_code == 200
        assert (await client.post("/version")).status_code == 405


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_content_that_is_no_text_is_refused_by_its_field(kind):
    content = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "x"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    response = await Engine().post("/v1/chat/completions", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[0].content[1]"
    assert "only text is read" in error["message"]
    assert "SCOPE.md" in error["message"]
