"""TPOT of an answer with several choices is that of its longest one, not of all tokens together.

Only the test moves the clock, so the values are exact.
"""

import json

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.wire.openai import read_completion
from tests.gateway.direct import World, direct
from tests.gateway.engines import Behaviour, Call, Engine

SLO = Slo(ttft_s=500.0, tpot_s=50.0)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2}
TPOT = "argosy_gateway_tpot_seconds_sum"


def chunk(index: int, text: str) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
    return json.dumps({"created": 9, "choices": [choice]}).encode()


def side_by_side(f: World, steps: list[tuple[int, ...]], gap_s: float) -> Behaviour:
    """In each step the choices named get a token; each step takes `gap_s`."""

    async def behave(call: Call) -> None:
        await call.begin_stream()
        count = 0
        for step in steps:
            f.advance(gap_s)
            for index in step:
                count += 1
                await call.event(chunk(index, "x"))
            await f.client.reads('"content": "x"', count)
        await call.finish(count)

    return behave


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 1)] * 4,
        [(0, 1), (0, 1), (1,), (1,)],  # the first choice ends early
        [(0,), (0, 1), (0, 1), (0, 1)],  # the second one shares the prompt, and begins later
    ],
)
async def test_a_stream_of_two_choices_has_the_pace_of_one(steps):
    engine = Engine("a")
    async with direct(engine, slo=SLO) as f:
        engine.behaviour = side_by_side(f, steps, 60.0)
        await f.answered({**CHAT, "stream": True})
        assert f.count("argosy_gateway_ttft_seconds_sum") == 60
        assert f.count(TPOT) == 60
        assert f.verdicts() == {("ok", "miss"): 1}
        assert f.count("argosy_gateway_output_tokens_sum") == sum(map(len, steps))


@pytest.mark.parametrize(
    ("asked", "texts", "tokens", "tpot_s"),
    [
        ({}, ["x" * 30, "x" * 30], 22, 90 / 10),
        ({}, ["x" * 30, "x" * 10], 40, 90 / 29),
        ({"best_of": 4}, ["x" * 30, "x" * 30], 44, 90 / 10),
        ({"n": 1, "best_of": 2}, ["x" * 30], 22, 90 / 10),
        ({"prompt": ["a", "b"], "n": 1}, ["x" * 30, "x" * 30], 22, 90 / 10),
        ({"n": None}, ["x" * 30], 11, 90 / 10),
        ({"n": 2}, ["", ""], 22, 90 / 10),
    ],
)
async def test_a_whole_answer_has_the_pace_of_its_longest_choice(asked, texts, tokens, tpot_s):
    async def behave(call: Call) -> None:
        f.advance(100.0)
        choices = [{"index": i, "text": text} for i, text in enumerate(texts)]
        usage = {"prompt_tokens": 7, "completion_tokens": tokens}
        await call.status(200, {"choices": choices, "usage": usage}, x_argosy_ttft_ms="10000")

    body = {"model": "m", "prompt": "hi", "n": 2, **asked}
    async with direct(Engine("a", behave), slo=SLO) as f:
        await f.answered(body, "/v1/completions")
        assert f.count(TPOT) == pytest.approx(tpot_s)
        assert f.count("argosy_gateway_output_tokens_sum") == tokens


@pytest.mark.parametrize(
    ("more", "sequences"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": 2, "best_of": 5}, 5),
        ({"n": None, "best_of": None}, 1),
        ({"n": 2, "prompt": ["a", "b"]}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [1.0, 2, 3]}, 1),
        ({"n": 3.0, "best_of": 5.0}, 5),
        ({"n": 2.5}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
        ({"n": "three"}, 1),  # the engine refuses these
        ({"n": -1}, 1),
        ({"n": True}, 1),
    ],
)
def test_sequences_are_counted_as_the_engine_will(more, sequences):
    body = json.dumps({"model": "m", "prompt": "a", **more}).encode()
    assert read_completion("/v1/completions", body, served_names=("m",)).sequences == sequences
