"""A strategy sees the request: registered here, used by the real relay."""

import hashlib

import httpx
import pytest

from argosy_gateway.routing.roster import Route
from argosy_gateway.routing.strategies import STRATEGIES
from tests.gateway.engines import Engine, front

PATHS = ("/v1/completions", "/v1/chat/completions")


class ByPrefix:
    """The head is chosen by a hash of the prompt's first 64 bytes; it keeps what it was given."""

    def __init__(self, rng):
        self.seen = []

    def choose(self, request, groups, view):
        self.seen.append((request, {uid: load.sequences for uid, load in view.loads.items()}))
        heads = sorted((pod for group in groups for pod in group.heads), key=lambda pod: pod.name)
        if not heads:
            return None
        digest = hashlib.blake2b(request.prompt_start[:64], digest_size=8).digest()
        return Route(heads[int.from_bytes(digest, "big") % len(heads)])


@pytest.fixture
def by_prefix(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "byPrefix", ByPrefix)
    return {"strategy": "byPrefix"}


def body(prompt, path, **more):
    asked = {"prompt": prompt} if path == PATHS[0] else {"messages": [{"content": prompt}]}
    return {"model": "m", **asked, **more}


@pytest.mark.parametrize("path", PATHS)
async def test_prompts_with_a_common_start_go_to_one_pod_and_others_spread(by_prefix, path):
    engines = [Engine(name) for name in "abcd"]
    async with front(*engines, **by_prefix) as f, httpx.AsyncClient(base_url=f.url) as c:
        for conversation in range(24):
            start = f"conversation {conversation}: " + "x" * 64
            for turn in range(2):
                answer = await c.post(path, json=body(f"{start} turn {turn}", path))
                assert answer.status_code == 200
            calls = [(e.name, call.body) for e in engines for call in e.calls]
            last = [name for name, sent in calls if start in str(sent)]
            assert len(last) == 2
            assert len(set(last)) == 1
    assert all(engine.calls for engine in engines)


async def test_what_a_strategy_knows_of_a_request_is_what_the_client_sent(by_prefix):
    async with front(Engine("a"), **by_prefix) as f, httpx.AsyncClient(base_url=f.url) as c:
        sent = {"stream": True, "prompt_cache_key": "session-7"}
        headers = {"x-request-id": "abc"}
        await c.post(PATHS[1], json=body("é" * 2000, PATHS[1], **sent), headers=headers)
        await c.post(PATHS[0], json=body([11, 12, 13], PATHS[0], prompt_cache_key=7))
        (chat, loads), (tokens, _) = f.state.strategy.seen
    assert (chat.request_id, chat.model, chat.stream) == ("abc", "m", True)
    assert chat.cache_key == "session-7"
    assert chat.prompt_tokens == 500
    assert chat.prompt_start == "é".encode() * 1024
    assert loads == {}
    assert (tokens.prompt_start, tokens.stream, tokens.cache_key) == (b"11 12 13", False, None)


async def test_every_attempt_of_a_request_is_chosen_with_the_same_facts(by_prefix):
    async def fail_once(call):
        engine.behaviour = answer_whole
        await call.status(500, {"error": {}})

    async def answer_whole(call):
        await call.status(200, {"choices": []})

    engine = Engine("a", fail_once)
    async with front(engine, **by_prefix) as f, httpx.AsyncClient(base_url=f.url) as c:
        assert (await c.post(PATHS[0], json=body("hello", PATHS[0]))).status_code == 200
        first, second = (request for request, _ in f.state.strategy.seen)
    assert first == second
