"""The loop of one fleet: event → snapshot → plan → execute → status → sleep until the next reason.

`Workers` keeps one task per fleet, so that a fleet that hangs or fails delays no other; `turns.py`
says how many rounds run at the same time. Events before or during a round cause one more round.
A round that failed, or took longer than `ROUND_LIMIT_S`, is tried again after a pause that doubles
up to a minute, or as long as the server asked for, and at once when the spec is edited.
Every fleet is looked at again after about five minutes even if nothing seems to have happened.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from argosy_operator.core.fleet.actions import ErrorKind, Outcome
from argosy_operator.core.fleet.snapshot import Clock, Memory
from argosy_operator.core.plan import after, plan
from argosy_operator.ports.calls import QPS
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell import logs, metrics
from argosy_operator.shell.execute import StoppedError, execute
from argosy_operator.shell.gather import Sources, gather
from argosy_operator.shell.report import publish, read_fleet, write_status
from argosy_operator.shell.turns import Turns, rounds_at_once

log = logging.getLogger("argosy.loop")

Key = tuple[str, str]  # namespace, name
DEBOUNCE_S = 0.05  # events come in bursts: a Deployment, its ReplicaSet, its pods
RESYNC_S = 300.0
LONGEST_PAUSE_S = 60.0
ROUND_LIMIT_S = 90.0  # less than what /health takes for a hang: a round that fails is progress
LAST_WRITE_S = 12.0  # a call lasts ten seconds at most


class UnfinishedError(Exception):
    """A round that the server ended early. `memory` holds what it learnt and decided until then."""

    def __init__(self, memory: Memory, cause: ClusterError) -> None:
        super().__init__(str(cause))
        self.memory, self.cause = memory, cause


async def round_of(sources: Sources, key: Key, memory: Memory) -> tuple[Memory, float] | None:
    """One round. The next memory and the seconds until the next look; None: the fleet is gone.
    Raises ClusterError where nothing could be read, UnfinishedError where not all was written."""
    raw = await sources.cluster.get("ServingDeployment", *key)
    if raw is None:
        return None
    clock = Clock(time.time(), time.monotonic())
    fleet = await read_fleet(sources, raw, clock.now)
    if fleet is None:
        return memory, RESYNC_S
    s = await gather(sources, fleet, memory, clock)
    p = plan(s)
    metrics.count_decision(p.draft)
    outcomes: tuple[Outcome, ...] = ()
    stopped: ClusterError | None = None
    try:
        outcomes = await execute(sources.cluster, sources.engines, fleet, p.actions)
    except StoppedError as error:
        outcomes, stopped = error.outcomes, error.error
    p = after(s, p, outcomes)
    try:
        if stopped is None or stopped.kind is not ErrorKind.NOT_LEADER:
            await publish(sources, s, p, outcomes)
            await write_status(sources, s, p.draft, outcomes)
    except ClusterError as error:
        stopped = stopped or error
    if stopped is not None:
        raise UnfinishedError(p.memory, stopped) from stopped
    return p.memory, p.wake_s


class Workers:
    """One worker per fleet; all run in one event loop."""

    def __init__(
        self,
        one_round: Callable[[Key, Memory], Awaitable[tuple[Memory, float] | None]],
        turns: Turns | None = None,
    ) -> None:
        self._round = one_round
        self._turns = turns or Turns(rounds_at_once(QPS))
        self._enqueued: dict[Key, asyncio.Event] = {}
        self._edited: dict[Key, asyncio.Event] = {}
        self._generations: dict[Key, int] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self.busy_since: dict[Key, float] = {}
        self._closing = False

    def enqueue(self, key: Key, generation: int | None = None) -> None:
        """Something happened to the fleet: look at it soon. A `generation` that was not seen before
        ends even a failing fleet's pause: what it failed at may just have been mended."""
        if self._closing:
            return
        self._enqueued.setdefault(key, asyncio.Event()).set()
        edited = self._edited.setdefault(key, asyncio.Event())
        if generation is not None and generation != self._generations.get(key):
            self._generations[key] = generation
            edited.set()
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._work(key), name=f"fleet {'/'.join(key)}")

    async def close(self, patience_s: float = 0.0) -> None:
        """End all rounds; those under way have `patience_s` to finish the call that they are in."""
        self._closing = True
        busy = [self._tasks[key] for key in self.busy_since]
        for key, task in self._tasks.items():
            if key not in self.busy_since:
                task.cancel()
        if busy and patience_s:
            await asyncio.wait(busy, timeout=patience_s)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _work(self, key: Key) -> None:
        logs.bind(namespace=key[0], fleet=key[1])
        enqueued, edited = self._enqueued[key], self._edited[key]
        memory, failures, pause_s, first = Memory(), 0, 0.0, True
        while True:
            await asyncio.sleep(DEBOUNCE_S)
            try:
                async with self._turns.turn(first=first):
                    enqueued.clear()
                    edited.clear()
                    result = await self._one(key, memory)
            except Exception as error:
                cause: Exception = error
                if isinstance(error, UnfinishedError):
                    memory, cause = error.memory, error.cause
                failures += 1
                pause_s = _pause_s(cause, failures)
                metrics.count_round("failed")
                _log_failure(cause, pause_s)
            else:
                metrics.count_round("done")
                if result is None and not enqueued.is_set():
                    del self._tasks[key], self._enqueued[key], self._edited[key]
                    self._generations.pop(key, None)
                    return
                failures, first = 0, False
                memory, pause_s = result or (Memory(), 0.0)
                pause_s = min(pause_s, RESYNC_S * random.uniform(0.8, 1.2))  # noqa: S311
            if self._closing:
                return
            # a failing fleet is not tried again before its pause is over, unless it was edited
            await _sleep_or(edited if failures else enqueued, pause_s)

    async def _one(self, key: Key, memory: Memory) -> tuple[Memory, float] | None:
        self.busy_since[key] = time.monotonic()
        try:
            async with asyncio.timeout(ROUND_LIMIT_S):
                with metrics.round_timer():
                    return await self._round(key, memory)
        except TimeoutError as error:
            message = f"not done within {ROUND_LIMIT_S:.0f} s"
            raise ClusterError(ErrorKind.TRANSPORT, "round", message) from error
        finally:
            self.busy_since.pop(key, None)


async def _sleep_or(event: asyncio.Event, pause_s: float) -> None:
    try:
        async with asyncio.timeout(pause_s):
            await event.wait()
    except TimeoutError:
        return


def _pause_s(error: Exception, failures: int) -> float:
    asked = error.retry_after_s if isinstance(error, ClusterError) else None
    pause_s = min(LONGEST_PAUSE_S, 0.5 * 2.0 ** min(failures - 1, 10))
    return max(asked or 0.0, pause_s * random.uniform(0.8, 1.2))  # noqa: S311


def _log_failure(error: Exception, pause_s: float) -> None:
    known = isinstance(error, ClusterError)
    log.log(
        logging.WARNING if known else logging.ERROR,
        "the round failed; next try in %.1f s: %s",
        pause_s,
        error,
        exc_info=None if known else error,
    )
