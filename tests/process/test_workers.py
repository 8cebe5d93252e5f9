"""A burst of events is one round, a failing fleet pauses, an edited spec ends the pause."""

import asyncio

import pytest

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.pods import GatewayLoad, Handovers
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell import workers as module
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


class AtZero(Rounds):
    """Rounds of a fleet at zero, whose gateways are asked between them."""

    def __init__(self, *loads: GatewayLoad | None) -> None:
        super().__init__()
        self.loads, self.asked = loads, 0
        self.all_asked = asyncio.Event()

    async def __call__(
        self, key: tuple[str, str], memory: LoopMemory
    ) -> tuple[LoopMemory, float] | None:
        await super().__call__(key, memory)
        return LoopMemory(listen=(("g-1", "10.0.0.1"), ("g-2", "10.0.0.2"))), 300.0

    async def load(self, ip: str, name: str) -> GatewayLoad | None:
        assert (ip, name) in {("10.0.0.1", "g-1"), ("10.0.0.2", "g-2")}
        self.asked += 1
        if self.asked >= 6:
            self.all_asked.set()
        return self.loads[int(name[-1]) - 1]

    async def handovers(self, ip: str) -> Handovers:
        return Handovers()


@pytest.mark.parametrize("second", [GatewayLoad(1, 0.0), None], ids=["a request", "no answer"])
async def test_a_gateway_of_a_fleet_at_zero_that_may_have_a_request_begins_a_round(
    monkeypatch: pytest.MonkeyPatch, second: GatewayLoad | None
) -> None:
    monkeypatch.setattr(module, "LISTEN_S", 0.01)
    rounds = AtZero(GatewayLoad(0, 900.0), second)
    workers = Workers(rounds, gateways=rounds)
    workers.enqueue(KEY)
    await rounds.next()
    await rounds.next()
    await workers.close()
