"""However many addresses users' objects name: threads and connections stay few, and end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Unknown
from argosy_operator.adapters.prometheus.allowlist import Allowlist
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import SERVERS, PrometheusMetrics
from argosy_operator.adapters.prometheus.server import WORKERS_PER_SERVER

pytestmark = pytest.mark.slow

ASKED = Question(("default", "a"), Windows(scrape_s=1, rate_s=5, interval_s=2))


async def at_once(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


async def never(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def by_drops(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


@asynccontextmanager
async def port_to(answer: Callable, timeout_s: float) -> AsyncIterator[tuple[Callable, int]]:
    """Asks `http://127.0.0.1:port/<path>`, each path an address of its own; and the port."""
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            while (await reader.readuntil(b"\r\n\r\n")).strip():
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    number = listening.sockets[0].getsockname()[1]
    root = f"http://127.0.0.1:{number}"
    allowed = Allowlist.of([f"127.0.0.1/32:{number}"])
    metrics = PrometheusMetrics(f"{root}/own", allowed=allowed, timeout_s=timeout_s)

    async def ask(path: str) -> FleetMetrics:
        return (await metrics.ask(f"{root}/{path}", ASKED)).metrics

    try:
        yield ask, metrics
    finally:
        metrics.close()
        listening.close()
        for task in tasks:
            task.cancel()


def threads() -> int:
    return sum(t.name.startswith("prometheus") for t in threading.enumerate())


def word(seen: FleetMetrics) -> str:
    assert isinstance(seen.arrivals, Unknown)
    return seen.arrivals.reason.partition(":")[0]


async def gone() -> None:
    """Threads that were told to end have ended."""
    async with asyncio.timeout(60):
        while threads():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_each_new_address_ends_the_one_that_was_used_longest_ago() -> None:
    async with port_to(at_once, 5.0) as (ask, metrics):
        for number in range(4 * SERVERS):
            assert word(await ask(f"p{number}")) == "PrometheusAway"
            await ask("own")
        assert len(metrics._servers) == SERVERS
        assert threads() <= WORKERS_PER_SERVER * (SERVERS + 2)  # two may be about to end
        assert any(url.endswith("/own") for url in metrics._servers)
    await gone()


@pytest.mark.slow
async def test_silent_addresses_take_no_more_than_their_places_and_never_the_operators() -> None:
    async with port_to(never, 3.0) as (ask, _):
        seen = await asyncio.gather(*(ask(f"p{number}") for number in range(SERVERS + 8)))
        assert [word(s) for s in seen].count("PrometheusBusy") == 8
        assert threads() <= WORKERS_PER_SERVER * SERVERS
        assert word(await ask("own")) == "PrometheusTimeout"
    await gone()


async def test_an_address_that_nobody_asks_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with port_to(at_once, 5.0) as (ask, metrics):
        for number in range(5):
            await ask(f"p{number}")
        monkeypatch.setattr("argosy_operator.adapters.prometheus.metrics.UNUSED_S", -1.0)
        await ask("p5")
        assert [url.rpartition("/")[2] for url in metrics._servers] == ["p5"]
    await gone()


async def test_an_answer_that_comes_by_drops_ends_in_time() -> None:
    async with port_to(by_drops, 0.5) as (ask, _):
        assert word(await ask("own")) == "PrometheusTimeout"
        await ask("p")
    await gone()
