"""One round of one fleet: read → plan → execute → publish → status.

Here the pure plan meets the adapters. `gather` reads the cluster, the engines and Prometheus;
`plan` decides; `execute` writes; `report` says what was done. `workers.py` decides when a fleet has
a round, and keeps its memory from one round to the next.
"""

import asyncio
import contextlib
import logging
import time

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.plan import conclude, plan
from argosy_operator.core.snapshot.actions import ErrorKind, Outcome
from argosy_operator.core.snapshot.objects import FleetKey, Object
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory, Snapshot
from argosy_operator.core.status.numbers import errors_of
from argosy_operator.core.status.problems import next_overdue_s
from argosy_operator.core.steps.targets import bid_of
from argosy_operator.shell import metrics
from argosy_operator.shell.execute import StoppedError, execute
from argosy_operator.shell.gather import Sources, gather
from argosy_operator.shell.report import (
    publish,
    read_fleet,
    write_list_forbidden,
    write_status,
)

log = logging.getLogger("argosy.loop")

RESYNC_S = 300.0
"""A fleet has a round after about this time even without an event."""
ROUND_LIMIT_S = 90.0
"""Less than `health.STUCK_S`: a round that fails is progress, one that hangs is not."""
CONCLUDE_S = 1.0
"""Writes end this long before the limit, so that the round can still say what it learnt."""


class UnfinishedError(Exception):
    """A round that could not write everything. `memory` is what it learnt and decided so far."""

    def __init__(self, memory: LoopMemory, cause: ClusterError) -> None:
        super().__init__(str(cause))
        self.memory, self.cause = memory, cause


async def round_of(
    sources: Sources, key: FleetKey, memory: LoopMemory
) -> tuple[LoopMemory, float] | None:
    """Run one round. Return the next memory and the seconds until the next round, or None if the
    fleet is gone. Raises ClusterError if it could not be read, UnfinishedError if not all was
    written."""
    writes_end_at = asyncio.get_running_loop().time() + ROUND_LIMIT_S - CONCLUDE_S
    raw = await sources.cluster.get("ServingDeployment", *key)
    if raw is None:
        _leave(sources, key)
        return None
    clock = Clock(time.time(), time.monotonic())
    fleet = await read_fleet(sources, raw, clock.now)
    if fleet is None:
        return memory, RESYNC_S
    snapshot = await _read(sources, raw, fleet, memory.of(fleet.metadata.uid), clock)
    planned = plan(snapshot)
    sources.budget.publish(key, bid_of(snapshot, planned.draft))
    sources.rollouts.publish(key, rolling=planned.draft.rolling)
    for step in planned.draft.steps:
        log.debug("%s", step)
    metrics.show_decision(key, planned.draft)
    metrics.show_errors(key, errors_of(snapshot, planned.draft))

    outcomes: tuple[Outcome, ...] = ()
    stopped: ClusterError | None = None
    try:
        async with asyncio.timeout_at(writes_end_at):
            outcomes = await execute(sources.cluster, sources.engines, fleet, planned.actions)
    except StoppedError as error:
        outcomes, stopped = error.outcomes, error.error
    except TimeoutError:
        stopped = round_too_long()
    planned = conclude(snapshot, planned, outcomes)
    try:
        if stopped is None or stopped.kind is not ErrorKind.NOT_LEADER:
            async with asyncio.timeout_at(writes_end_at):
                await publish(sources, snapshot, planned, outcomes)
                await write_status(sources, snapshot, planned.draft, outcomes)
    except ClusterError as error:
        stopped = stopped or error
    except TimeoutError:
        stopped = stopped or round_too_long()
    if stopped is not None:
        raise UnfinishedError(planned.memory, stopped) from stopped
    # Status says then that a person must act, and no event announces it.
    overdue_s = next_overdue_s(snapshot, planned.memory.failed)
    wake_s = min(planned.wake_s, overdue_s)
    if snapshot.newer_images and not fleet.spec.paused:
        wake_s = min(wake_s, sources.rollouts.look_s())
    return planned.memory, wake_s


def _leave(sources: Sources, key: FleetKey) -> None:
    """Take a fleet that is gone out of what fleets share."""
    sources.budget.withdraw(key)
    sources.rollouts.withdraw(key)
    metrics.forget(key)


def round_too_long() -> ClusterError:
    """Return the error of a round that is too long. It counts as a failure of the API server, whose
    answers are what a round waits for."""
    return ClusterError(ErrorKind.TRANSPORT, "round", f"not done within {ROUND_LIMIT_S:.0f} s")


async def _read(
    sources: Sources, raw: Object, fleet: ServingDeployment, memory: LoopMemory, clock: Clock
) -> Snapshot:
    """Read the snapshot. If RBAC forbids a list, say so in the fleet's status."""
    try:
        return await gather(sources, fleet, memory, clock)
    except ClusterError as error:
        if error.kind is ErrorKind.FORBIDDEN:
            with contextlib.suppress(ClusterError):  # the caller logs the first one
                await write_list_forbidden(sources, raw, error, clock.now)
        raise
