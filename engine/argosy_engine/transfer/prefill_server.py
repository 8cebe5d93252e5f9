"""Prefill's end of a handover: one connection is one prompt, from PREFILL to RELEASE.

Talks to decode over TCP and to the engine loop through `PrefillPort`. The connection holds the
lease: when it closes, the lease ends.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from argosy_engine import logs
from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import (
    LeaseReady,
    PrefillEvent,
    PrefillPort,
    PrefillRefused,
    RemotePrefill,
)
from argosy_engine.core.request import client_id
from argosy_engine.errors import EngineError, LeaseGoneError
from argosy_engine.ports.runner import Runner
from argosy_engine.transfer.messages import Message, Prefill, Pull, Release, Renew, decode_message
from argosy_engine.transfer.stream import read_head, read_message, read_payload, send_control
from argosy_engine.transfer.wire import (
    MAX_CONTROL_BYTES,
    TOKEN_BYTES,
    Kind,
    WireError,
    decode_tokens,
    encode_run,
)

__all__ = ["PrefillServer"]

log = logging.getLogger(__name__)

_HELLO_S = 10.0  # from accept to a whole PREFILL frame
_WAIT_EVERY_S = 1.0  # between WAIT frames while a prompt is queued or computed
_RUN_BYTES = 4 << 20  # blocks are sent in runs of about this size
_CONNECTIONS = 1024
_UNFINISHED_BYTES = 32 << 20  # of all PREFILL and TOKENS frames that are still arriving
_LAST_WORD_S = 2.0  # for a refusal to reach its peer


class _RefusedError(EngineError):
    """The connection is refused before the engine is asked; becomes a REFUSED frame."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PrefillServer:
    """`serve` is asyncio's connection callback."""

    def __init__(self, config: EngineConfig, runner: Runner, prefill: PrefillPort) -> None:
        self._config = config
        self._runner = runner
        self._layout = runner.kv_layout()
        self._prefill = prefill
        self._connections = 0
        self._unfinished_bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _CONNECTIONS:
                raise _RefusedError("busy", f"{_CONNECTIONS} connections are open")
            await self._converse(reader, writer)
        except _RefusedError as refused:
            await _refuse(reader, writer, refused.reason, str(refused))
        except WireError as error:
            await _refuse(reader, writer, "protocol", str(error))
        except (OSError, EOFError, TimeoutError):
            pass  # the peer is gone or silent; the lease has ended already
        finally:
            self._connections -= 1
            # abort, not close: close waits until the peer has read all. After RELEASE all is read.
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HELLO_S):
            hello = await self._hello(reader)
            logs.bind(request_id=client_id(hello.request_id), attempt=hello.attempt)
            token_ids = await self._tokens(reader, hello)
        prefill_job = RemotePrefill(
            request_id=hello.request_id,
            attempt=hello.attempt,
            token_ids=token_ids,
            sampling=hello.sampling,
            lease_s=min(hello.lease_s, self._config.lease_s),
        )
        log.debug("compute a prompt of %d tokens for a decode engine", hello.n_tokens)
        await send_control(writer, Kind.ACCEPTED, {"engine_epoch": self._prefill.engine_epoch})
        following = asyncio.create_task(read_message(reader))
        following.add_done_callback(_look_at)  # a peer that leaves early is not logged
        refused = False
        try:
            event = await self._computed(prefill_job, following, writer)
            if isinstance(event, PrefillRefused):
                refused = True
                log.info("refused: %s: %s", event.reason, event.message)
                raise _RefusedError(event.reason, event.message)
            await send_control(writer, Kind.READY, self._ready(event))
            await self._serve_lease(event, following, reader, writer)
        finally:
            if not refused:  # a refused duplicate must not end the lease of the first request
                self._prefill.abort_remote_prefill(prefill_job.request_id, prefill_job.attempt)
            following.cancel()
            await asyncio.wait((following,))  # only now may another task read

    async def _hello(self, reader: asyncio.StreamReader) -> Prefill:
        head = await read_head(reader)
        if head.kind is not Kind.PREFILL:
            raise WireError(f"a connection begins with PREFILL, not {head.kind.name}")
        with self._room_for(head.length):
            payload = await read_payload(reader, head, MAX_CONTROL_BYTES)
        message = decode_message(head.kind, payload)
        assert isinstance(message, Prefill)
        if message.fingerprint != self._layout.fingerprint:
            text = f"here {self._layout.fingerprint!r}, there {message.fingerprint!r}"
            raise _RefusedError("fingerprint", f"the KV layouts differ: {text}")
        longest = self._runner.max_model_len
        if message.n_tokens > longest:
            text = f"this model's context is {longest} tokens; the prompt has {message.n_tokens}"
            raise _RefusedError("context_length_exceeded", text)
        return message

    async def _tokens(self, reader: asyncio.StreamReader, hello: Prefill) -> tuple[int, ...]:
        """The prompt that follows a PREFILL; its length was checked, so its bytes are bounded."""
        head = await read_head(reader)
        size = TOKEN_BYTES * hello.n_tokens
        if (head.kind, head.length) != (Kind.TOKENS, size):
            raise WireError(
                f"{head.kind.name} of {head.length} bytes came where TOKENS of {size} were due"
            )
        with self._room_for(size):
            return decode_tokens(await read_payload(reader, head, size))

    @contextlib.contextmanager
    def _room_for(self, size: int) -> Iterator[None]:
        """Reserve the bytes of an arriving frame; `busy` above the limit of all connections."""
        if self._unfinished_bytes + size > _UNFINISHED_BYTES:
            raise _RefusedError(
                "busy", f"{self._unfinished_bytes} bytes of prompts are still arriving"
            )
        self._unfinished_bytes += size
        try:
            yield
        finally:
            self._unfinished_bytes -= size

    async def _computed(
        self,
        prefill_job: RemotePrefill,
        following: "asyncio.Task[Message]",
        writer: asyncio.StreamWriter,
    ) -> PrefillEvent:
        """The engine's answer; WireError, EOFError or OSError if the peer acts before it."""
        aio = asyncio.get_running_loop()
        answer: asyncio.Future[PrefillEvent] = aio.create_future()

        def settle(event: PrefillEvent) -> None:
            if not answer.done():
                answer.set_result(event)

        def on_event(event: PrefillEvent) -> None:
            aio.call_soon_threadsafe(settle, event)

        self._prefill.submit_remote_prefill(prefill_job, on_event)
        both = (answer, following)
        first = asyncio.FIRST_COMPLETED
        while not (await asyncio.wait(both, timeout=_WAIT_EVERY_S, return_when=first))[0]:
            await send_control(writer, Kind.WAIT, {})
        if answer.done():
            return answer.result()
        raise WireError(f"{_name(following.result())} came before READY")

    def _ready(self, event: LeaseReady) -> dict[str, Any]:
        return {
            "lease": [event.key.request_id, event.key.attempt],
            "engine_epoch": event.key.engine_epoch,
            "first_token": event.first_token,
            "n_tokens": event.n_tokens,
            "n_blocks": len(event.block_ids),
            "pod": self._config.pod_name,
            "timings": {"queue_s": event.queue_s, "prefill_s": event.prefill_s},
        }

    async def _serve_lease(
        self,
        event: LeaseReady,
        following: "asyncio.Task[Message]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        lease_s = self._config.lease_s
        mine = (event.key.request_id, event.key.attempt)
        message = await asyncio.wait_for(following, 2 * lease_s)
        while message != Release(lease=mine):
            if not isinstance(message, Pull | Renew | Release):
                raise WireError(f"{_name(message)} makes no sense while a lease is held")
            try:
                if message.lease != mine:
                    raise LeaseGoneError(f"{message.lease} is not the lease of this connection")
                if isinstance(message, Pull):
                    await self._send(event, message.from_token, writer)
                else:
                    self._prefill.renew(event.key, lease_s)
            except LeaseGoneError as error:
                raise _RefusedError("lease_gone", str(error)) from error
            message = await asyncio.wait_for(read_message(reader), 2 * lease_s)
        self._prefill.release(event.key)
        log.debug("handed over")

    async def _send(self, event: LeaseReady, from_token: int, writer: asyncio.StreamWriter) -> None:
        """KV frames and DONE. The blocks stay pinned until the last byte left or the time is up."""
        layout = self._layout
        began = time.monotonic()
        blocks = self._prefill.begin_send(event.key)
        try:
            first = from_token // layout.block_size
            count = max(0, len(blocks) - first)
            step = max(1, _RUN_BYTES // max(1, layout.wire_block_bytes))
            async with asyncio.timeout(self._config.kv_timeout_s):
                if layout.wire_block_bytes:
                    for at in range(first, len(blocks), step):
                        run = blocks[at : at + step]
                        data = self._runner.read_blocks(run)
                        writer.write(encode_run(at, len(run), data))
                        writer.write(data)
                        await writer.drain()
                elif layout.simulated_bytes_per_s:
                    await asyncio.sleep(count * layout.block_bytes / layout.simulated_bytes_per_s)
                await send_control(writer, Kind.DONE, {"n_blocks": count})
        finally:
            self._prefill.end_send(event.key)
        self._prefill.observe_send(
            bytes_moved=count * layout.block_bytes, seconds=time.monotonic() - began
        )


def _look_at(task: "asyncio.Task[Message]") -> None:
    if not task.cancelled():
        task.exception()


def _name(message: Message) -> str:
    return type(message).__name__.upper()


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reason: str, message: str
) -> None:
    """Say why, and read on until the peer has it: closing on unread bytes resets the connection."""
    with contextlib.suppress(OSError):  # it is gone or does not listen
        async with asyncio.timeout(_LAST_WORD_S):
            refusal = {"reason": reason, "message": message[:2000]}
            await send_control(writer, Kind.REFUSED, refusal)
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
