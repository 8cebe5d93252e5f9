"""How the operator speaks to the admin port of an engine pod, over a real connection."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator

import pytest

from argosy_operator.adapters import engines
from argosy_operator.adapters.engines import HttpEngines
from argosy_operator.core.snapshot.pods import Load

FLEET = ("ns", "chat")


class Pod:
    """An engine pod that gives one answer and remembers what it was asked."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body
        self.line = ""
        self.headers: dict[str, str] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.line, *fields = head.strip().split("\r\n")
            self.headers = {n.lower(): v for n, _, v in (f.partition(": ") for f in fields)}
            body = json.dumps(self.body).encode()
            writer.write(
                f"HTTP/1.1 {self.status} .\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def answering(
    monkeypatch: pytest.MonkeyPatch, status: int, body: object, host: str = "127.0.0.1"
) -> AsyncIterator[Pod]:
    pod = Pod(status, body)
    server = await asyncio.start_server(pod.serve, host, 0)
    monkeypatch.setattr(engines, "ADMIN_PORT", server.sockets[0].getsockname()[1])
    monkeypatch.setattr(engines, "TIMEOUT_S", 20.0)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # pods are reached without it
    try:
        yield pod
    finally:
        server.close()


@contextlib.asynccontextmanager
async def asking(token: str | None = None) -> AsyncIterator[HttpEngines]:
    async def of(fleet: tuple[str, str]) -> str | None:
        assert fleet == FLEET
        return token

    made = HttpEngines(of)
    yield made
    await made.close()


SAID = {"role": "decode", "draining": True, "running": 3, "leases": 2, "expires_in_s": 59.5}


@pytest.mark.parametrize(
    ("body", "load"),
    [
        (SAID, Load(True, 3, 2, 59.5, "decode")),
        ({**SAID, "draining": False, "expires_in_s": None}, Load(False, 3, 2, None, "decode")),
        ({"draining": True, "running": 0, "leases": 0}, Load(True, 0, 0, None, "")),
    ],
)
async def test_an_engine_says_what_still_runs_there(
    monkeypatch: pytest.MonkeyPatch, body: object, load: Load
) -> None:
    async with answering(monkeypatch, 200, body) as pod, asking() as asked:
        assert await asked.load("127.0.0.1", FLEET, "uid-1") == load
    assert pod.line == "GET /drain HTTP/1.1"
    assert pod.headers["x-argosy-pod-uid"] == "uid-1"
    assert "authorization" not in pod.headers


@pytest.mark.parametrize("status", [401, 421, 500, 503])
async def test_a_pod_that_refuses_is_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async with answering(monkeypatch, status, SAID), asking() as asked:
        assert await asked.load("127.0.0.1", FLEET, "uid-1") is None
        assert not await asked.drain("127.0.0.1", FLEET, "uid-1")
        assert not await asked.take_work_again("127.0.0.1", FLEET, "uid-1")


async def test_an_order_shows_the_fleets_token_and_lasts_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(monkeypatch, 200, SAID) as pod, asking("a.b.c") as asked:
        assert await asked.drain("127.0.0.1", FLEET, "uid-1")
        assert pod.line == f"POST /drain?lease_s={engines.DRAIN_LEASE_S} HTTP/1.1"
        assert pod.headers["authorization"] == "Bearer a.b.c"
        assert pod.headers["x-argosy-pod-uid"] == "uid-1"
        assert await asked.take_work_again("127.0.0.1", FLEET, "uid-2")
        assert pod.line == "DELETE /drain HTTP/1.1"
        assert pod.headers["x-argosy-pod-uid"] == "uid-2"


@pytest.mark.parametrize(("status", "lines"), [(401, 1), (421, 0), (200, 0)])
async def test_only_a_token_that_is_not_taken_is_worth_a_line(
    monkeypatch: pytest.MonkeyPatch, status: int, lines: int
) -> None:
    said: list[str] = []
    keep = logging.Handler()
    keep.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("argosy.engines")
    log.addHandler(keep)
    try:
        async with answering(monkeypatch, status, SAID), asking() as asked:
            await asked.load("127.0.0.1", FLEET, "uid-1")
    finally:
        log.removeHandler(keep)
    assert said == ["the engine at 127.0.0.1 does not take this operator's token"] * lines


async def test_a_pod_that_drips_its_answer_is_given_up_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte would begin the time anew, were only the wait for one of them limited."""
    left = asyncio.Event()

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 .\r\ncontent-length: 1000000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        left.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    monkeypatch.setattr(engines, "ADMIN_PORT", server.sockets[0].getsockname()[1])
    monkeypatch.setattr(engines, "TIMEOUT_S", 0.2)
    async with asyncio.timeout(20), asking() as asked:
        assert await asked.load("127.0.0.1", FLEET, "uid-1") is None
        await left.wait()
    server.close()
