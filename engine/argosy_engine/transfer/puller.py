"""Decode's end of handovers: find a prefill engine that hands a prompt's KV over.

A `PullJob` ends in one event. Candidates are asked in order (`asking.py`) until one has computed
the prompt; after that its first token may be with the client already, so a later failure is not
tried again elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from argosy_engine import logs
from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import (
    FailedPrefill,
    PullDone,
    PullEvent,
    PullFailed,
    PullJob,
)
from argosy_engine.core.handover.on_failure import CLIENT_ERRORS
from argosy_engine.core.handover.suspects import Suspects
from argosy_engine.core.request import client_id
from argosy_engine.core.runner import Runner
from argosy_engine.transfer.asking import Asking, ClientTls, Clock, Credential, PullError, Shared
from argosy_engine.transfer.nixl.link import Link
from argosy_engine.transfer.nixl.routes import Routes

__all__ = ["Puller"]

log = logging.getLogger(__name__)

_THREADS = 32  # pulls that receive at once
# Refusals that the next request would meet too; the others are about the prompt.
_ABOUT_THE_ENGINE = frozenset({
    "draining", "queue_full", "queue_timeout", "busy", "fingerprint", "version", "unauthorized",
    "wrong_pod",
})  # fmt: skip


class Puller:
    """Runs pulls on the KV thread's event loop; posts their events into the engine's inbox."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        post: Callable[[PullEvent], None],
        *,
        credential: Credential | None = None,
        ssl_context: ClientTls | None = None,
        link: Link | None = None,
    ) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "kv-receive")
        self._post = post
        self._suspects = Suspects()
        self._shared = Shared(
            runner=runner,
            post=post,
            threads=self._threads,
            lease_s=config.lease_s,
            min_bytes_per_s=config.kv_min_bytes_per_s,
            credential=credential,
            ssl=ssl_context,
            routes=Routes(link),
        )

    def close(self) -> None:
        """After the last pull has ended."""
        self._threads.shutdown()

    async def pull(self, job: PullJob) -> None:
        """Posts exactly one PullDone or PullFailed."""
        logs.bind(request_id=client_id(job.request_id), attempt=job.attempt)
        failed: list[FailedPrefill] = []
        try:
            outcome: PullDone | PullFailed = await self._pull(job, failed)
        except PullError as error:
            outcome = _failed(job, error, failed)
        except asyncio.CancelledError:
            gone = PullError("cancelled", "the request ended before its KV came")
            outcome = _failed(job, gone, failed)
        except Exception as error:
            # A pull must end in an event: a request without one would wait for ever.
            log.exception("a pull failed inside the engine")
            outcome = _failed(job, PullError("broken", f"unexpected: {error!r}"), failed)
        self._post(outcome)

    async def _pull(self, job: PullJob, failed: list[FailedPrefill]) -> PullDone:
        """Ask the candidates in order; a silent one must leave time for those after it.

        One that makes progress may take all of it: a long prompt takes as long elsewhere."""
        clock = Clock(job, self._post)
        failure = PullError("suspended", "all candidates failed lately and are left alone")
        for index, candidate in enumerate(job.candidates):
            now = time.monotonic()
            if not self._suspects.may_ask(candidate, now):
                continue
            log.debug("ask the prefill engine at %s", candidate)
            others = sum(self._suspects.trusts(c, now) for c in job.candidates[index + 1 :])
            alive_by_s = now + (clock.deadline_s - now) / (1 + others)
            try:
                return await Asking(self._shared, candidate, job, clock, tuple(failed)).run(
                    alive_by_s
                )
            except PullError as error:
                failure = error
                if error.cause == "shortage":
                    break  # it would be the same with the others, and is no fault of any
                failed.append(
                    FailedPrefill(candidate.partition("/")[0], error.reason or error.cause)
                )
                log.info("no KV from %s", error)
                self._remember(candidate, error, now)
                if error.final or error.reason in CLIENT_ERRORS:
                    break
        raise failure

    def _remember(self, candidate: str, error: PullError, asked_s: float) -> None:
        if error.cause in ("refused", "fingerprint"):
            if error.reason in _ABOUT_THE_ENGINE:
                self._suspects.refused(candidate, now=time.monotonic())
        else:
            self._suspects.failed(candidate, asked_s=asked_s, now=time.monotonic())


def _failed(job: PullJob, error: PullError, failed: list[FailedPrefill]) -> PullFailed:
    return PullFailed(
        request_id=job.request_id,
        attempt=job.attempt,
        cause=error.cause,
        message=str(error),
        reason=error.reason,
        failed=tuple(failed),
        verified=error.verified,
    )
