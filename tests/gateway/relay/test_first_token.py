"""Whether engines may hold first tokens, until when, and how such requests count."""

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Role
from tests.gateway.direct import direct
from tests.gateway.engines import Engine

LIMITS = Slo(ttft_s=0.4, tpot_s=0.05)
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2}
WHOLE = {"choices": [{"message": {"content": "one two"}}], "usage": USAGE}
HEADER = "x-argosy-first-token-ms"


def pair(behaviour=None):
    decode = Engine("d", behaviour, Role.DECODE) if behaviour else Engine("d", role=Role.DECODE)
    return decode, Engine("p", role=Role.PREFILL)


def at_once(gateway):
    """(ttft, tpot) → count of the verdicts as if no token had been held."""
    name, met = "argosy_slo_requests_at_once_total", ("ok", "miss")
    labels = {"role_mode": "disaggregated", "class": "default"}
    counts = {(a, b): gateway.count(name, **labels, ttft=a, tpot=b) for a in met for b in met}
    return {verdict: count for verdict, count in counts.items() if count}


def gateway_with(decode, prefill, **settings):
    return direct(decode, prefill, **{"slo": LIMITS, "hold_first_token": True, **settings})


async def test_a_decode_engine_may_hold_it_for_nine_tenths_of_the_limit():
    engines = pair()
    async with gateway_with(*engines) as gateway:
        await gateway.answered(ASK)
        (call,) = engines[0].calls
        assert call.headers[HEADER] == "360.0"


async def test_both_verdicts_are_counted():
    async def held(call):
        gateway.advance(0.14)
        headers = {"x_argosy_ttft_ms": "100", "x_argosy_first_token_held_ms": "50"}
        await call.status(200, WHOLE, **headers)

    async with gateway_with(*pair(held)) as gateway:
        answer = await gateway.answered(ASK)
        assert "x-argosy-first-token-held-ms" not in answer.headers
        assert gateway.verdicts() == {("ok", "ok"): 1}
        assert at_once(gateway) == {("ok", "miss"): 1}


@pytest.mark.parametrize(("held_ms", "took_s"), [("400", 0.1), (None, 0.5)])
async def test_a_held_token_does_not_make_its_prefill_pod_look_slow(held_ms, took_s):
    async def late(call):
        gateway.advance(0.5)
        headers = {"x_argosy_ttft_ms": "500", "x_argosy_prefill_pod": "p"}
        if held_ms:
            headers["x_argosy_first_token_held_ms"] = held_ms
        await call.status(200, {"choices": []}, **headers)

    prompt = {"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}
    async with gateway_with(*pair(late)) as gateway:
        for _ in range(20):  # as many as the pace is believed from
            await gateway.answered(prompt)
        rate = gateway.state.pace.tokens_per_s()
        assert took_s * rate == pytest.approx(500, rel=0.1)  # 2,000 characters
