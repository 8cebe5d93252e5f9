"""/health: an API server that is away is no reason to start the operator anew; a hang is."""

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from argosy_operator.core.fleet.actions import ErrorKind
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.objects import FleetKey
from argosy_operator.ports.lease import Lease, Term
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell.loop import ROUND_LIMIT_S
from argosy_operator.shell.telemetry.health import STUCK_S, Health
from argosy_operator.shell.workers import Workers
from tests.ports.test_lease import OneLease
from tests.support.virtual import run

HOURS_S = 2 * 3600.0


class Away(OneLease):
    """An API server whose calls about the Lease end without an answer after two seconds."""

    async def get(self, kind: str, namespace: str, name: str) -> None:
        await asyncio.sleep(2)
        raise ClusterError(ErrorKind.TRANSPORT, "get Lease", "no answer within 2.0 s")


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), time=time.time)
    monkeypatch.setattr("argosy_operator.shell.telemetry.health.time", clock)
    monkeypatch.setattr("argosy_operator.shell.workers.time", clock)


async def troubles(health: Health, for_s: float) -> set[str]:
    loop = asyncio.get_running_loop()
    found, end = set(), loop.time() + for_s
    while loop.time() < end:
        await asyncio.sleep(10)
        found.add(health.stuck() or "")
    return found - {""}


async def fails_in_time(_key: FleetKey, _memory: LoopMemory) -> None:
    await asyncio.sleep(10)
    raise ClusterError(ErrorKind.TRANSPORT, "list Pod", "no answer within 10.0 s")


async def waits_for_ever(_key: FleetKey, _memory: LoopMemory) -> None:
    await asyncio.Event().wait()


async def cannot_be_ended(_key: FleetKey, _memory: LoopMemory) -> None:
    """Takes the end of its time for something else, and waits on."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


def test_a_standby_is_healthy_for_as_long_as_the_api_server_is_away() -> None:
    async def main() -> None:
        health = Health({})
        lease = Lease(Away(), Term(), "ns", "l", "one")  # type: ignore[arg-type]
        waiting = asyncio.create_task(lease.acquire(health.beat))
        assert await troubles(health, HOURS_S) == set()
        waiting.cancel()
        assert await troubles(health, 2 * STUCK_S), "a task that died is seen"

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("one_round", [fails_in_time, waits_for_ever])
def test_rounds_that_fail_or_wait_are_no_reason_to_start_anew(one_round) -> None:
    assert ROUND_LIMIT_S < STUCK_S

    async def main() -> None:
        workers = Workers(one_round)
        health = Health(workers.busy_since)
        beating = asyncio.create_task(beat(health))
        for number in range(100):
            workers.enqueue(("ns", f"chat-{number}"))
        assert await troubles(health, HOURS_S) == set()
        beating.cancel()
        await workers.close()

    run(main())


def test_a_round_that_cannot_be_ended_is_a_hang() -> None:
    async def main() -> None:
        workers = Workers(cannot_be_ended)
        health = Health(workers.busy_since)
        beating = asyncio.create_task(beat(health))
        workers.enqueue(("ns", "chat"))
        (said,) = {text.partition(" has")[0] for text in await troubles(health, 200)}
        assert said == "the round of ns/chat"
        beating.cancel()
        await workers.close()

    run(main())


async def beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(2)
