"""What a client sees of a fault inside the HTTP side."""

import json
from types import SimpleNamespace

import httpx
import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.core.limits import Refusal
from argosy_engine.server.openai.errors import draining_error, to_api_error
from argosy_engine.server.openai.routes import OpenAiApi


class BrokenTokenizer:
    vocab_size = 10

    def fewest_tokens(self, text):
        return 0

    def encode(self, text, **_):
        raise LookupError(text)


async def test_an_unforeseen_fault_is_an_openai_error_too():
    loop = SimpleNamespace(
        draining=False,
        runner=SimpleNamespace(grammars=None),
        scheduler=SimpleNamespace(max_model_len=100),
    )
    config = EngineConfig(model="x", served_name="m", pod_name="pod-a")
    api = OpenAiApi(config, loop, BrokenTokenizer())
    transport = httpx.ASGITransport(api.app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        response = await client.post("/v1/completions", json={"model": "m", "prompt": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-argosy-pod"] == "pod-a"
    assert api.active == 0


DRAINS = (503, "server_error", None, "draining", {"x-argosy-draining": "1", "retry-after": "1"})


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("queue_full", (429, "rate_limit_error", None, "queue_full", {"retry-after": "1"})),
        ("draining", DRAINS),
        (
            "context_length_exceeded",
            (400, "invalid_request_error", "prompt", "context_length_exceeded", {}),
        ),
    ],
)
def test_a_refusal_of_the_scheduler_is_a_whole_openai_error(code, answer):
    error = to_api_error(Refusal(code, "because"), "prompt")
    said = json.loads(error.body())["error"]
    assert said["message"] == "because"
    assert (error.status, said["type"], said["param"], said["code"], error.headers) == answer


def test_an_engine_that_drains_says_to_ask_another_one():
    error = draining_error()
    said = json.loads(error.body())["error"]
    assert said["message"] == "this engine is draining: ask another one"
    assert (error.status, said["type"], said["param"], said["code"], error.headers) == DRAINS
