"""At no time may two replicas write: the real state machines in virtual time, for any schedule.

Calls reach the server late and are answered late, some get lost on either way, replicas stop for a
while, their clocks run at different rates, administrators write the Lease. What a replica may do is
taken at its worst: a write lasts as long as the gate allowed it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_operator.adapters.lease import Lease, Term
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from tests.adapters.test_lease import OneLease
from tests.support.virtual import run

LASTS_S = 200.0
CALL_S = 4.0  # the deadline of a call about the Lease


@dataclass
class Weather:
    """How calls fare. Times in s; `lost`: the share of calls without an answer."""

    random: Random
    slow_s: float
    lost: float
    stops_s: float


@dataclass
class Replica:
    """One operator: takes the Lease, holds it, and writes as often and as long as it may."""

    server: OneLease
    name: str
    rate: float
    weather: Weather
    wrote: list[tuple[float, float]] = field(default_factory=list)
    stopped_until: float = 0.0

    async def get(self, *words: str) -> Any:
        return await self._call(lambda: self.server.get(*words))

    async def create_ungated(self, obj: dict[str, Any]) -> Any:
        return await self._call(lambda: self.server.create_ungated(obj))

    async def replace(self, obj: dict[str, Any]) -> Any:
        return await self._call(lambda: self.server.replace(obj))

    async def _call(self, effect: Callable[[], Any]) -> Any:
        """The request arrives after a while, even if its caller has given up."""
        random, slow_s = self.weather.random, self.weather.slow_s
        there_s, back_s = (random.uniform(0, slow_s) for _ in range(2))
        lost = random.random() < self.weather.lost

        async def travel() -> Any:
            await asyncio.sleep(there_s)
            if lost and there_s < back_s:
                raise ClusterError(ErrorKind.TRANSPORT, "call", "lost on its way")
            answer = await effect()
            await asyncio.sleep(back_s)
            if lost:
                raise ClusterError(ErrorKind.TRANSPORT, "call", "the answer was lost")
            return answer

        travelling = asyncio.ensure_future(travel())
        travelling.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(CALL_S):
                answer = await asyncio.shield(travelling)
        except TimeoutError as error:
            raise ClusterError(ErrorKind.TRANSPORT, "call", "no answer in time") from error
        await self._wake()
        return answer

    async def _wake(self) -> None:
        """A stopped process goes on with what it had begun."""
        left_s = self.stopped_until - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, left_s))

    async def stop_now_and_then(self) -> None:
        while self.weather.stops_s:
            await asyncio.sleep(self.weather.random.uniform(5, 60))
            now = asyncio.get_running_loop().time()
            self.stopped_until = now + self.weather.random.uniform(0, self.weather.stops_s)

    async def lead(self) -> None:
        """As the process does: leads again from the beginning after it ended."""
        loop = asyncio.get_running_loop()
        while True:
            term = Term(lambda: loop.time() * self.rate)
            lease = Lease(self, term, "ns", "l", self.name)  # type: ignore[arg-type]
            await lease.acquire()
            writing = asyncio.create_task(self.write(term))
            await lease.hold()
            writing.cancel()
            if self.weather.random.random() < 0.5:
                with suppress(ClusterError):
                    await lease.release()
            await asyncio.sleep(1)

    async def write(self, term: Term) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.3)
            await self._wake()
            with suppress(ClusterError):
                began = loop.time()
                self.wrote.append((began, began + term.allowance_s(10.0) / self.rate))


async def two_replicas(weather: Weather, rates: tuple[float, float]) -> list[Replica]:
    server = OneLease()
    replicas = [
        Replica(server, name, rate, weather)
        for name, rate in zip(("one", "two"), rates, strict=True)
    ]
    tasks = [asyncio.create_task(r.lead()) for r in replicas]
    tasks += [asyncio.create_task(r.stop_now_and_then()) for r in replicas]
    until = asyncio.get_running_loop().time() + LASTS_S
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(weather.random.uniform(1, 20))
        if server.obj is not None:
            server.annotate()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return replicas


rate = st.floats(0.95, 1.05)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    slow_s=st.sampled_from([0.01, 0.5, 1.5, 4.0]),
    lost=st.sampled_from([0.0, 0.1, 0.5]),
    stops_s=st.sampled_from([0.0, 5.0, 30.0]),
    rates=st.tuples(rate, rate),
)
@pytest.mark.slow
def test_at_no_time_may_two_replicas_write(
    seed: int, slow_s: float, lost: float, stops_s: float, rates: tuple[float, float]
) -> None:
    one, two = run(two_replicas(Weather(Random(seed), slow_s, lost, stops_s), rates))
    overlaps = [
        (mine, theirs)
        for mine in one.wrote
        for theirs in two.wrote
        if mine[0] < theirs[1] and theirs[0] < mine[1]
    ]
    assert overlaps == []


def test_the_schedules_let_both_replicas_write() -> None:
    """Else the property above would say nothing."""
    one, two = run(two_replicas(Weather(Random(1), 0.5, 0.5, 30.0), (1.0, 1.0)))
    assert one.wrote
    assert two.wrote
