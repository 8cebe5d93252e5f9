"""/health: an API server that is away is no reason to start the operator anew; a hang is."""

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from argosy_operator.adapters.lease import Lease, Term
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell.health import STUCK_S, UNSEEN_S, Health
from argosy_operator.shell.loop import ROUND_LIMIT_S
from argosy_operator.shell.workers import Workers
from tests.adapters.test_lease import OneLease
from tests.support.virtual import run

HOURS_S = 2 * 3600.0


class Away(OneLease):
    """An API server whose calls about the Lease end without an answer after two seconds."""

    away = True

    async def get(self, kind: str, namespace: str, name: str) -> Any:
        if not self.away:
            return await super().get(kind, namespace, name)
        await asyncio.sleep(2)
        raise ClusterError(ErrorKind.TRANSPORT, "get Lease", "no answer within 2.0 s")


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), time=time.time)
    monkeypatch.setattr("argosy_operator.shell.health.time", clock)
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


def test_a_standby_is_ready_while_it_knows_the_lease_and_says_why_it_is_not() -> None:
    async def main() -> None:
        server, health = Away(), Health({})
        lease = Lease(server, Term(), "ns", "l", "one")  # type: ignore[arg-type]
        assert health.unready(), "it has not looked yet"
        server.away = False
        await Lease(server, Term(), "ns", "l", "another").acquire()  # type: ignore[arg-type]
        waiting = asyncio.create_task(lease.acquire(health.beat))
        await asyncio.sleep(1)
        assert health.unready() is None
        server.away = True
        await asyncio.sleep(UNSEEN_S - 5)
        assert health.unready() is None, "an API server that restarts"
        await asyncio.sleep(10)
        assert "no answer within 2.0 s" in (health.unready() or "")
        server.away = False
        await asyncio.sleep(10)
        assert health.unready() is None
        waiting.cancel()

    run(main())


def test_a_replica_that_waits_for_an_obstacle_is_healthy_and_not_ready() -> None:
    async def main() -> None:
        health = Health({})
        health.beat()
        for _ in range(100):
            health.wait("the CRDs are not there")
            await asyncio.sleep(STUCK_S / 2)
            assert (health.unready(), health.stuck()) == ("the CRDs are not there", None)
        health.beat()
        assert health.unready() is None

    run(main())


def test_a_leader_with_a_dead_watch_is_to_be_restarted() -> None:
    async def main() -> None:
        dead: list[str] = []
        health = Health({}, lambda: "".join(dead) or None)
        assert health.stuck() is None
        dead.append("the watches are dead of Pod")
        assert health.stuck() == "the watches are dead of Pod"

    run(main())


@pytest.mark.long
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
