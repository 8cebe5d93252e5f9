"""TTFT, TPOT and verdicts are what the clock says, also where an engine reports nonsense.

Only the test moves the clock, so the values are exact.
"""

import dataclasses
import json
from dataclasses import dataclass

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from tests.gateway.direct import World, direct
from tests.gateway.engines import Behaviour, Call, Engine, answer, fail

SLO = Slo(ttft_s=500.0, tpot_s=50.0)
WHOLE = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**WHOLE, "stream": True}


@dataclass
class OtherEngine(Engine):
    """vLLM or SGLang, which sends the head of a stream before it computes anything."""

    kind: str = "vllm"

    def endpoint(self, state: State = State.SERVING) -> Endpoint:
        return dataclasses.replace(super().endpoint(state), engine=self.kind)

    def pod(self) -> tuple[str, str]:
        return "server", "uvicorn"


def paced(f: World, gaps_s: tuple[float, ...], tokens: int) -> Behaviour:
    """A token after each gap; the client has read one before the clock advances again."""

    async def behave(call: Call) -> None:
        await call.begin_stream()
        for number, gap_s in enumerate(gaps_s, 1):
            f.advance(gap_s)
            await call.token("x")
            await f.client.reads('"content": "x"', number)
        await call.finish(tokens)

    return behave


async def stream(f: World, engine: Engine, gaps_s: tuple[float, ...], tokens: int) -> None:
    engine.behaviour = paced(f, gaps_s, tokens)
    await f.answered(STREAM)


@pytest.mark.parametrize(
    ("gaps_s", "tokens", "ttft_s", "tpot_s", "verdict"),
    [
        ((100, 10, 20, 30), 4, 100, 20, ("ok", "ok")),  # 60 s for 3 tokens after the first
        ((100, 10, 20, 30), 7, 100, 10, ("ok", "ok")),  # the same 60 s for 6 of them
        ((600, 10, 20, 30), 4, 600, 20, ("miss", "ok")),
        ((600, 100, 200, 300), 4, 600, 200, ("miss", "miss")),
        ((40, 60), 2, 40, 60, ("ok", "miss")),  # exchanged, both limits would be met
        ((500, 50), 2, 500, 50, ("ok", "ok")),
        ((501, 0), 2, 501, 0, ("miss", "ok")),
    ],
)
async def test_ttft_and_tpot_of_a_stream_are_what_the_clock_says(
    gaps_s, tokens, ttft_s, tpot_s, verdict
):
    engine = Engine("a")
    async with direct(engine, slo=SLO) as f:
        await stream(f, engine, gaps_s, tokens)
        assert f.count("argosy_gateway_ttft_seconds_sum") == ttft_s
        assert f.count("argosy_gateway_tpot_seconds_sum") == tpot_s
        assert f.verdicts() == {verdict: 1}


async def test_a_retry_does_not_restart_the_clock_of_a_stream():
    async def slow_fault(call: Call) -> None:
        f.advance(501)
        engine.behaviour = answer
        await fail(call)

    engine = Engine("a", slow_fault)
    async with direct(engine, slo=SLO) as f:
        await f.answered(STREAM)
        assert f.verdicts() == {("miss", "ok"): 1}


async def test_time_in_the_queue_of_the_gateway_is_in_ttft():
    a = Engine("a")
    async with direct(a, slo=SLO) as f:
        f.state.directory.put(a.endpoint(State.UNREADY))
        client = f.ask(STREAM)
        await f.until(lambda: f.state.relays)
        f.advance(29)
        f.state.directory.put(a.endpoint())
        await client.whole
        assert f.count("argosy_gateway_ttft_seconds_sum") == 29


# Engines that report what cannot be.


def slow(f: World, usage: object, *, first: bytes = b"") -> Behaviour:
    """Three tokens 100 s apart: twice as slow as the limit."""

    async def behave(call: Call) -> None:
        await call.begin_stream()
        if first:
            await call.event(first)
        for number in range(3):
            await call.token("x")
            await f.client.reads('"content": "x"', number + 1)
            f.advance(100)
        if usage is not None:
            await call.event(json.dumps({"choices": [], "usage": usage}).encode())
        await call.event(b"[DONE]")

    return behave


def counted(prompt: object, completion: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


USAGE = {
    "honest": counted(500, 3),
    "missing": None,
    "empty": {},
    "null": counted(None, None),
    "text": counted("500", "3"),
    "a list": [500, 3],
    "true": counted(500, True),
    "negative": counted(500, -3),
    "a fraction": counted(500, 3.5),
    "none": counted(500, 0),
    "one": counted(500, 1),
    "two": counted(500, 2),
    "more than the bytes of the answer": counted(500, 100_000),
    "more than fits a float": counted(500, 10**400),
    "the prompt negative": counted(-1, 3),
    "the prompt without end": counted(10**400, 3),
}
BELIEVED = {"honest": 3, "none": 0, "one": 1, "two": 2}


@pytest.mark.parametrize("name", USAGE)
async def test_no_count_of_tokens_turns_a_slow_stream_into_one_in_time(name):
    engine = Engine("a")
    async with direct(engine, slo=SLO) as f:
        engine.behaviour = slow(f, USAGE[name])
        await f.answered(STREAM)
        assert f.verdicts() == {("ok", "miss"): 1}
        assert f.count("argosy_gateway_tpot_seconds_sum") == 100
        believed = name in BELIEVED
        assert f.count("argosy_gateway_output_tokens_count") == believed
        assert f.count("argosy_gateway_output_tokens_sum") == BELIEVED.get(name, 0)
        assert f.count("argosy_gateway_prompt_tokens_sum") == (500 if believed else 0)
        assert f.count("argosy_gateway_prompt_tokens_squared_total") == (250_000 if believed else 0)


@pytest.mark.parametrize(
    "first",
    [
        json.dumps({"choices": [], "usage": counted(500, 3)}).encode(),
        b'[{"usage":{"completion_tokens":9}}]',
        b'{"usage":{"a":' + b"[" * 100_000 + b"}}",
        b'{"usage":{',
    ],
    ids=["usage before the text", "a list", "nested deeply", "no JSON"],
)
async def test_events_in_another_order_or_form_change_no_verdict(first):
    engine = Engine("a")
    async with direct(engine, slo=SLO) as f:
        engine.behaviour = slow(f, None, first=first)
        client = await f.answered(STREAM)
        assert client.text.endswith("data: [DONE]\n\n")
        assert f.verdicts() == {("ok", "miss"): 1}
        assert f.count("argosy_requests_completed_total", result="ok") == 1


def misses(f: World) -> dict[str, float]:
    """Reason → count, of those that are not 0."""
    found = {}
    for family in f.state.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "argosy_slo_misses_total" and sample.value:
                found[sample.labels["reason"]] = sample.value
    return found


@pytest.mark.parametrize(
    ("gaps_s", "tokens", "why"),
    [((600, 10), 2, "prompt"), ((100, 60, 60), 3, "decode"), ((600, 100), 2, "prompt")],
)
async def test_a_miss_is_counted_once_with_its_reason(gaps_s, tokens, why):
    engine = Engine("a")
    async with direct(engine, slo=SLO) as f:
        await stream(f, engine, gaps_s, tokens)
        assert misses(f) == {why: 1}


async def answer_late(call: Call, f: World) -> None:
    await call.begin_stream()
    await call.event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
    await f.until(lambda: f.client is not None and f.client.status == 200)
    f.advance(7.0)
    await call.token("x")
    await call.finish(1)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_the_head_of_another_engines_stream_is_not_its_first_token(kind: str) -> None:
    async def decode(call: Call) -> None:
        await answer_late(call, f)

    head = OtherEngine("a", decode, Role.DECODE if kind == "sglang" else Role.COLOCATED, kind=kind)
    prefills = [OtherEngine("p", answer, Role.PREFILL, kind=kind)] if kind == "sglang" else []
    async with direct(head, *prefills, slo=SLO) as f:
        for _ in range(20):
            await f.answered(STREAM)
        assert f.state.pace.tokens_per_s() == pytest.approx(1 / 7, rel=0.1)
