"""Which engine pods are silent: requests wait for them, and they answer no probe either.

A process that is stopped and a node whose network is cut break no connection. The kernel of a
stopped process still takes connections and acknowledges bytes, so TCP's own time-outs do not show
it. A stream without bytes alone shows nothing: prompts are long, batches large and machines slow.
So a pod that is waited for is asked for `/health` on its API port, by a connection of its own. The
engine answers that while it computes. `relay.attempt` reports the pods, and which ones were heard.

The rule is that of SWIM (Das, Gupta, Motivala, DSN 2002): a member is suspected and asked before it
is given up. Lifeguard (Dadgar, Phillips, Currey, 2018) adds that a prober which is starved itself
must not trust its clock. So silence is counted in turns of the event loop and not by the clock: a
gateway that stood still for a minute has counted one turn, and finds the answers at the next.

A silent pod is absent in `health`, so no request is sent there, until it answers.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from argosy_gateway.errors import BrokenError, ShortageError, UnreachableError
from argosy_gateway.pods.endpoints import Directory, Endpoint
from argosy_gateway.pods.proof import Certificates
from argosy_gateway.wire import http1

__all__ = ["Probes"]

log = logging.getLogger(__name__)

_TURNS = 6
"""Turns without a sign of a pod after which it is silent. Each probe gets as many."""


@dataclass(slots=True)
class _Suspect:
    """A pod that is being asked."""

    task: asyncio.Task[None] | None = None
    turns: int = field(default=0)
    """Turns without a sign of it."""


class Probes:
    """One probe at a time of each pod that requests wait for."""

    def __init__(
        self,
        directory: Directory,
        certificates: Certificates,
        *,
        silent_s: float,
        connect_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`silent_s`: a pod without a sign for so long is silent."""
        self._directory, self._certificates = directory, certificates
        self._turn_s = silent_s / _TURNS
        self._connect_s = connect_s
        self._clock = clock
        self._suspects: dict[str, _Suspect] = {}
        self._answered: dict[str, float] = {}
        """When a pod answered last, by uid."""

    def ask(self, pod: Endpoint, *, again_s: float) -> None:
        """Ask this pod, unless it is being asked or answered less than `again_s` ago."""
        if pod.uid in self._suspects:
            return
        answered_at = self._answered.get(pod.uid)
        if answered_at is not None and self._clock() - answered_at < again_s:
            return
        suspect = self._suspects[pod.uid] = _Suspect()
        suspect.task = asyncio.get_running_loop().create_task(self._watch(pod, suspect))

    def mark_heard(self, uid: str) -> None:
        """A byte of some answer came from this pod."""
        if (suspect := self._suspects.get(uid)) is not None:
            suspect.turns = 0

    def is_silent(self, uid: str) -> bool:
        """Whether the pod was asked, and gave no sign for `silent_s`."""
        suspect = self._suspects.get(uid)
        return suspect is not None and suspect.turns >= _TURNS

    def close(self) -> None:
        """Ask no more."""
        for suspect in self._suspects.values():
            if suspect.task is not None:
                suspect.task.cancel()

    async def _watch(self, pod: Endpoint, suspect: _Suspect) -> None:
        """Ask until it answers, or is another pod or none."""
        health = self._directory.health
        try:
            while self._is_known(pod):
                if await self._answers(pod, suspect):
                    self._answered[pod.uid] = self._clock()
                    if suspect.turns >= _TURNS:
                        log.info("engine %s answers again", pod.name)
                    if health.mark_identified(pod.uid):
                        self._directory.notify()
                    return
        finally:
            del self._suspects[pod.uid]
            self._answered = {u: t for u, t in self._answered.items() if self._directory.get(u)}

    async def _answers(self, pod: Endpoint, suspect: _Suspect) -> bool:
        """One probe, and what its silence means. False after as many turns as make a pod silent."""
        probe = asyncio.ensure_future(self._probe(pod))
        try:
            for _ in range(_TURNS):
                await asyncio.wait({probe}, timeout=self._turn_s)
                if probe.done() and probe.result():
                    return True
                if not self._is_known(pod):
                    return False
                if probe.done():  # refused, or another program: ask again in the next turn
                    await asyncio.sleep(self._turn_s)
                    probe = asyncio.ensure_future(self._probe(pod))
                suspect.turns += 1
                if suspect.turns >= _TURNS:
                    if suspect.turns == _TURNS:
                        log.warning("engine %s answers no probe: it is not called", pod.name)
                    self._directory.health.mark_silent(pod.uid)
            return False
        finally:
            probe.cancel()

    async def _probe(self, pod: Endpoint) -> bool:
        """Whether a sign of life came from this pod.

        An answer under its name is one. So are a refused connection and a refused certificate: a
        program is there, or its streams were broken off when it ended.
        """
        exchange: http1.Exchange | None = None
        try:
            tls = self._certificates.context() if pod.tls else None
        except UnreachableError:
            return True  # the fault is here: nothing is known of the pod
        try:
            exchange = await http1.call(
                pod.ip,
                pod.port,
                method="GET",
                target="/health",
                connect_s=self._connect_s,
                tls=tls,
            )
            head = await exchange.head()
        except ShortageError:
            return True  # likewise
        except UnreachableError as error:
            return isinstance(error.__cause__, ConnectionRefusedError | ssl.SSLError)
        except BrokenError:
            return False
        finally:
            if exchange is not None:
                exchange.abort()
        return pod.wrote(head)

    def _is_known(self, pod: Endpoint) -> bool:
        known = self._directory.get(pod.uid)
        return known is not None and (known.ip, known.port, known.tls) == (
            pod.ip,
            pod.port,
            pod.tls,
        )
