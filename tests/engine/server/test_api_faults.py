"""What a client sees of a fault inside the HTTP side."""

from types import SimpleNamespace

import httpx

from argosy_engine.config import EngineConfig
from argosy_engine.server.openai.routes import OpenAiApi


class BrokenTokenizer:
    vocab_size = 10

    def fewest_tokens(self, text):
        return 0

    def encode(self, text, **_):
        raise LookupError(text)


async def test_an_unforeseen_fault_is_an_openai_error_too():
    loop = SimpleNamespace(draining=False, scheduler=SimpleNamespace(max_model_len=100))
    config = EngineConfig(model="x", served_name="m", pod_name="pod-a")
    api = OpenAiApi(config, loop, BrokenTokenizer())
    transport = httpx.ASGITransport(api.app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        response = await client.post("/v1/completions", json={"model": "m", "prompt": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-argosy-pod"] == "pod-a"
    assert api.active == 0
