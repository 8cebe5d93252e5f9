"""Pods that do not answer cost a round a few seconds, however many they are."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from argosy_operator.adapters.engines import HttpEngines
from argosy_operator.core.snapshot.actions import HastenDrain, TakeWorkAgain
from argosy_operator.core.snapshot.pods import Load
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell.execute import execute
from argosy_operator.shell.gather import _loads
from tests.core.steps.test_victims import pod
from tests.support.model import fleet
from tests.support.virtual import run

VICTIMS = 160
ROUND_S = 8.0


class DeadNode:
    """Engines whose calls end without an answer after a second; some still answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0

    async def load(self, ip: str, fleet: object, uid: str) -> Load | None:
        return Load(False, 0, 0) if await self._silence(ip) else None

    async def drain(self, ip: str, fleet: object, uid: str) -> bool:
        return await self._silence(ip)

    async def take_work_again(self, ip: str, fleet: object, uid: str) -> bool:
        return await self._silence(ip)

    async def _silence(self, ip: str) -> bool:
        self.asked.append(ip)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0.0 if ip.endswith(".7") else 1.0)
        finally:
            self.at_once -= 1
        return ip.endswith(".7")


def ips(number: int) -> list[str]:
    return [f"10.0.{n // 100}.{n % 100}" for n in range(number)]


@pytest.mark.parametrize("order", [HastenDrain, TakeWorkAgain])
def test_orders_to_160_engines_that_are_away_take_seconds(order: Any) -> None:
    async def main() -> None:
        engines, loop = DeadNode(), asyncio.get_running_loop()
        began = loop.time()
        orders = [order(ip, ip) for ip in ips(VICTIMS)]
        outcomes = await execute(None, engines, fleet(), orders)  # type: ignore[arg-type]
        assert loop.time() - began < ROUND_S
        assert sorted(engines.asked) == sorted(ips(VICTIMS))
        assert engines.most_at_once <= 32
        assert [outcome.action for outcome in outcomes] == orders

    run(main())


@pytest.mark.slow
def test_pods_that_are_away_in_thousands_are_asked_in_turn() -> None:
    """A round ends in time, knows what was answered, and the next ones ask the others."""

    async def main() -> None:
        engines, loop = DeadNode(), asyncio.get_running_loop()
        pods = tuple(
            replace(pod(f"p{n}"), uid=f"u{n}", ip=ip, draining=True)
            for n, ip in enumerate(ips(1000))
        )
        answered = set()
        for _ in range(300):
            if len(set(engines.asked)) == len(pods) and answered:
                break
            began = loop.time()
            loads = await _loads(engines, fleet(), pods, LoopMemory())  # type: ignore[arg-type]
            assert loop.time() - began < ROUND_S
            assert set(loads) == {p.uid for p in pods}
            assert engines.most_at_once <= 32
            answered |= {uid for uid, load in loads.items() if load}
        assert len(set(engines.asked)) == len(pods)
        assert answered

    run(main())


@pytest.mark.slow
async def test_an_engine_that_drips_its_answer_costs_no_more_than_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.1)
        except ConnectionError:
            pass

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    monkeypatch.setattr(
        "argosy_operator.adapters.engines.ADMIN_PORT", server.sockets[0].getsockname()[1]
    )
    engines = HttpEngines()
    async with asyncio.timeout(30):
        assert await engines.load("127.0.0.1", ("ns", "chat"), "uid-1") is None
    await engines.close()
    server.close()


async def test_an_address_that_is_none_is_a_pod_that_does_not_answer() -> None:
    engines = HttpEngines()
    with pytest.raises(httpx.InvalidURL):
        httpx.URL("http://[::1%]:8001/drain" + "x" * 70_000)
    assert await engines.load("::1%" + "x" * 70_000, ("ns", "chat"), "uid-1") is None
    await engines.close()


@pytest.mark.parametrize("body", ["[" * 100_000, "9" * 5000, '{"draining": true}', "[]"])
async def test_an_engine_that_answers_nonsense_is_a_pod_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr("argosy_operator.adapters.engines.ADMIN_PORT", port)
    monkeypatch.setattr("argosy_operator.adapters.engines.TIMEOUT_S", 20.0)
    engines = HttpEngines()
    assert await engines.load("127.0.0.1", ("ns", "chat"), "uid-1") is None
    await engines.close()
    server.close()
