"""Limits on calls, and writes that wait for a slot until the term is over."""

import asyncio
from pathlib import Path

import pytest

from argosy_operator.adapters.access import Access
from argosy_operator.adapters.cluster import ApiCluster, RateLimiter
from argosy_operator.adapters.lease import TERM_S, Term
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from tests.adapters.api_server import ApiServer
from tests.support.virtual import run

pytestmark = pytest.mark.slow


def test_calls_keep_to_rate_burst_and_number_at_once() -> None:
    async def main() -> None:
        limiter, loop = RateLimiter(qps=10, burst=20, at_once=4), asyncio.get_running_loop()
        began, under_way, most = [], 0, 0

        async def one() -> None:
            nonlocal under_way, most
            async with limiter.slot():
                began.append(loop.time())
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.01)
                under_way -= 1

        await asyncio.gather(*(one() for _ in range(120)))
        assert most == 4
        assert began[19] - began[0] < 0.2, "the burst"
        assert began[-1] - began[0] == pytest.approx(10, abs=0.2), "then ten a second"
        await asyncio.sleep(60)
        quiet = len(began)
        await asyncio.gather(*(one() for _ in range(40)))
        assert began[-1] - began[quiet] == pytest.approx(2, abs=0.2), "one burst, however quiet"

    run(main())


EVENT = {"kind": "Event", "metadata": {"name": "e", "namespace": "ns"}}


async def test_a_write_whose_term_ended_while_it_waited_is_not_sent(tmp_path: Path) -> None:
    """The gate is asked when the call begins, not when it is put into the queue."""
    now = 0.0
    term = Term(lambda: now)
    term.extend(now)
    limiter, counted = RateLimiter(at_once=1), []
    server = ApiServer(places=1, work_s=0.0)
    async with (
        server.serving(tmp_path) as kubeconfig,
        ApiCluster(Access(kubeconfig), term, lambda *of: counted.append(of), limiter) as cluster,
    ):
        async with limiter.slot():
            waiting = asyncio.create_task(cluster.create(EVENT))
            await asyncio.sleep(0)
            now = TERM_S
        with pytest.raises(ClusterError) as refused:
            await waiting
    assert refused.value.kind is ErrorKind.NOT_LEADER
    assert (server.most_under_way, counted) == (0, [])


async def test_a_write_ends_with_the_term_though_the_server_is_slow(tmp_path: Path) -> None:
    now = 0.0
    term = Term(lambda: now)
    term.extend(now)
    server = ApiServer(places=1, work_s=60.0)
    async with (
        server.serving(tmp_path) as kubeconfig,
        ApiCluster(Access(kubeconfig), term, lambda *_: None) as cluster,
    ):
        now = TERM_S - 2.0
        async with asyncio.timeout(8):  # a call that is not bound to the term lasts ten
            with pytest.raises(ClusterError, match=r"no answer within 1\.5 s"):
                await cluster.create(EVENT)


async def test_credentials_that_cannot_be_read_just_now_are_a_refusal_not_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubeconfig is read again once a minute; the one who writes it may be half done."""
    monkeypatch.setattr("argosy_operator.adapters.access.REREAD_S", -1.0)
    server = ApiServer(places=1, work_s=0.0)
    async with (
        server.serving(tmp_path) as kubeconfig,
        ApiCluster(Access(kubeconfig), Term(), lambda *_: None) as cluster,
    ):
        path = tmp_path / "kubeconfig"
        good = path.read_text()
        path.write_text("half: ")
        with pytest.raises(ClusterError) as refused:
            await cluster.list("Pod", "ns")
        assert refused.value.kind is ErrorKind.UNAUTHORIZED
        path.write_text(good)
        assert await cluster.list("Pod", "ns") == []
