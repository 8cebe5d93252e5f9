"""The operator as a process: builds the ports, leads or stands by, and ends when it may not lead.

The order is: probes, kinds, election, watches. A replica stands for the Lease only while every kind
can be watched. If the Lease is lost, kopf ends or a watch is dead, the gate closes first; then the
process ends with status 1. A new process is the simplest way back to a known state.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from argosy_operator.adapters.access import Access
from argosy_operator.adapters.cluster import BURST, QPS, ApiCluster, RateLimiter, lease_limiter
from argosy_operator.adapters.engines import HttpEngines
from argosy_operator.adapters.gateways import HttpGateways
from argosy_operator.adapters.lease import RETRY_S, Lease, Term
from argosy_operator.adapters.prometheus.allowlist import NOTHING_ELSE, Allowlist
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.prometheus.server import ServerAccess
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.adapters.trust import Account, ClusterTrust
from argosy_operator.core.budgets import Budgets
from argosy_operator.render.common import Images
from argosy_operator.shell import metrics
from argosy_operator.shell.boards import BudgetBoard, RolloutBoard
from argosy_operator.shell.concurrency import RoundSlots, rounds_at_once
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.health import Health, serve
from argosy_operator.shell.loop import round_of
from argosy_operator.shell.trigger import Trigger, obstacle
from argosy_operator.shell.workers import LAST_WRITE_S, Workers

log = logging.getLogger("argosy.app")


@dataclass(frozen=True, slots=True)
class Options:
    """What `argosy operator run` was started with; `cli/run.py` has the flags."""

    images: Images
    namespace: str | None = None
    """Whose fleets are served; None: those of all namespaces."""
    prometheus_url: str | None = None
    """For fleets that name no server of their own."""
    prometheus_access: ServerAccess | None = None
    """What `prometheus_url` asks for, and for no other address."""
    prometheus_allowed: Allowlist = NOTHING_ELSE
    """Addresses that fleets may name in spec.metrics.prometheus.url."""
    lease_namespace: str = "default"
    lease_name: str = "argosy-operator"
    metrics_port: int = 8081
    kubeconfig: str | None = None
    """None: $KUBECONFIG, else the pod's ServiceAccount."""
    kube_api_qps: float = QPS
    """Calls a second to the API server on average, without those of the Lease and of watches."""
    kube_api_burst: int = BURST
    account: Account | None = None
    """This pod's service account, which engines obey; None outside of a cluster."""
    gpu_budgets: Budgets = field(default_factory=Budgets)
    image_rollouts: int = 0
    """Fleets that may take newer default images at one time."""
    """GPUs that all fleets, and those of a namespace, may hold together."""


async def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT (returns 0), or until this process may no longer lead (1)."""
    access, term = Access(options.kubeconfig), Term()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    gateways = HttpGateways()
    prometheus = PrometheusMetrics(
        options.prometheus_url,
        allowed=options.prometheus_allowed,
        access=options.prometheus_access,
    )
    limiter = RateLimiter(options.kube_api_qps, options.kube_api_burst)
    async with (
        ApiCluster(access, term, metrics.count_write, limiter) as cluster,
        ApiCluster(access, term, metrics.count_write, lease_limiter()) as lease_cluster,
    ):
        board = BudgetBoard(options.gpu_budgets)
        trust = ClusterTrust(cluster, options.account)
        engines = HttpEngines(trust.token)
        rollouts = RolloutBoard(options.image_rollouts)
        images = options.images
        sources = Sources(
            cluster,
            prometheus,
            engines,
            images,
            board,
            rollouts,
            trust,
            gateways,
            gateways,
        )
        slots = RoundSlots(rounds_at_once(options.kube_api_qps))
        workers = Workers(partial(round_of, sources), slots, gateways)
        trigger = Trigger(access, options.namespace, workers.enqueue)
        health = Health(workers.busy_since, trigger.watches.blind)
        server = await serve(health, "0.0.0.0", options.metrics_port)
        holder = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{os.getpid()}"
        lease = Lease(lease_cluster, term, options.lease_namespace, options.lease_name, holder)
        try:
            look = partial(obstacle, cluster, options.namespace)
            return await _lead(Replica(term, lease, workers, trigger, health, look), stop)
        finally:
            term.close()
            server.close()
            await engines.close()
            await gateways.close()
            prometheus.close()


@dataclass(frozen=True, slots=True)
class Replica:
    """What this process runs once it leads."""

    term: Term
    lease: Lease
    workers: Workers
    trigger: Trigger
    health: Health
    obstacle: Callable[[], Awaitable[str | None]]
    """Why not every kind can be watched now."""


async def _elect(replica: Replica) -> None:
    """Return when this process leads and every kind can be watched. Raises ClusterError as
    `Lease.acquire` does."""
    while True:
        logged = ""
        while why := await replica.obstacle():
            if logged != why:
                logged = why
                log.warning("waiting, and not standing for the Lease: %s", why)
            replica.health.wait(why)
            await asyncio.sleep(RETRY_S)
        await replica.lease.acquire(replica.health.beat)
        # A standby may have waited for days, and this may be why the last leader ended.
        if await replica.obstacle() is None:
            return
        with suppress(ClusterError):
            await replica.lease.release()


async def _lead(replica: Replica, stop: asyncio.Event) -> int:
    """Wait for the Lease, serve until the term or the process ends. Returns the exit status."""
    term, lease, workers = replica.term, replica.lease, replica.workers
    stopped = asyncio.create_task(stop.wait())
    waiting = asyncio.create_task(_elect(replica))
    await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        return 0
    try:
        await waiting
    except ClusterError as error:
        log.error("ending: the operator may not read or write its Lease: %s", error)
        return 1
    log.info("this replica leads")
    metrics.LEADER.set(1)
    trigger = replica.trigger
    trigger.start()
    held = asyncio.create_task(lease.hold(replica.health.beat))
    ends: set[asyncio.Future[Any]] = {stopped, held, trigger.ended}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    term.close()
    metrics.LEADER.set(0)
    if held.done() or trigger.ended.done():
        await workers.close()
        log.error("ending: %s", held.result() if held.done() else trigger.ended.result())
        # kopf's thread may hang in a call, and nothing is left that must be finished.
        return 1
    held.cancel()
    # The next leader may write once the Lease is released, so our last write ends before.
    await workers.close(LAST_WRITE_S)
    trigger.stop()
    try:
        await lease.release()
    except ClusterError as error:
        log.warning("the Lease was not released; the next leader waits for its end: %s", error)
    return 0
