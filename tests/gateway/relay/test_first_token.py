"""Whether engines may hold first tokens, until when, and how such requests count."""

import pytest

from argosy_gateway.config import Slo, SloClass
from argosy_gateway.pods.endpoints import Role
from tests.gateway.direct import direct
from tests.gateway.engines import Engine, answer

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


@pytest.mark.parametrize(("waited_s", "left"), [(0.1, "260.0"), (0.35, "10.0"), (0.36, None)])
async def test_what_a_request_has_waited_is_left_out(waited_s, left):
    async def busy(call):
        if call.headers["x-argosy-attempt"] != "1":
            await answer(call)
            return
        gateway.advance(waited_s)
        await call.status(503, {"error": {"code": "queue_full"}})

    one, other = (Engine(name, busy, Role.DECODE) for name in ("d1", "d2"))
    prefill = Engine("p", role=Role.PREFILL)
    async with direct(one, other, prefill, slo=LIMITS, hold_first_token=True) as gateway:
        await gateway.answered(ASK)
        first, second = sorted(one.calls + other.calls, key=lambda c: c.headers["x-argosy-attempt"])
        assert first.headers[HEADER] == "360.0"
        assert second.headers.get(HEADER) == left


async def test_the_limit_is_that_of_the_requests_class():
    engines = pair()
    classes = (SloClass("slow", Slo(ttft_s=2.0, tpot_s=1.0), 0),)
    async with gateway_with(*engines, slo_classes=classes) as gateway:
        await gateway.answered(ASK, headers=[(b"x-argosy-class", b"slow")])
        assert engines[0].calls[0].headers[HEADER] == "1800.0"


@pytest.mark.parametrize(
    ("role", "settings"),
    [
        (Role.DECODE, {"hold_first_token": False}),
        (Role.DECODE, {"slo": None}),
        (Role.COLOCATED, {}),
    ],
)
async def test_no_other_engine_is_told_to(role, settings):
    engine, prefill = Engine("d", role=role), Engine("p", role=Role.PREFILL)
    async with gateway_with(engine, prefill, **settings) as gateway:
        await gateway.answered(ASK)
        assert HEADER not in engine.calls[0].headers


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


async def test_without_holding_only_one_verdict_is_counted():
    async with gateway_with(*pair(), hold_first_token=False) as gateway:
        await gateway.answered(ASK)
        assert sum(gateway.verdicts().values()) == 1
        assert at_once(gateway) == {}


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
