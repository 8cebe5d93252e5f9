"""What failing pods cost: their share of the traffic, retries, engines broken by one request."""

import asyncio

import httpx
import pytest

from argosy_gateway.config import Limits
from tests.gateway.engines import Engine, answer, close_early, fail, front

pytestmark = pytest.mark.slow

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"


def client(f):
    return httpx.AsyncClient(base_url=f.url, timeout=30, verify=False)


async def work(call):
    """A healthy engine is slower than one that fails at once, which would attract the traffic."""
    await asyncio.sleep(0.01)
    await answer(call)


async def full(call):
    await call.status(429, {"error": {"message": "full"}}, retry_after="2")


async def closed_loop(f, body, *, clients, requests):
    """The answers' texts and status codes of so many requests by so many clients."""
    left, answers = iter(range(requests)), []

    async def one(c):
        for _ in left:
            response = await c.post(PATH, json=body)
            answers.append((response.status_code, response.text))

    async with client(f) as c:
        await asyncio.gather(*(one(c) for _ in range(clients)))
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_three_of_six_pods_that_answer_500_at_once_get_few_of_the_attempts(body):
    failing = [Engine(f"failing-{i}", fail) for i in range(3)]
    healthy = [Engine(f"healthy-{i}", work) for i in range(3)]
    async with front(*failing, *healthy) as f:
        answers = await closed_loop(f, body, clients=9, requests=400)
    drawn = sum(len(e.calls) for e in failing)
    assert drawn > 0
    assert drawn / (drawn + sum(len(e.calls) for e in healthy)) < 0.15
    assert sum(status == 200 for status, _ in answers) >= 380


@pytest.mark.parametrize("fault", [close_early, fail])
async def test_a_request_that_breaks_its_engine_is_tried_on_two_engines_at_most(fault):
    engines = [Engine(name, fault) for name in "abcd"]
    async with front(*engines) as f, client(f) as c:
        assert (await c.post(PATH, json=CHAT)).status_code >= 500
        assert sorted(len(e.calls) for e in engines) == [0, 0, 1, 1]


async def test_retries_beyond_their_budget_are_not_made():
    engines = [Engine("a", fail), Engine("b", fail)]
    async with front(*engines, limits=Limits(retry_reserve=3)) as f, client(f) as c:
        for _ in range(21):  # the first finds the budget full and adds nothing to it
            assert (await c.post(PATH, json=CHAT)).status_code == 500
        calls = sum(len(e.calls) for e in engines)
        assert calls == 21 + 3 + 2, "the reserve, and a tenth of the requests"
        assert f.count("argosy_gateway_retries_refused_total") == 16
