"""Decode's end of a hand-over: find a prefill engine that answers, and fetch its KV.

A `PullOrder` ends in one event. Candidates are tried in order until one has computed the prompt;
after that its first token may be with the client already, so a later failure is not tried again
elsewhere: decode computes the prompt itself.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from argosy_engine.core.runner import Runner
from argosy_engine.core.transfer import PullDone, PullEvent, PullFailed, PullOrder, PullReady
from argosy_engine.kv.messages import Accepted, Done, Message, Ready, Refused, decode_message
from argosy_engine.kv.stream import read_head, read_message, read_payload, send_control
from argosy_engine.kv.wire import (
    RUN_HEAD_BYTES,
    SMALL_CONTROL_BYTES,
    Kind,
    WireError,
    decode_run,
)

__all__ = ["Puller"]

_CONNECT_S = 2.0
_ACCEPT_S = 5.0
_Expected = TypeVar("_Expected", Accepted, Ready, Done)
Cause = Literal["connect", "refused", "fingerprint", "timeout", "broken", "corrupt", "cancelled"]


class PullError(Exception):
    """One candidate failed; `final` when its first token was handed out already."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause
        self.final = False


class Puller:
    """Runs pulls on the KV thread's event loop; posts their events into the engine's inbox."""

    def __init__(self, runner: Runner, lease_s: float, post: Callable[[PullEvent], None]) -> None:
        self._runner = runner
        self._layout = runner.kv_layout()
        self._lease_s = lease_s
        self._post = post

    async def pull(self, order: PullOrder) -> None:
        """Posts exactly one PullDone or PullFailed, whatever happens."""
        failure = PullError("connect", "there was no candidate")
        try:
            async with asyncio.timeout(order.timeout_s):
                for candidate in order.candidates:
                    try:
                        self._post(await self._pull_from(candidate, order))
                        return
                    except PullError as error:
                        failure = error
                        if error.final:
                            break
        except TimeoutError:
            failure = PullError("timeout", f"no KV within {order.timeout_s:g} s")
        except asyncio.CancelledError:
            failure = PullError("cancelled", "the request ended before its KV came")
        except Exception as error:
            # A pull must end in an event: a request without one would wait for ever.
            failure = PullError("broken", f"unexpected: {error!r}")
        self._post(
            PullFailed(
                request_id=order.request_id,
                attempt=order.attempt,
                cause=failure.cause,
                message=str(failure),
            )
        )

    async def _pull_from(self, candidate: str, order: PullOrder) -> PullDone:
        host, _, port = candidate.rpartition(":")
        try:
            connecting = asyncio.open_connection(host.strip("[]"), int(port))
            reader, writer = await asyncio.wait_for(connecting, _CONNECT_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise PullError("connect", f"{candidate}: {error!r}") from error
        ready = False
        try:
            await self._ask(reader, writer, order)
            answer = await _expect(reader, Ready)
            self._post(self._ready(answer, order))
            ready = True
            done = await self._fetch(reader, writer, answer, order)
        except (PullError, WireError, EOFError, OSError) as error:
            failed = _as_pull_error(candidate, error)
            failed.final = ready
            raise failed from error
        else:
            with contextlib.suppress(OSError):  # everything is here: its lease ends with it
                await send_control(writer, Kind.RELEASE, {"lease": answer.lease})
            writer.close()
            return done
        finally:
            if not writer.is_closing():
                writer.transport.abort()  # closing would wait until a silent peer reads the rest

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, order: PullOrder
    ) -> None:
        hello = {
            "request_id": order.request_id,
            "attempt": order.attempt,
            "fingerprint": self._layout.fingerprint,
            "token_ids": list(order.token_ids),
            "sampling": order.sampling.to_json(),
            "lease_s": self._lease_s,
        }
        try:
            async with asyncio.timeout(_ACCEPT_S):
                await send_control(writer, Kind.PREFILL, hello)
                await _expect(reader, Accepted)
        except TimeoutError as error:
            raise PullError("timeout", f"not accepted within {_ACCEPT_S:g} s") from error

    def _ready(self, answer: Ready, order: PullOrder) -> PullReady:
        """Whatever READY says is checked before a token of it reaches a client."""
        if (answer.n_tokens, answer.n_blocks) != (len(order.token_ids), len(order.block_ids)):
            raise WireError(f"READY is not about this prompt of {len(order.token_ids)} tokens")
        if answer.first_token >= self._runner.vocab_size:
            raise WireError(f"this model has no token {answer.first_token}")
        return PullReady(
            request_id=order.request_id,
            attempt=order.attempt,
            first_token=answer.first_token,
            prefill_pod=answer.pod,
        )

    async def _fetch(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Ready,
        order: PullOrder,
    ) -> PullDone:
        began = time.monotonic()
        size = self._layout.wire_block_bytes
        expected = first = order.have_tokens // self._layout.block_size
        pull = {"lease": answer.lease, "from_token": order.have_tokens}
        await send_control(writer, Kind.PULL, pull)
        while True:
            due = len(order.block_ids) - expected
            frame = await read_head(reader)
            if frame.kind is not Kind.KV:
                break
            run = decode_run(await read_payload(reader, frame, RUN_HEAD_BYTES + due * size))
            end = run.first + run.count
            if run.first != expected or not 1 <= run.count <= due:
                raise WireError(f"blocks {run.first} to {end} came where {expected} was due")
            if run.data.nbytes != run.count * size:
                raise WireError(f"{run.count} blocks came as {run.data.nbytes} bytes")
            self._runner.write_blocks(order.block_ids[run.first : end], run.data)
            expected = end
        payload = await read_payload(reader, frame, SMALL_CONTROL_BYTES)
        _expected(decode_message(frame.kind, payload), Done)
        if size and expected != len(order.block_ids):
            raise WireError(f"DONE after {expected} of {len(order.block_ids)} blocks")
        return PullDone(
            request_id=order.request_id,
            attempt=order.attempt,
            bytes_moved=max(0, len(order.block_ids) - first) * self._layout.block_bytes,
            seconds=time.monotonic() - began,
        )


async def _expect(reader: asyncio.StreamReader, kind: type[_Expected]) -> _Expected:
    return _expected(await read_message(reader), kind)


def _expected(message: Message, kind: type[_Expected]) -> _Expected:
    if isinstance(message, kind):
        return message
    if not isinstance(message, Refused):
        raise WireError(f"{type(message).__name__.upper()} came out of turn")
    cause: Cause = "fingerprint" if message.reason == "fingerprint" else "refused"
    raise PullError(cause, f"{message.reason}: {message.message}")


def _as_pull_error(candidate: str, error: Exception) -> PullError:
    if isinstance(error, PullError):
        return PullError(error.cause, f"{candidate}: {error}")
    cause: Cause = "corrupt" if isinstance(error, WireError) else "broken"
    return PullError(cause, f"{candidate}: {error!r}")
