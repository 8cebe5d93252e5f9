"""What each outcome of a request adds to the gateway's series: one row per way to end.

The engines and the clock are the test's, everything between them is the product. The limits of the
SLO are so long that only a step of the clock misses them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from argosy_gateway.config import Limits, Slo
from argosy_gateway.pods.endpoints import Role
from tests.gateway.direct import Client, World, direct
from tests.gateway.engines import Behaviour, Call, Engine, answer, close_early, fail

SLO = Slo(ttft_s=500.0, tpot_s=50.0)
WHOLE = {"model": "m", "messages": [{"role": "user", "content": "x" * 2000}]}
STREAM = {**WHOLE, "stream": True}

ACCEPTED = {"received accepted": 1}
OK = {**ACCEPTED, "completed ok": 1}
LOST = {**ACCEPTED, "completed failed": 1, "slo miss miss": 1}
LEFT = {**ACCEPTED, "completed client_gone": 1}
MEASURED = {"ttft": 1, "tpot": 1, "tokens": 1}
MET = {**OK, **MEASURED, "slo ok ok": 1}


def moved(f: World) -> dict[str, float]:
    """Every counter of requests, and the number of observations, that is not 0."""
    found = {}
    for family in f.state.metrics.registry.collect():
        for sample in family.samples:
            labels = " ".join(
                v for k, v in sample.labels.items() if k not in ("class", "revision", "le")
            )
            name = NAMES.get(sample.name)
            if name and sample.value:
                found[f"{name} {labels.removeprefix('colocated ')}".strip()] = sample.value
    return found


NAMES = {
    "argosy_requests_received_total": "received",
    "argosy_requests_completed_total": "completed",
    "argosy_slo_requests_total": "slo",
    "argosy_gateway_ttft_seconds_count": "ttft",
    "argosy_gateway_tpot_seconds_count": "tpot",
    "argosy_gateway_output_tokens_count": "tokens",
    "argosy_gateway_retries_total": "retried",
    "argosy_gateway_retries_refused_total": "not retried",
}


async def full(call: Call) -> None:
    await call.status(429, {"error": {"message": "full"}})


async def too_long(call: Call) -> None:
    await call.status(400, {"error": {"message": "too long"}})


async def hang(call: Call) -> None:
    await call.gone()


async def break_off(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    call.writer.transport.abort()


async def one_token_and_wait(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    await call.gone()


async def error_and_done(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    await call.event(b'{"error":{"message":"CUDA error","type":"server_error"}}')
    await call.event(b"[DONE]")


async def error_event(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    await call.event(b'{"error":{"message":"CUDA error","type":"server_error"}}')


async def error_and_wait(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    await call.event(b'{"error":{"message":"CUDA error","type":"server_error"}}')
    await call.gone()


async def only_done(call: Call) -> None:
    await call.begin_stream()
    await call.event(b"[DONE]")


async def no_text(call: Call) -> None:
    await call.begin_stream()
    await call.finish(1)


async def redirect(call: Call) -> None:
    await call.status(302, {"choices": []}, location="http://elsewhere")


async def error_with_200(call: Call) -> None:
    await call.status(200, {"error": {"message": "CUDA error"}})


async def leaves_in_time(client: Client, f: World, engine: Engine) -> None:
    await f.until(lambda: engine.calls)
    await client.leave()


async def leaves_too_late(client: Client, f: World, engine: Engine) -> None:
    await f.until(lambda: engine.calls)
    f.advance(501)
    await client.leave()


async def leaves_after_a_token(client: Client, f: World, engine: Engine) -> None:
    await client.reads("one")
    f.advance(501)
    await client.leave()


async def leaves_after_an_error(client: Client, f: World, engine: Engine) -> None:
    await client.reads("CUDA error")
    await client.leave()


async def waits_for_a_pod(client: Client, f: World, engine: Engine) -> None:
    await f.until(lambda: f.state.relays)
    f.advance(30.1)
    f.state.directory.notify()
    await client.whole


async def waits_for_a_silent_engine(client: Client, f: World, engine: Engine) -> None:
    await f.until(lambda: engine.calls and _attempt(f)._exchange.waiting_since is not None)
    _attempt(f).check_time(asyncio.get_running_loop().time() + 301)
    await client.whole


def _attempt(f: World) -> Any:
    (relay,) = f.state.relays
    return relay._attempt


@dataclass
class Row:
    """One way in which a request ends."""

    says: str
    engine: Behaviour | None
    body: object
    status: int
    """0 if the client left before it was told."""
    adds: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Client, World, Engine], Awaitable[None]] | None = None
    """What happens before the request ends."""


def once(fault: Behaviour) -> Behaviour:
    """The first call fails, the second is answered."""
    calls: list[Call] = []

    async def behave(call: Call) -> None:
        calls.append(call)
        await (fault if len(calls) == 1 else answer)(call)

    return behave


NO_RETRY = {"limits": Limits(retry_reserve=0)}
SHEDS = {"shed_ttft_factor": 0.01}  # beyond 5 s; the prompt of 500 tokens takes 5 s
AS_SHED = {"received shed": 1, "slo miss miss": 1}
# fmt: off
TABLE = [
    Row("answered whole", answer, WHOLE, 200, MET),
    Row("answered as a stream", answer, STREAM, 200, MET),
    Row("answered without text", no_text, STREAM, 200,
        {**OK, "ttft": 1, "tokens": 1, "slo ok ok": 1}),
    Row("retried after a 500", once(fail), WHOLE, 200, {**MET, "retried server_error": 1}),
    Row("retried after a break", once(close_early), STREAM, 200, {**MET, "retried closed": 1}),
    Row("retried after an error with 200", once(error_with_200), WHOLE, 200,
        {**MET, "retried closed": 1}),
    Row("retried after a redirect", once(redirect), WHOLE, 200, {**MET, "retried closed": 1}),
    Row("lost: 500 twice", fail, WHOLE, 500, {**LOST, "retried server_error": 1}),
    Row("lost: 500, no retry left", fail, WHOLE, 500, {**LOST, "not retried": 1}, NO_RETRY),
    Row("lost: no pod in time", None, STREAM, 503, LOST, then=waits_for_a_pod),
    Row("lost: silence", hang, STREAM, 504, LOST, then=waits_for_a_silent_engine),
    Row("lost: broken after a token", break_off, STREAM, 200, {**LOST, "ttft": 1}),
    Row("lost: an error event, then [DONE]", error_and_done, STREAM, 200, {**LOST, "ttft": 1}),
    Row("lost: an error event, then the end", error_event, STREAM, 200, {**LOST, "ttft": 1}),
    Row("lost: the client left because of an error event", error_and_wait, STREAM, 200,
        {**LOST, "ttft": 1}, then=leaves_after_an_error),
    Row("lost: [DONE] without an answer", only_done, STREAM, 200, LOST),
    Row("shed by the engine", full, WHOLE, 429, LOST),
    Row("shed by the gateway: too slow", answer, {**WHOLE, "user": "x"}, 429, AS_SHED, SHEDS),
    Row("shed by the gateway: too many", answer, WHOLE, 429, AS_SHED, {"max_queue": 0}),
    Row("invalid for the gateway", answer, b"{", 400, {"received invalid": 1}),
    Row("invalid for the engine", too_long, WHOLE, 400, OK),
    Row("cancelled within the TTFT limit", hang, STREAM, 0, LEFT, then=leaves_in_time),
    Row("cancelled after the TTFT limit", hang, STREAM, 0,
        {**LEFT, "slo miss ok": 1}, then=leaves_too_late),
    Row("cancelled long after a token in time", one_token_and_wait, STREAM, 200,
        {**LEFT, "ttft": 1}, then=leaves_after_a_token),
]
# fmt: on


@pytest.mark.parametrize("row", TABLE, ids=[row.says for row in TABLE])
async def test_each_outcome_of_a_request_moves_its_counters_and_no_others(row):
    engine = Engine("a", row.engine or answer)
    engines = [engine] if row.engine else []
    async with direct(*engines, slo=SLO, **row.settings) as f:
        for second in range(20):  # a pace of 99 prompt tokens a second is known
            f.state.pace.observe("b", 99, began=float(second), first=second + 1.0)
        client = f.ask(row.body)
        async with asyncio.timeout(5):
            await (row.then(client, f, engine) if row.then else client.whole)
        assert client.status == row.status
        assert moved(f) == row.adds
        assert f.count("argosy_gateway_inflight_requests") == 0


@pytest.mark.parametrize(
    ("role", "mode"),
    [(Role.PREFILL, "disaggregated "), (Role.DECODE, "disaggregated "), (Role.COLOCATED, "")],
)
async def test_a_request_that_reached_no_pod_counts_for_the_kind_of_its_fleet(role, mode):
    async with direct(Engine("a", role=role), slo=SLO, max_queue=0) as f:
        await f.answered(WHOLE)
        assert moved(f) == {"received shed": 1, f"slo {mode}miss miss": 1}


# After the first token.


async def nonsense(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    await call.write(b"this is no chunk\r\n")
    await call.gone()


async def end(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    await call.write(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "fault",
    [break_off, one_token_and_wait, error_and_done, error_event, nonsense, end],
    ids=["reset", "silence", "error and [DONE]", "error event", "nonsense", "no [DONE]"],
)
async def test_no_second_engine_is_asked_after_the_first_token_was_streamed(fault):
    a, b = Engine("a", fault), Engine("b", fault)
    async with direct(a, b, slo=SLO) as f:
        client = f.ask(STREAM)
        await client.reads("one")
        if fault is one_token_and_wait:
            await f.until(lambda: _attempt(f)._exchange.waiting_since is not None)
            _attempt(f).check_time(asyncio.get_running_loop().time() + 121)
        await client.whole
        assert len(a.calls) + len(b.calls) == 1
        assert moved(f) == {**LOST, "ttft": 1}


# Prefill and decode.


async def test_a_prompt_is_work_of_prefill_until_its_first_token_and_then_of_decode_alone():
    first, last = asyncio.Event(), asyncio.Event()

    async def in_two_steps(call: Call) -> None:
        await first.wait()
        await call.begin_stream()
        await call.token("one")
        await last.wait()
        await call.finish(1)

    d, p = Engine("d", in_two_steps, role=Role.DECODE), Engine("p", role=Role.PREFILL)
    async with direct(d, p) as f:

        def loads() -> dict[str, tuple[int, int]]:
            return {u: (x.sequences, x.prompt_tokens) for u, x in f.state.in_flight.loads.items()}

        client = f.ask(STREAM)
        await f.until(lambda: d.calls)
        assert loads() == {"d": (1, 0), "p": (1, 500)}  # 2,000 characters, 4 a token
        first.set()
        await client.reads("one")
        assert loads() == {"d": (1, 0)}
        last.set()
        await client.whole
        assert loads() == {}
