"""Pods that do not answer cost a round a few seconds, however many they are."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.snapshot.actions import HastenDrain, TakeWorkAgain
from argosy_operator.core.snapshot.pods import Load
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell.execute import execute
from argosy_operator.shell.gather import _ask_engines
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
            loads = await _ask_engines(engines, fleet(), pods, LoopMemory())  # type: ignore[arg-type]
            assert loop.time() - began < ROUND_S
            assert set(loads) == {p.uid for p in pods}
            assert engines.most_at_once <= 32
            answered |= {uid for uid, load in loads.items() if load}
        assert len(set(engines.asked)) == len(pods)
        assert answered

    run(main())
