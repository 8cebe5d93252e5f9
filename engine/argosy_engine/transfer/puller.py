"""Decode's end of a handover: find a prefill engine that answers, and fetch its KV.

A `PullJob` ends in one event. Candidates are tried in order until one has computed the prompt;
after that its first token may be with the client already, so a later failure is not tried again
elsewhere: decode computes the prompt itself.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from argosy_engine import logs
from argosy_engine.core.handover.messages import (
    FailedPrefill,
    PullCause,
    PullDone,
    PullEvent,
    PullFailed,
    PullJob,
    PullReady,
)
from argosy_engine.core.handover.on_failure import CLIENT_ERRORS
from argosy_engine.core.handover.suspects import Suspects
from argosy_engine.core.request import client_id
from argosy_engine.errors import EngineError
from argosy_engine.ports.runner import Runner
from argosy_engine.transfer.messages import (
    Accepted,
    Done,
    Message,
    Ready,
    Refused,
    Wait,
    decode_message,
)
from argosy_engine.transfer.stream import read_head, read_message, read_payload, send_control
from argosy_engine.transfer.wire import (
    RUN_HEAD_BYTES,
    SMALL_CONTROL_BYTES,
    Kind,
    WireError,
    decode_run,
    encode_control,
    encode_tokens,
)

__all__ = ["Puller"]

log = logging.getLogger(__name__)

_CONNECT_S = 2.0
_ACCEPT_S = 5.0
_SILENCE_S = 5.0  # between two frames before READY
_Expected = TypeVar("_Expected", Accepted, Ready, Done)
# Refusals that the next request would meet too; the others are about the prompt.
_ABOUT_THE_ENGINE = frozenset({"draining", "queue_full", "busy", "fingerprint"})


class PullError(EngineError):
    """One candidate failed; `final` when its first token was handed out already.

    `reason` is REFUSED's.
    """

    def __init__(self, cause: PullCause, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.cause: PullCause = cause
        self.reason = reason
        self.final = False


class Puller:
    """Runs pulls on the KV thread's event loop; posts their events into the engine's inbox."""

    def __init__(self, runner: Runner, lease_s: float, post: Callable[[PullEvent], None]) -> None:
        self._runner = runner
        self._layout = runner.kv_layout()
        self._lease_s = lease_s
        self._post = post
        self._suspects = Suspects()

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

        One that gives a sign of life may take all of it: a long prompt takes as long elsewhere."""
        deadline_s = time.monotonic() + job.timeout_s
        failure = PullError("suspended", "all candidates failed lately and are left alone")
        for index, candidate in enumerate(job.candidates):
            now = time.monotonic()
            if not self._suspects.may_ask(candidate, now):
                continue
            log.debug("ask the prefill engine at %s", candidate)
            others = sum(self._suspects.trusts(c, now) for c in job.candidates[index + 1 :])
            alive_by_s = now + (deadline_s - now) / (1 + others)
            try:
                return await self._pull_from(candidate, job, alive_by_s, deadline_s, tuple(failed))
            except PullError as error:
                failure = error
                failed.append(FailedPrefill(candidate, error.reason or error.cause))
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

    async def _pull_from(
        self,
        candidate: str,
        job: PullJob,
        alive_by_s: float,
        deadline_s: float,
        failed: tuple[FailedPrefill, ...],
    ) -> PullDone:
        writer: asyncio.StreamWriter | None = None
        ready = False
        hello = self._hello(job)
        try:
            async with _until(alive_by_s, "no sign of life in this candidate's share of the time"):
                reader, writer = await _connect(candidate)
                await self._ask(reader, writer, hello)
                sign = await _next_sign(reader)
            async with _until(deadline_s, f"no first token within {job.timeout_s:g} s"):
                while isinstance(sign, Wait):
                    sign = await _next_sign(reader)
            answer = sign
            self._post(self._ready(answer, job, failed))
            ready = True
            self._suspects.answered(candidate)
            async with _until(deadline_s, f"no KV within {job.timeout_s:g} s"):
                done = await self._fetch(reader, writer, answer, job)
        except (PullError, WireError, EOFError, OSError) as error:
            pull_error = _as_pull_error(candidate, error)
            pull_error.final = ready
            raise pull_error from error
        else:
            with contextlib.suppress(OSError):  # everything is here: its lease ends with it
                await send_control(writer, Kind.RELEASE, {"lease": answer.lease})
            writer.close()
            return done
        finally:
            if writer is not None and not writer.is_closing():
                writer.transport.abort()  # closing would wait until a silent peer reads the rest

    def _hello(self, job: PullJob) -> bytes:
        said = {
            "request_id": job.request_id,
            "attempt": job.attempt,
            "fingerprint": self._layout.fingerprint,
            "n_tokens": len(job.token_ids),
            "sampling": job.sampling.to_json(),
            "lease_s": self._lease_s,
        }
        try:
            return encode_control(Kind.PREFILL, said) + encode_tokens(job.token_ids)
        except WireError as error:
            raise PullError("refused", f"not asked: {error}") from error

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: bytes
    ) -> None:
        async with _until(time.monotonic() + _ACCEPT_S, f"not accepted within {_ACCEPT_S:g} s"):
            writer.write(hello)
            await writer.drain()
            await _expect(reader, Accepted)

    def _ready(self, answer: Ready, job: PullJob, failed: tuple[FailedPrefill, ...]) -> PullReady:
        """Check READY before its token reaches a client."""
        if (answer.n_tokens, answer.n_blocks) != (len(job.token_ids), len(job.block_ids)):
            raise WireError(f"READY is not about this prompt of {len(job.token_ids)} tokens")
        if answer.first_token >= self._runner.vocab_size:
            raise WireError(f"this model has no token {answer.first_token}")
        return PullReady(
            request_id=job.request_id,
            attempt=job.attempt,
            first_token=answer.first_token,
            prefill_pod=answer.pod,
            failed=failed,
        )

    async def _fetch(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Ready,
        job: PullJob,
    ) -> PullDone:
        began = time.monotonic()
        size = self._layout.wire_block_bytes
        expected = first = job.have_tokens // self._layout.block_size
        pull = {"lease": answer.lease, "from_token": job.have_tokens}
        await send_control(writer, Kind.PULL, pull)
        while True:
            due = len(job.block_ids) - expected
            frame = await read_head(reader)
            if frame.kind is not Kind.KV:
                break
            run = decode_run(await read_payload(reader, frame, RUN_HEAD_BYTES + due * size))
            end = run.first + run.count
            if run.first != expected or not 1 <= run.count <= due:
                raise WireError(f"blocks {run.first} to {end} came where {expected} was due")
            if run.data.nbytes != run.count * size:
                raise WireError(f"{run.count} blocks came as {run.data.nbytes} bytes")
            self._runner.write_blocks(job.block_ids[run.first : end], run.data)
            expected = end
        payload = await read_payload(reader, frame, SMALL_CONTROL_BYTES)
        _expected(decode_message(frame.kind, payload), Done)
        if size and expected != len(job.block_ids):
            raise WireError(f"DONE after {expected} of {len(job.block_ids)} blocks")
        return PullDone(
            request_id=job.request_id,
            attempt=job.attempt,
            bytes_moved=max(0, len(job.block_ids) - first) * self._layout.block_bytes,
            seconds=time.monotonic() - began,
        )


async def _next_sign(reader: asyncio.StreamReader) -> Ready | Wait:
    """READY, or WAIT, which comes every second and tells a busy engine from a stopped one."""
    async with _until(time.monotonic() + _SILENCE_S, f"silent for {_SILENCE_S:g} s"):
        message = await read_message(reader)
    return message if isinstance(message, Wait) else _expected(message, Ready)


async def _expect(reader: asyncio.StreamReader, kind: type[_Expected]) -> _Expected:
    return _expected(await read_message(reader), kind)


def _expected(message: Message, kind: type[_Expected]) -> _Expected:
    if isinstance(message, kind):
        return message
    if not isinstance(message, Refused):
        raise WireError(f"{type(message).__name__.upper()} came out of turn")
    cause: PullCause = "fingerprint" if message.reason == "fingerprint" else "refused"
    raise PullError(cause, f"{message.reason}: {message.message}", message.reason)


def _failed(job: PullJob, error: PullError, failed: list[FailedPrefill]) -> PullFailed:
    return PullFailed(
        request_id=job.request_id,
        attempt=job.attempt,
        cause=error.cause,
        message=str(error),
        reason=error.reason,
        failed=tuple(failed),
    )


@contextlib.asynccontextmanager
async def _until(deadline_s: float, message: str) -> AsyncIterator[None]:
    """PullError("timeout", message) at that time of the monotonic clock."""
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()):
            yield
    except TimeoutError as error:
        raise PullError("timeout", message) from error


async def _connect(candidate: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = candidate.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_S):
            return await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError, OverflowError) as error:
        raise PullError("connect", repr(error)) from error


def _as_pull_error(candidate: str, error: Exception) -> PullError:
    if isinstance(error, PullError):
        return PullError(error.cause, f"{candidate}: {error}", error.reason)
    cause: PullCause = "corrupt" if isinstance(error, WireError) else "broken"
    return PullError(cause, f"{candidate}: {error!r}")
