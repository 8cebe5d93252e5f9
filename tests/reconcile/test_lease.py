"""The Lease and its gate in virtual time: nobody writes while another may lead."""

from typing import Any

import pytest

from argosy_operator.core.actions import Trouble
from argosy_operator.ports.lease import DURATION_S, RENEW_S, Lease, Term
from argosy_operator.ports.protocols import ClusterError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class OneLease:
    """The API server as far as a Lease sees it: one object, replaced only at its version."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] | None = None
        self.away = False

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if self.away:
            raise ClusterError(Trouble.TRANSPORT, "get Lease", "away")
        return self.obj

    async def create_ungated(self, obj: dict[str, Any]) -> dict[str, Any]:
        if self.obj is not None:
            raise ClusterError(Trouble.EXISTS, "create Lease", "there")
        return self._store(obj, 1)

    async def replace(self, obj: dict[str, Any]) -> dict[str, Any]:
        assert self.obj is not None
        version = self.obj["metadata"]["resourceVersion"]
        if obj["metadata"]["resourceVersion"] != version:
            raise ClusterError(Trouble.CONFLICT, "update Lease", "somebody was faster")
        return self._store(obj, version + 1)

    def _store(self, obj: dict[str, Any], version: int) -> dict[str, Any]:
        self.obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}
        return self.obj


class Replica:
    """One operator's view; each has a clock of its own, as machines do."""

    def __init__(self, server: OneLease, name: str) -> None:
        self.clock = Clock()
        self.term = Term(self.clock)
        self.lease = Lease(server, self.term, "ns", "l", name)  # type: ignore[arg-type]

    async def look(self) -> bool:
        return await self.lease._try()


@pytest.fixture
def server() -> OneLease:
    return OneLease()


async def test_the_first_one_leads_and_the_second_waits(server: OneLease) -> None:
    one, two = Replica(server, "one"), Replica(server, "two")
    assert (await one.look(), await two.look()) == (True, False)
    assert (one.term.open, two.term.open) == (True, False)
    with pytest.raises(ClusterError, match="does not lead"):
        two.term.check()


async def test_a_stopped_leader_finds_its_gate_closed_before_another_may_lead(
    server: OneLease,
) -> None:
    one, two = Replica(server, "one"), Replica(server, "two")
    await one.look()
    await two.look()
    one.clock.now += RENEW_S
    two.clock.now += RENEW_S
    assert not one.term.open
    assert not await two.look()
    two.clock.now += DURATION_S - RENEW_S
    assert await two.look()
    assert server.obj is not None
    assert server.obj["spec"]["leaseTransitions"] == 1


async def test_a_lease_that_is_renewed_is_never_taken(server: OneLease) -> None:
    one, two = Replica(server, "one"), Replica(server, "two")
    await one.look()
    for _ in range(20):
        one.clock.now += 2
        two.clock.now += 2
        assert await one.look()
        assert not await two.look()


async def test_only_one_of_two_takes_a_free_lease(server: OneLease) -> None:
    one, two = Replica(server, "one"), Replica(server, "two")
    await one.look()
    await one.lease.release()
    stale = server.obj
    assert await two.look()
    assert stale is not None
    with pytest.raises(ClusterError):
        await server.replace(stale)
    assert not await one.look()
    assert not one.term.open


async def test_the_term_counts_from_before_the_call(server: OneLease) -> None:
    """An answer that took long must not stretch the term past what others count."""
    one = Replica(server, "one")

    async def slowly(*_: str) -> None:
        one.clock.now += 8

    server.get = slowly  # type: ignore[method-assign]
    assert await one.look()
    one.clock.now += RENEW_S - 8
    assert not one.term.open
