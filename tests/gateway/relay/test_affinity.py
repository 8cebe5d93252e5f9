"""Strategies with affinity in a whole gateway: real requests teach them, and real answers."""

import pytest

from tests.gateway.direct import direct
from tests.gateway.engines import Engine

PATH = "/v1/completions"


def prompt(number, end=""):
    return {"model": "m", "prompt": f"{number:09d} " * 200 + end}


def finding(share):
    """An engine that finds this share of each prompt in its cache; 500 tokens are a prompt."""

    async def behaviour(call):
        details = {"cached_tokens": int(500 * share)}
        usage = {"prompt_tokens": 500, "completion_tokens": 3, "prompt_tokens_details": details}
        await call.status(200, {"choices": [{"text": "one two three"}], "usage": usage})

    return behaviour


def homes(engines):
    """Engines by the prompts that they were sent."""
    found = {}
    for engine in engines:
        for call in engine.calls:
            found.setdefault(call.body["prompt"][:9], set()).add(engine.name)
    return found


@pytest.mark.parametrize("strategy", ["kvAware", "prefixHash"])
async def test_prompts_that_begin_alike_reach_one_engine_and_others_spread(strategy):
    engines = [Engine(name, finding(0.9)) for name in "abcd"]
    async with direct(*engines, strategy=strategy) as gateway:
        for turn in range(3):
            for number in range(12):
                answer = await gateway.answered(prompt(number, f"turn {turn}"), PATH)
                assert answer.status == 200
    assert all(len(names) == 1 for names in homes(engines).values())
    assert sum(bool(engine.calls) for engine in engines) >= 3


async def test_the_engines_cached_tokens_correct_what_a_cache_is_taken_to_hold():
    engine = Engine("a", finding(0.0))
    async with direct(engine, strategy="kvAware") as gateway:
        for number in (0, *range(1, 41), 0):  # 20,000 tokens lie between
            await gateway.answered(prompt(number), PATH)
        cache = gateway.state.strategy.caches.by_pod["a"]
        assert 15_000 < cache.holds < 25_000
