"""The Lease and its gate in virtual time: no replica writes while another may lead."""

import asyncio
from typing import Any

import pytest

from argosy_operator.adapters.lease import (
    DURATION_S,
    LEAST_S,
    MARGIN_S,
    REFUSED_S,
    TERM_S,
    Lease,
    Term,
)
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from tests.support.virtual import run


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class OneLease:
    """The API server as far as a Lease sees it: one object, replaced only at its version."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] | None = None
        self.error_kind: ErrorKind | None = None
        self.raced = 0  # so many reads are followed by a stranger's write

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._check("get")
        seen = self.obj
        if self.raced > 0:
            self.raced -= 1
            self.annotate()
        return seen

    def annotate(self) -> None:
        """An administrator writes the Lease, as `kubectl annotate lease` does."""
        assert self.obj is not None
        self._store(self.obj, self.obj["metadata"]["resourceVersion"] + 1)

    def _check(self, verb: str) -> None:
        if self.error_kind is not None:
            raise ClusterError(self.error_kind, f"{verb} Lease", "no")

    async def create_ungated(self, obj: dict[str, Any]) -> dict[str, Any]:
        if self.obj is not None:
            raise ClusterError(ErrorKind.EXISTS, "create Lease", "there")
        return self._store(obj, 1)

    async def replace(self, obj: dict[str, Any]) -> dict[str, Any]:
        self._check("update")
        assert self.obj is not None
        version = self.obj["metadata"]["resourceVersion"]
        if obj["metadata"]["resourceVersion"] != version:
            raise ClusterError(ErrorKind.CONFLICT, "update Lease", "another client was faster")
        return self._store(obj, version + 1)

    def _store(self, obj: dict[str, Any], version: int) -> dict[str, Any]:
        self.obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}
        return self.obj


class Replica:
    """One operator's view; each has a clock of its own, as machines do."""

    def __init__(self, server: OneLease, name: str, clock: Any = None) -> None:
        self.clock = clock or Clock()
        self.term = Term(self.clock)
        self.lease = Lease(server, self.term, "ns", "l", name)  # type: ignore[arg-type]

    async def look(self) -> bool:
        return await self.lease._try()


@pytest.fixture
def server() -> OneLease:
    return OneLease()


async def test_a_stopped_leader_finds_its_gate_closed_before_another_may_lead(
    server: OneLease,
) -> None:
    one, two = Replica(server, "one"), Replica(server, "two")
    await one.look()
    await two.look()
    one.clock.now += TERM_S
    two.clock.now += TERM_S
    assert not one.term.open
    assert not await two.look()
    two.clock.now += DURATION_S - TERM_S
    assert await two.look()
    assert server.obj is not None
    assert server.obj["spec"]["leaseTransitions"] == 1


async def test_the_term_counts_from_before_the_call(server: OneLease) -> None:
    """An answer that took long must not stretch the term past what others count."""
    one = Replica(server, "one")

    async def slowly(*_: str) -> None:
        one.clock.now += 8

    server.get = slowly  # type: ignore[method-assign]
    assert await one.look()
    one.clock.now += TERM_S - 8
    assert not one.term.open


def test_a_write_never_outlasts_the_term() -> None:
    clock = Clock()
    term = Term(clock)
    term.extend(clock.now)
    assert term.allowance_s(3.0) == 3.0
    for passed_s in (0.0, 2.0, 5.0, TERM_S - MARGIN_S - LEAST_S):
        clock.now = 100.0 + passed_s
        assert passed_s + term.allowance_s(10.0) <= TERM_S - MARGIN_S
    clock.now += 0.01
    with pytest.raises(ClusterError, match="does not lead"):
        term.allowance_s(10.0)


def leading(server: OneLease) -> Replica:
    return Replica(server, "one", asyncio.get_running_loop().time)


def test_a_leader_whose_lease_an_administrator_wrote_leads_on(server: OneLease) -> None:
    async def main() -> None:
        one = leading(server)
        await one.lease.acquire()
        held = asyncio.create_task(one.lease.hold())
        for _ in range(10):
            await asyncio.sleep(3)
            server.annotate()
        assert not held.done()
        assert one.term.open
        held.cancel()

    run(main())


@pytest.mark.parametrize("raced", [1, 2, 5])
def test_a_conflict_is_decided_by_who_holds_the_lease(server: OneLease, raced: int) -> None:
    """Another client wrote between our look and our write: that does not end a leader."""

    async def main() -> None:
        one = leading(server)
        await one.lease.acquire()
        held = asyncio.create_task(one.lease.hold())
        server.annotate()
        server.raced = raced
        await asyncio.sleep(20)
        assert server.raced == 0
        assert not held.done()
        assert one.term.open
        held.cancel()

    run(main())


def test_a_leader_that_finds_another_holder_ends_at_once(server: OneLease) -> None:
    async def main() -> None:
        one, two = leading(server), Replica(server, "two")
        await one.lease.acquire()
        held = asyncio.create_task(one.lease.hold())
        await asyncio.sleep(1)
        await two.look()
        two.clock.now += DURATION_S
        assert await two.look()
        async with asyncio.timeout(3):
            assert await held == "another replica holds the Lease"
        assert not one.term.open

    run(main())


def test_a_leader_leads_on_when_the_api_server_is_away_for_less_than_a_term(
    server: OneLease,
) -> None:
    async def main() -> None:
        one = leading(server)
        await one.lease.acquire()
        held = asyncio.create_task(one.lease.hold())
        for error_kind in (ErrorKind.TRANSPORT, ErrorKind.FORBIDDEN, ErrorKind.UNAUTHORIZED):
            await asyncio.sleep(5)
            server.error_kind = error_kind
            await asyncio.sleep(6)
            server.error_kind = None
        await asyncio.sleep(5)
        assert not held.done()
        server.error_kind = ErrorKind.TRANSPORT
        async with asyncio.timeout(TERM_S + 1):
            assert "could not be renewed" in await held

    run(main())


def test_a_leader_bears_an_api_server_that_takes_seconds_and_loses_every_other_call(
    server: OneLease,
) -> None:
    replace, calls = server.replace, 0

    async def slowly(obj: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(3.0)
        if calls % 2:
            raise ClusterError(ErrorKind.TRANSPORT, "update Lease", "lost")
        return await replace(obj)

    async def main() -> None:
        one = leading(server)
        await one.lease.acquire()
        server.replace = slowly  # type: ignore[method-assign]
        held = asyncio.create_task(one.lease.hold())
        await asyncio.sleep(300)
        assert not held.done()
        held.cancel()

    run(main())


@pytest.mark.parametrize(
    "error_kind", [ErrorKind.FORBIDDEN, ErrorKind.UNAUTHORIZED, ErrorKind.TRANSPORT]
)
def test_a_standby_outlives_the_refusals_of_an_api_server_that_restarts(
    server: OneLease, error_kind: ErrorKind, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        one = leading(server)
        looks: list[float] = []
        waiting = asyncio.create_task(one.lease.acquire(lambda _: looks.append(one.clock())))
        server.error_kind = error_kind
        await asyncio.sleep(REFUSED_S - 10)
        assert not waiting.done()
        assert len(looks) >= (REFUSED_S - 10) / 6, "a failed look is progress, too"
        server.error_kind = None
        await waiting
        assert one.term.open

    run(main())
    (said,) = [record.getMessage() for record in caplog.records]
    assert error_kind in said


def test_a_standby_that_may_never_read_its_lease_ends_and_says_why(server: OneLease) -> None:
    async def main() -> None:
        server.error_kind = ErrorKind.FORBIDDEN
        async with asyncio.timeout(REFUSED_S + 10):
            await leading(server).lease.acquire()

    with pytest.raises(ClusterError, match="Forbidden"):
        run(main())
