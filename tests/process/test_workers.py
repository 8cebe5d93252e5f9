"""A burst of events is one round, a failing fleet pauses, an edited spec ends the pause."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from argosy_operator.core.fleet.actions import ErrorKind
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell.workers import Workers

KEY = ("ns", "chat")


class Rounds:
    """Counts rounds; fails while `broken`, with a wish to be left alone for a minute."""

    def __init__(self) -> None:
        self.count, self.broken = 0, False
        self.ran = asyncio.Event()

    async def __call__(
        self, key: tuple[str, str], memory: LoopMemory
    ) -> tuple[LoopMemory, float] | None:
        self.count += 1
        self.ran.set()
        if self.broken:
            raise ClusterError(ErrorKind.THROTTLED, "list Pod", "slow down", retry_after_s=60.0)
        return memory, 300.0

    async def next(self) -> None:
        async with asyncio.timeout(5):
            await self.ran.wait()
        self.ran.clear()


async def test_a_burst_of_events_is_one_round() -> None:
    rounds = Rounds()
    workers = Workers(rounds)
    for _ in range(20):
        workers.enqueue(KEY)
    await rounds.next()
    await asyncio.sleep(0.2)
    assert rounds.count == 1
    await workers.close()


async def test_a_failing_fleet_sleeps_through_events_and_wakes_when_its_spec_is_edited() -> None:
    rounds = Rounds()
    rounds.broken = True
    workers = Workers(rounds)
    workers.enqueue(KEY, 1)
    await rounds.next()
    workers.enqueue(KEY)
    workers.enqueue(KEY, 1)  # an event of the same spec, such as our own status
    await asyncio.sleep(0.2)
    assert rounds.count == 1
    rounds.broken = False
    workers.enqueue(KEY, 2)
    await rounds.next()
    assert rounds.count == 2
    await workers.close()


async def test_a_failing_fleet_delays_no_other() -> None:
    rounds = Rounds()
    rounds.broken = True
    workers = Workers(rounds)
    workers.enqueue(KEY)
    await rounds.next()
    workers.enqueue(("ns", "other"))
    await rounds.next()
    assert rounds.count == 2
    await workers.close()


async def test_a_throttling_server_is_left_alone_as_long_as_it_asks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = Rounds()
    rounds.broken = True
    workers = Workers(rounds)
    workers.enqueue(KEY)
    await rounds.next()
    await asyncio.sleep(0.05)
    await workers.close()
    (said,) = [record for record in caplog.records if record.name == "argosy.loop"]
    assert said.levelname == "WARNING"
    assert "next try in 60.0 s: list Pod: Throttled: slow down" in said.getMessage()
    assert said.exc_info is None


def test_an_error_of_the_cluster_passes_through_context_managers() -> None:
    @contextmanager
    def some_context() -> Iterator[None]:
        yield

    error = ClusterError(ErrorKind.FORBIDDEN, "list Pod", "no")
    with pytest.raises(ClusterError) as caught, some_context():
        raise error
    assert caught.value is error
