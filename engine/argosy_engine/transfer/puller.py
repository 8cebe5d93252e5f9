"""Decode's end of handovers: find a prefill engine that hands a prompt's KV over.

A `PullJob` ends in one event. Candidates are asked in order until one has computed the prompt.
After that its first token may be with the client already, so a later failure is not tried again
elsewhere.

An `Asking` is one prompt at one prefill engine: it asks, waits for READY, and fetches the KV
meanwhile. It ends with all KV in its blocks, or with a `PullError` after which nobody writes to the
blocks.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from argosy import logs
from argosy.descriptors import are_out
from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import (
    FailedPrefill,
    PullAlive,
    PullCause,
    PullDone,
    PullEvent,
    PullFailed,
    PullJob,
    PullReady,
)
from argosy_engine.core.handover.patience import Pace, Suspects, transfer_s
from argosy_engine.core.handover.pulls import CLIENT_ERRORS
from argosy_engine.core.request import client_id
from argosy_engine.core.runner import Runner
from argosy_engine.errors import EngineError
from argosy_engine.transfer.connection import CONNECT_S, RefusedError, Target
from argosy_engine.transfer.fetch import Fetch
from argosy_engine.transfer.messages import (
    Admitted,
    Message,
    Ready,
    Refused,
    Wait,
    in_thread,
    read_message,
    send_control,
)
from argosy_engine.transfer.nixl import Link, Routes
from argosy_engine.transfer.wire import (
    Kind,
    WireError,
    encode_control,
    encode_tokens,
)

Credential = Callable[[], str]
"""What this engine shows to prefill engines; asked anew for each connection."""

ClientTls = Callable[[], ssl.SSLContext]
"""TLS of the next call; asked anew for each one."""

_HONEST: tuple[PullCause, ...] = ("broken", "timeout")
"""After these, what was verified before counts. A peer that sent damaged or strange frames is
believed in nothing."""

_ACCEPT_S = 5.0
_SILENCE_S = 5.0  # between two frames before READY
_Expected = TypeVar("_Expected", Admitted, Ready)


class PullError(EngineError):
    """One candidate failed; `final` when its first token was handed out already.

    `reason` is REFUSED's, `verified` that of `PullFailed`.
    """

    def __init__(self, cause: PullCause, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.cause: PullCause = cause
        self.reason = reason
        self.final = False
        self.verified = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all pulls of one engine have in common."""

    runner: Runner
    post: Callable[[PullEvent], None]
    threads: ThreadPoolExecutor
    helpers: ThreadPoolExecutor | None
    lease_s: float
    min_bytes_per_s: float
    credential: Credential | None
    ssl: ClientTls | None
    routes: Routes
    pace: Pace = field(default_factory=Pace)


class Clock:
    """How long one job may go on: each sign of progress gives it its whole time again."""

    def __init__(self, job: PullJob, post: Callable[[PullEvent], None]) -> None:
        self._job = job
        self._post = post
        self.deadline_s = time.monotonic() + job.timeout_s

    def progress(self) -> None:
        job = self._job
        self.deadline_s = time.monotonic() + job.timeout_s
        alive = PullAlive(request_id=job.request_id, attempt=job.attempt, lasts_s=job.timeout_s)
        self._post(alive)


class Asking:
    """`run` is called once."""

    def __init__(
        self,
        shared: Shared,
        candidate: str,
        job: PullJob,
        clock: Clock,
        failed: tuple[FailedPrefill, ...],
    ) -> None:
        self._shared = shared
        self._layout = shared.runner.kv_layout()
        self._job = job
        self._clock = clock
        self._failed = failed
        self._has_kv = job.has_kv(candidate)
        self._address, _, self._uid = candidate.partition("/")
        self._writer: asyncio.StreamWriter | None = None
        self._fetch: Fetch | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._wanted = 0

    async def run(self, alive_by_s: float) -> PullDone:
        """`alive_by_s`: when the first sign of life must have come, on the monotonic clock."""
        handed_out = False
        try:
            async with _until(alive_by_s, "no sign of life in this candidate's share of the time"):
                reader, admitted = await self._admitted()
                sign = await _next_sign(reader)
            answer = await self._ready(sign, admitted, reader)
            self._shared.post(self._first_token(answer))
            handed_out = True
            done = await self._rest()
            with contextlib.suppress(OSError):  # everything is here: its lease ends with it
                await send_control(self._open_writer, Kind.RELEASE, {})
        except (PullError, RefusedError, WireError, EOFError, OSError) as error:
            failed = _as_pull_error(self._address, error)
            failed.final = handed_out
            await self._end()  # only now does the count of blocks stay
            if handed_out and failed.cause in _HONEST and self._fetch is not None:
                failed.verified = self._fetch.at
            raise failed from error
        else:
            self._open_writer.close()
            return done
        finally:
            await self._end()

    # ------------------------------------------------------------- the conversation

    async def _admitted(self) -> tuple[asyncio.StreamReader, Admitted]:
        host, port, opening = _host(self._address), _port(self._address), self._opening()
        hello = opening + self._hello()
        tls = self._shared.ssl() if self._shared.ssl else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, self._writer = await asyncio.open_connection(host, port, ssl=tls)
        except (OSError, ValueError, OverflowError) as error:
            raise PullError("shortage" if are_out(error) else "connect", repr(error)) from error
        async with _until(time.monotonic() + _ACCEPT_S, f"not admitted within {_ACCEPT_S:g} s"):
            self._writer.write(hello)
            await self._writer.drain()
            admitted = _expected(await read_message(reader), Admitted)
        target = Target(
            host=host,
            port=port,
            ssl=tls,
            opening=opening,
            ticket=admitted.ticket,
            engine_epoch=admitted.engine_epoch,
            transports=admitted.transports,
        )
        self._wanted = self._job.have_tokens // self._layout.block_size
        self._fetch = Fetch(
            self._shared.runner,
            target,
            self._job.block_ids,
            first=self._wanted,
            min_bytes_per_s=self._shared.min_bytes_per_s,
            routes=self._shared.routes,
            helpers=self._shared.helpers,
        )
        return reader, admitted

    def _opening(self) -> bytes:
        credential = self._shared.credential
        said = {"credential": credential() if credential else "", "pod_uid": self._uid}
        return encode_control(Kind.OPEN, said)

    def _hello(self) -> bytes:
        job = self._job
        said = {
            "request_id": job.request_id,
            "attempt": job.attempt,
            "fingerprint": self._layout.fingerprint,
            "tp": self._layout.tp,
            "n_tokens": len(job.token_ids),
            "sampling": job.sampling.to_json(),
            "lease_s": self._shared.lease_s,
        }
        if job.priority:  # engines of earlier releases refuse a field that they do not know
            said["priority"] = job.priority
        try:
            return encode_control(Kind.PREFILL, said) + encode_tokens(job.token_ids)
        except WireError as error:
            # The request's fault: any prefill engine would say the same, and none was asked.
            raise PullError("refused", f"invalid: {error}", "invalid") from error

    async def _ready(
        self, sign: Ready | Wait, admitted: Admitted, reader: asyncio.StreamReader
    ) -> Ready:
        """Fetch what is ready until all is; leave an engine that computes nothing."""
        began = moved = time.monotonic()
        patience_s = self._shared.pace.patience_s(len(self._job.token_ids))
        last: Wait | None = None
        while isinstance(sign, Wait):
            now = time.monotonic()
            if sign != last:
                last, moved = sign, now
                self._clock.progress()
                self._want(sign.n_ready)
            until_s = min(self._clock.deadline_s, moved + patience_s)
            async with _until(until_s, f"no progress within {until_s - moved:.1f} s"):
                sign = await _next_sign(reader)
        self._check(sign, admitted)
        if not self._has_kv:
            self._shared.pace.observe(sign.n_tokens, time.monotonic() - began)
        return sign

    def _check(self, answer: Ready, admitted: Admitted) -> None:
        """Before any of it is used: READY is about this prompt, this attempt and this layout."""
        job, layout = self._job, self._layout
        due = {
            "request_id": job.request_id,
            "attempt": job.attempt,
            "engine_epoch": admitted.engine_epoch,
            "fingerprint": layout.fingerprint,
            "dtype": layout.dtype,
            "n_tokens": len(job.token_ids),
            "n_blocks": len(job.block_ids),
        }
        for name, value in due.items():
            if getattr(answer, name) != value:
                raise WireError(f"READY has {name} {getattr(answer, name)!r}, not {value!r}")
        if answer.first_token >= self._shared.runner.vocab_size:
            raise WireError(f"this model has no token {answer.first_token}")

    def _first_token(self, answer: Ready) -> PullReady:
        job = self._job
        left = len(job.block_ids) - self._wanted
        lasts_s = transfer_s(left * self._layout.block_bytes, self._shared.min_bytes_per_s)
        return PullReady(
            request_id=job.request_id,
            attempt=job.attempt,
            first_token=answer.first_token,
            prefill_pod=answer.pod,
            failed=self._failed,
            lasts_s=self._job.timeout_s + lasts_s,
        )

    # ------------------------------------------------------------- the KV

    def _want(self, n_ready: int) -> None:
        """Let the blocks before `n_ready` be fetched in the background."""
        if n_ready > len(self._job.block_ids):
            raise WireError(f"{n_ready} blocks are ready of {len(self._job.block_ids)}")
        self._wanted = max(self._wanted, n_ready)
        if self._fetching is not None and self._fetching.done():
            self._fetching.result()
            self._fetching = None
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._follow())
            self._fetching.add_done_callback(_look_at)

    async def _follow(self) -> None:
        fetch = self._fetch
        assert fetch is not None
        while fetch.at < self._wanted:
            await in_thread(self._shared.threads, fetch.stop, fetch.receive, self._wanted)

    async def _rest(self) -> PullDone:
        """All blocks; the time since READY is what the client waits for."""
        job, fetch = self._job, self._fetch
        assert fetch is not None
        began = time.monotonic()
        first = job.have_tokens // self._layout.block_size
        while fetch.at < len(job.block_ids):
            self._want(len(job.block_ids))
            assert self._fetching is not None
            await self._fetching
        return PullDone(
            request_id=job.request_id,
            attempt=job.attempt,
            bytes_moved=(len(job.block_ids) - first) * self._layout.block_bytes,
            seconds=fetch.busy_s,
            exposed_s=time.monotonic() - began,
        )

    async def _end(self) -> None:
        """Close both connections. Afterwards nobody writes to the blocks."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.transport.abort()  # closing would wait until a silent peer reads the rest
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))
        if self._fetch is not None:
            self._fetch.close()

    @property
    def _open_writer(self) -> asyncio.StreamWriter:
        assert self._writer is not None
        return self._writer


async def _next_sign(reader: asyncio.StreamReader) -> Ready | Wait:
    """READY, or WAIT, which comes every second and tells a busy engine from a stopped one."""
    async with _until(time.monotonic() + _SILENCE_S, f"silent for {_SILENCE_S:g} s"):
        message = await read_message(reader)
    return message if isinstance(message, Wait) else _expected(message, Ready)


def _expected(message: Message, kind: type[_Expected]) -> _Expected:
    if isinstance(message, kind):
        return message
    if isinstance(message, Refused):
        raise RefusedError(message)
    raise WireError(f"{type(message).__name__.upper()} came out of turn")


@contextlib.asynccontextmanager
async def _until(deadline_s: float, message: str) -> AsyncIterator[None]:
    """PullError("timeout", message) at that time of the monotonic clock."""
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()):
            yield
    except TimeoutError as error:
        raise PullError("timeout", message) from error


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _port(address: str) -> int:
    """0, which nobody listens on, for what is no number."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _look_at(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()


def _as_pull_error(address: str, error: Exception) -> PullError:
    match error:
        case PullError():
            return PullError(error.cause, f"{address}: {error}", error.reason)
        case RefusedError():
            cause: PullCause = "fingerprint" if error.reason == "fingerprint" else "refused"
            return PullError(cause, f"{address}: {error}", error.reason)
        case WireError(other_release=True):
            return PullError("refused", f"{address}: version: {error}", "version")
        case WireError():
            return PullError("corrupt", f"{address}: {error}")
        case OSError() if are_out(error):
            return PullError("shortage", f"{address}: {error}")
        case TimeoutError():
            return PullError("timeout", f"{address}: {error}")
        case _:
            return PullError("broken", f"{address}: {error!r}")


log = logging.getLogger(__name__)

_THREADS = 32  # pulls that receive at once
_HELPERS = 12  # further connections that receive at once, of all pulls
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
        # On a CPU they would take the cores of the steps. With TLS one thread of the peer's sends.
        self._helpers: ThreadPoolExecutor | None = None
        if not runner.on_cpu and ssl_context is None:
            self._helpers = ThreadPoolExecutor(_HELPERS, "kv-receive-more")
        self._post = post
        self._suspects = Suspects()
        self._shared = Shared(
            runner=runner,
            post=post,
            threads=self._threads,
            helpers=self._helpers,
            lease_s=config.lease_s,
            min_bytes_per_s=config.kv_min_bytes_per_s,
            credential=credential,
            ssl=ssl_context,
            routes=Routes(link),
        )

    def close(self) -> None:
        """After the last pull has ended."""
        self._threads.shutdown()
        if self._helpers is not None:
            self._helpers.shutdown()

    async def pull(self, job: PullJob) -> None:
        """Posts exactly one PullDone or PullFailed."""
        logs.bind(request_id=client_id(job.request_id), attempt=job.attempt)
        failed: list[FailedPrefill] = []
        try:
            outcome: PullDone | PullFailed = await self._pull(job, failed)
        except PullError as error:
            outcome = _report_failure(job, error, failed)
        except asyncio.CancelledError:
            gone = PullError("cancelled", "the request ended before its KV came")
            outcome = _report_failure(job, gone, failed)
        except Exception as error:
            # A pull must end in an event: a request without one would wait for ever.
            log.exception("a pull failed inside the engine")
            outcome = _report_failure(job, PullError("broken", f"unexpected: {error!r}"), failed)
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
                log.info("no KV from %s", error)
                has_kv = job.has_kv(candidate)
                if not (has_kv and error.cause == "refused"):  # it may have others' KV
                    self._remember(candidate, error, now)
                if not has_kv:  # it is no prefill engine
                    failed.append(
                        FailedPrefill(candidate.partition("/")[0], error.reason or error.cause)
                    )
                if error.final or error.reason in CLIENT_ERRORS:
                    break
        raise failure

    def _remember(self, candidate: str, error: PullError, asked_s: float) -> None:
        if error.cause in ("refused", "fingerprint"):
            if error.reason in _ABOUT_THE_ENGINE:
                self._suspects.refused(candidate, now=time.monotonic())
        else:
            self._suspects.failed(candidate, asked_s=asked_s, now=time.monotonic())


def _report_failure(job: PullJob, error: PullError, failed: list[FailedPrefill]) -> PullFailed:
    return PullFailed(
        request_id=job.request_id,
        attempt=job.attempt,
        cause=error.cause,
        message=str(error),
        reason=error.reason,
        failed=tuple(failed),
        verified=error.verified,
    )
