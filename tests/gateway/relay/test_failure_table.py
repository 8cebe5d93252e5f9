"""The table of an engine's answers in designs/0001-seams.md, section 3: one row here per row there.

Each row says what becomes of the request and for how long its pod is avoided. A test sends requests
through a gateway whose clock it sets; the pod `bad` is asked first wherever it may be chosen.
The row of a silent engine is in test_silent_pods.py.
"""

from dataclasses import dataclass

import pytest

from argosy_gateway.routing.roster import Route
from tests.gateway.direct import World, direct
from tests.gateway.engines import Behaviour, Call, Engine, answer, close_early, drain, fail

WHOLE = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**WHOLE, "stream": True}


async def another_pod(call: Call) -> None:
    call.pod = ("x-argosy-pod", "another")
    await answer(call)


async def full(call: Call) -> None:
    await call.status(429, {"error": {"message": "full"}}, retry_after="2")


async def bad_gateway(call: Call) -> None:
    await call.status(502, {"error": {"message": "boom"}})


async def no_json(call: Call) -> None:
    await call.begin(200, "content-length: 5")
    await call.write(b"[1,2]")


async def break_off(call: Call) -> None:
    await call.begin_stream()
    await call.token("one")
    call.writer.transport.abort()


async def refuse(call: Call) -> None:
    await call.status(422, {"error": {"message": "no such tool"}})


@dataclass(frozen=True)
class Row:
    """What the document says."""

    does: Behaviour | None
    """The engine; None: nothing listens."""
    status: int = 200
    says: str = "three"
    """A part of the answer; `three` is the other pod's."""
    others: int = 1
    """Requests that another pod got instead."""
    away_s: float = 0.0
    """The pod is not chosen for so long after this one answer."""
    fails: bool = False
    """Two such answers in a row suspend the pod for 0.25 s."""
    body: tuple[str, ...] = ("whole", "stream")


TABLE = {
    "no connection": Row(None, away_s=0.25),
    "any, without the pod's name": Row(another_pod, away_s=30.0),
    "503 with x-argosy-draining": Row(drain, away_s=1.0),
    "429": Row(full, away_s=0.25),
    "500": Row(fail, fails=True),
    "other 5xx": Row(bad_gateway, fails=True),
    "the connection breaks": Row(close_early, fails=True),
    "an unstreamed answer is no JSON object": Row(no_json, fails=True, body=("whole",)),
    "the stream breaks after its first byte": Row(
        break_off, 200, "stream_broken", others=0, fails=True, body=("stream",)
    ),
    "other 4xx": Row(refuse, 422, "no such tool", others=0),
}
CASES = [(what, body) for what, row in TABLE.items() for body in row.body]


async def meets(gateway: World, bad: Engine, body: str) -> bool:
    """Send a request; whether `bad` got it, or was tried."""
    before = len(bad.calls)
    tried = gateway.count("argosy_gateway_retries_total", reason="connect")
    await gateway.answered(STREAM if body == "stream" else WHOLE)
    connects = gateway.count("argosy_gateway_retries_total", reason="connect") - tried
    return len(bad.calls) > before or connects > 0


@pytest.mark.parametrize(("what", "body"), CASES)
async def test_each_answer_of_an_engine_has_the_consequences_of_its_row(
    what: str, body: str
) -> None:
    row = TABLE[what]
    bad, good = Engine("bad", row.does or answer), Engine("good")
    async with direct(bad, good, queue_timeout_s=5.0) as gateway:
        if row.does is None:
            await bad.stop()
        gateway.state.in_flight.reserve(Route(good.endpoint()), 1)

        asked = await meets(gateway, bad, body)
        assert asked
        assert gateway.client is not None
        assert (gateway.client.status, row.says in gateway.client.text) == (row.status, True)
        assert len(good.calls) == row.others

        if row.away_s:
            gateway.advance(row.away_s - 0.01)
            assert not await meets(gateway, bad, body)
            gateway.advance(0.02)
        assert await meets(gateway, bad, body), "it is chosen again"
        if row.fails:
            gateway.advance(0.24)
            assert not await meets(gateway, bad, body), "suspended after the second failure"
            gateway.advance(0.02)
            assert await meets(gateway, bad, body)
