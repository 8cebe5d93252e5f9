"""When fleets have rounds: one worker per fleet, woken by events.

`trigger.py` and `app.py` enqueue keys of fleets; `loop.round_of` is the round. A fleet that hangs
or fails delays no other. Events that arrive before a round starts are one round; events during a
round cause one more.

A round that failed, or took longer than `ROUND_LIMIT_S`, is tried again after a pause. The pause
doubles up to a minute, is at least as long as the server asks for, and ends when the spec is
edited.

A fleet at zero has no engine pods and no other events. So its gateways are asked once a second
whether a request waits there, with neither the API server nor Prometheus between.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from argosy import logs
from argosy_operator.adapters.cluster import QPS
from argosy_operator.adapters.protocols import ClusterError, Gateways
from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell import metrics
from argosy_operator.shell.concurrency import RoundSlots, call_all, rounds_at_once
from argosy_operator.shell.loop import RESYNC_S, ROUND_LIMIT_S, UnfinishedError, round_too_long

log = logging.getLogger("argosy.loop")

DEBOUNCE_S = 0.05
"""Events come in bursts: a Deployment, its ReplicaSet, its pods."""
LISTEN_S = 1.0
LONGEST_PAUSE_S = 60.0
LAST_WRITE_S = 12.0
"""What `close` allows a write at the end of the term: a call lasts ten seconds at most."""


class Workers:
    """One worker per fleet; all run in one event loop."""

    def __init__(
        self,
        one_round: Callable[[FleetKey, LoopMemory], Awaitable[tuple[LoopMemory, float] | None]],
        slots: RoundSlots | None = None,
        gateways: Gateways | None = None,
    ) -> None:
        """`gateways` are asked for requests of fleets at zero."""
        self._round, self._gateways = one_round, gateways
        self._slots = slots or RoundSlots(rounds_at_once(QPS))
        self._enqueued: dict[FleetKey, asyncio.Event] = {}
        self._edited: dict[FleetKey, asyncio.Event] = {}
        self._generations: dict[FleetKey, int] = {}
        self._tasks: dict[FleetKey, asyncio.Task[None]] = {}
        self.busy_since: dict[FleetKey, float] = {}
        self._closing = False

    def enqueue(self, key: FleetKey, generation: int | None = None) -> None:
        """Give the fleet a round soon; it need not exist. A `generation` that was not seen before
        ends even a failing fleet's pause, because the edit may have fixed what failed."""
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
        """End all rounds; those that run have `patience_s` to finish their current call."""
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

    async def _work(self, key: FleetKey) -> None:
        """Run rounds of one fleet, one after the other, until it is gone."""
        logs.bind(namespace=key[0], fleet=key[1])
        enqueued, edited = self._enqueued[key], self._edited[key]
        memory, failures, pause_s, first = LoopMemory(), 0, 0.0, True
        while True:
            await asyncio.sleep(DEBOUNCE_S)
            try:
                async with self._slots.slot(first=first):
                    enqueued.clear()
                    edited.clear()
                    result = await self._run_round(key, memory)
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
                memory, pause_s = result or (LoopMemory(), 0.0)
                pause_s = min(pause_s, RESYNC_S * random.uniform(0.8, 1.2))  # noqa: S311
            if self._closing:
                return
            # Only an edit of the spec ends the pause of a failing fleet.
            event = edited if failures else enqueued
            await _pause(None if failures else self._gateways, memory, event, pause_s)

    async def _run_round(
        self, key: FleetKey, memory: LoopMemory
    ) -> tuple[LoopMemory, float] | None:
        self.busy_since[key] = time.monotonic()
        try:
            async with asyncio.timeout(ROUND_LIMIT_S):
                with metrics.round_timer():
                    return await self._round(key, memory)
        except TimeoutError as error:
            raise round_too_long() from error
        finally:
            self.busy_since.pop(key, None)


async def _pause(
    gateways: Gateways | None, memory: LoopMemory, event: asyncio.Event, pause_s: float
) -> None:
    """Wait until the event is set or a fleet at zero may have a request, at most `pause_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            while gateways is not None and memory.listen:
                if await _is_set(event, LISTEN_S) or await _has_request(gateways, memory):
                    return
            await event.wait()


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()


async def _has_request(gateways: Gateways, memory: LoopMemory) -> bool:
    """Whether a gateway has a request. One that does not answer may have: the next round judges."""
    asked = [partial(gateways.load, ip, name) for name, ip in memory.listen]
    return any(load is None or load.in_flight > 0 for load in await call_all(asked, None))


def _pause_s(error: Exception, failures: int) -> float:
    """Return seconds until the next try, after so many failures in a row."""
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
