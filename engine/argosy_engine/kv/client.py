"""Decode's end of a hand-over: find a prefill engine that answers, and fetch its KV.

A `PullOrder` ends in one event. Candidates are tried in order until one has computed the prompt;
after that its first token may be with the client already, so a later failure is not tried again
elsewhere: decode computes the prompt itself.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from argosy_engine.core.runner import Runner
from argosy_engine.core.transfer import PullDone, PullEvent, PullFailed, PullOrder, PullReady
from argosy_engine.kv.stream import read_control, read_frame, send_control
from argosy_engine.kv.wire import Kind, WireError, decode_control, decode_run

__all__ = ["Puller"]

_CONNECT_S = 2.0
_ACCEPT_S = 5.0
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
            answer = await self._expect(reader, Kind.READY)
            event = self._ready(answer, order)
            self._post(event)
            ready = True
            done = await self._fetch(reader, writer, answer, order)
            await send_control(writer, Kind.RELEASE, {"lease": answer["lease"]})
            return done
        except (PullError, WireError, EOFError, OSError) as error:
            failed = _as_pull_error(candidate, error)
            failed.final = ready
            raise failed from error
        finally:
            writer.close()

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
        await send_control(writer, Kind.PREFILL, hello)
        try:
            await asyncio.wait_for(self._expect(reader, Kind.ACCEPTED), _ACCEPT_S)
        except TimeoutError as error:
            raise PullError("timeout", f"not accepted within {_ACCEPT_S:g} s") from error

    async def _expect(self, reader: asyncio.StreamReader, kind: Kind) -> dict[str, Any]:
        got, payload = await read_control(reader)
        if got is not kind:
            raise _refusal(got, payload)
        return payload

    def _ready(self, answer: dict[str, Any], order: PullOrder) -> PullReady:
        """Whatever READY says is checked before a token of it reaches a client."""
        token, pod = answer.get("first_token"), answer.get("pod", "")
        right = answer.get("n_tokens") == len(order.token_ids)
        right &= answer.get("n_blocks") == len(order.block_ids)
        if not right or type(token) is not int or "lease" not in answer:
            raise WireError(f"READY is not about this prompt of {len(order.token_ids)} tokens")
        return PullReady(
            request_id=order.request_id,
            attempt=order.attempt,
            first_token=token,
            prefill_pod=str(pod),
        )

    async def _fetch(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: dict[str, Any],
        order: PullOrder,
    ) -> PullDone:
        began = time.monotonic()
        size = self._layout.wire_block_bytes
        expected = first = order.have_tokens // self._layout.block_size
        await send_control(
            writer, Kind.PULL, {"lease": answer["lease"], "from_token": order.have_tokens}
        )
        while True:
            frame, payload = await read_frame(reader)
            if frame.kind is not Kind.KV:
                break
            run = decode_run(payload)
            end = run.first + run.count
            if run.first != expected or end > len(order.block_ids):
                raise WireError(f"blocks {run.first} to {end} came where {expected} was due")
            if run.data.nbytes != run.count * size:
                raise WireError(f"{run.count} blocks came as {run.data.nbytes} bytes")
            self._runner.write_blocks(order.block_ids[run.first : end], run.data)
            expected = end
        if frame.kind is not Kind.DONE:
            raise _refusal(frame.kind, decode_control(payload))
        if size and expected != len(order.block_ids):
            raise WireError(f"DONE after {expected} of {len(order.block_ids)} blocks")
        return PullDone(
            request_id=order.request_id,
            attempt=order.attempt,
            bytes_moved=max(0, len(order.block_ids) - first) * self._layout.block_bytes,
            seconds=time.monotonic() - began,
        )


def _refusal(kind: Kind, payload: dict[str, Any]) -> Exception:
    if kind is not Kind.REFUSED:
        return WireError(f"{kind.name} came out of turn")
    cause: Cause = "fingerprint" if payload.get("reason") == "fingerprint" else "refused"
    return PullError(cause, f"{payload.get('reason')}: {payload.get('message')}")


def _as_pull_error(candidate: str, error: Exception) -> PullError:
    if isinstance(error, PullError):
        return PullError(error.cause, f"{candidate}: {error}")
    cause: Cause = "corrupt" if isinstance(error, WireError) else "broken"
    return PullError(cause, f"{candidate}: {error!r}")
