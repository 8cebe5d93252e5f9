"""Prefill's end of a handover: who may open a connection, and one prompt from PREFILL to RELEASE.

Talks to decode over TCP and to the engine loop through `PrefillPort`. Every connection begins with
OPEN. PREFILL makes it the connection of one prompt, which holds the lease: when it closes, the
lease ends. PULL makes it a connection for KV (`sending.py`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from argosy import logs
from argosy.descriptors import share
from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import (
    LeaseReady,
    PrefillEvent,
    PrefillPort,
    PrefillProgress,
    PrefillRefused,
    RemotePrefill,
    refuse_tp,
)
from argosy_engine.core.request import client_id
from argosy_engine.core.runner import Runner
from argosy_engine.errors import EngineError, LeaseGoneError, LeaseTakenError
from argosy_engine.transfer.messages import (
    Message,
    Open,
    Prefill,
    Pull,
    Release,
    Renew,
    decode_message,
    read_head,
    read_message,
    read_payload,
    send_control,
)
from argosy_engine.transfer.nixl import NIXL, Link, LinkError
from argosy_engine.transfer.sending import KvSender, NotReadyError
from argosy_engine.transfer.wire import (
    MAX_CONTROL_BYTES,
    SMALL_CONTROL_BYTES,
    TOKEN_BYTES,
    Frame,
    Kind,
    WireError,
    decode_tokens,
)

log = logging.getLogger(__name__)

Authorize = Callable[[str], str | None]
"""From a credential to why its owner is refused; None: it may call."""

_HELLO_S = 10.0  # from accept to a whole prompt
_WAIT_EVERY_S = 1.0  # between WAIT frames while a prompt is queued or computed
_CONNECTIONS = 2048
_UNFINISHED_BYTES = 32 << 20  # of all PREFILL and TOKENS frames that are still arriving
_LAST_WORD_S = 2.0  # for a refusal to reach its peer


class _RefusedError(EngineError):
    """The connection is refused; becomes a REFUSED frame."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PrefillServer:
    """`serve` is asyncio's connection callback."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        prefill: PrefillPort,
        authorize: Authorize | None = None,
        link: Link | None = None,
    ) -> None:
        self._link = link
        self._config = config
        self._runner = runner
        self._layout = runner.kv_layout()
        self._prefill = prefill
        self._authorize = authorize
        self._sender = KvSender(
            runner,
            prefill,
            idle_s=2 * config.lease_s,
            min_bytes_per_s=config.kv_min_bytes_per_s,
            link=link,
        )
        self.proven: Callable[[int], None] = lambda _: None
        """Called with the descriptor of each connection whose caller has shown who he is."""
        self._most = share(1 / 3, most=_CONNECTIONS)
        self._connections = 0
        self._unfinished_bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > self._most:
                raise _RefusedError("busy", f"{self._most} connections are open")
            await self._converse(reader, writer)
        except _RefusedError as refused:
            await _refuse(reader, writer, refused.reason, str(refused))
        except LeaseGoneError as error:
            await _refuse(reader, writer, "lease_gone", str(error))
        except NotReadyError as error:
            await _refuse(reader, writer, "not_ready", str(error))
        except LinkError as error:
            log.warning("a peer takes TCP: NIXL failed: %s", error)
            await _refuse(reader, writer, "transport", str(error))
        except WireError as error:
            await _refuse(reader, writer, "protocol", str(error))
        except (OSError, EOFError, TimeoutError):
            pass  # the peer is gone, silent or slow; its lease has ended or will
        except asyncio.CancelledError:
            pass  # the service ends; asyncio would log the connection as an error
        finally:
            self._connections -= 1
            # abort, not close: close waits until the peer has read all. After RELEASE all is read.
            writer.transport.abort()

    def close(self) -> None:
        """After the last connection has ended."""
        self._sender.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HELLO_S):
            await self._read_open(reader)
            self.proven(writer.get_extra_info("socket").fileno())
            head = await read_head(reader)
            if head.kind is Kind.PREFILL:
                first: RemotePrefill | Message = await self._read_prompt(head, reader)
            elif head.kind in (Kind.PULL, Kind.PUSH):
                payload = await read_payload(reader, head, SMALL_CONTROL_BYTES)
                first = decode_message(head.kind, payload)
            else:
                raise WireError(f"{head.kind.name} came where PREFILL, PULL or PUSH was due")
        match first:
            case RemotePrefill():
                await self._hand_over(first, reader, writer)
            case Pull():
                await self._sender.serve(first, reader, writer)

    async def _read_open(self, reader: asyncio.StreamReader) -> None:
        head = await read_head(reader)
        if head.kind is not Kind.OPEN:
            raise WireError(f"a connection begins with OPEN, not {head.kind.name}")
        payload = await read_payload(reader, head, SMALL_CONTROL_BYTES)
        opening = decode_message(head.kind, payload)
        assert isinstance(opening, Open)
        why = self._authorize(opening.credential) if self._authorize is not None else None
        if why is not None:
            raise _RefusedError("unauthorized", why)
        here = self._config.pod_uid
        if opening.pod_uid and here and opening.pod_uid != here:
            raise _RefusedError(
                "wrong_pod", f"this is pod {here}, not {opening.pod_uid}: its address was reused"
            )

    async def _read_prompt(self, head: Frame, reader: asyncio.StreamReader) -> RemotePrefill:
        """The prompt of a PREFILL frame that this engine can compute."""
        with self._room_for(head.length):
            payload = await read_payload(reader, head, MAX_CONTROL_BYTES)
        asked = decode_message(head.kind, payload)
        assert isinstance(asked, Prefill)
        self._check_fit(asked)
        logs.bind(request_id=client_id(asked.request_id), attempt=asked.attempt)
        return RemotePrefill(
            request_id=asked.request_id,
            attempt=asked.attempt,
            token_ids=await self._tokens(reader, asked),
            sampling=asked.sampling,
            lease_s=min(asked.lease_s, self._config.lease_s),
            priority=asked.priority,
        )

    def _check_fit(self, asked: Prefill) -> None:
        if why := refuse_tp(prefill=self._layout.tp, decode=asked.tp):
            raise _RefusedError("fingerprint", why)
        if asked.fingerprint != self._layout.fingerprint:
            text = f"here {self._layout.fingerprint!r}, there {asked.fingerprint!r}"
            raise _RefusedError("fingerprint", f"the KV layouts differ: {text}")
        longest = self._runner.max_model_len
        if asked.n_tokens > longest:
            text = f"this model's context is {longest} tokens; the prompt has {asked.n_tokens}"
            raise _RefusedError("context_length_exceeded", text)

    async def _tokens(self, reader: asyncio.StreamReader, asked: Prefill) -> tuple[int, ...]:
        """The prompt that follows a PREFILL; its length was checked, so its bytes are bounded."""
        head = await read_head(reader)
        size = TOKEN_BYTES * asked.n_tokens
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

    async def _hand_over(
        self,
        prefill_job: RemotePrefill,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """The lease ends with this call, however it ends."""
        grammar, grammars = prefill_job.sampling.grammar, self._runner.grammars
        if not grammar or grammars is None:
            await self._lend(prefill_job, reader, writer)
            return
        # Before it is submitted: the step that draws its first token would wait. Its decode engine
        # has tried it, and knows that it takes no longer than two seconds.
        with grammars.held(grammar):
            await asyncio.to_thread(grammars.prepare, grammar)
            await self._lend(prefill_job, reader, writer)

    async def _lend(
        self,
        prefill_job: RemotePrefill,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        log.debug("compute a prompt of %d tokens for a decode engine", len(prefill_job.token_ids))
        events: asyncio.Queue[PrefillEvent] = asyncio.Queue()
        aio = asyncio.get_running_loop()

        def on_event(event: PrefillEvent) -> None:
            aio.call_soon_threadsafe(events.put_nowait, event)

        try:
            ticket = self._prefill.submit_remote_prefill(prefill_job, on_event)
        except LeaseTakenError as error:
            raise _RefusedError("duplicate", str(error)) from error
        following = asyncio.create_task(read_message(reader))
        following.add_done_callback(_look_at)  # a peer that leaves early is not logged
        try:
            await self._admit(writer, ticket)
            ready = await self._follow_until_ready(events, following, writer)
            await send_control(writer, Kind.READY, self._ready(ready))
            await self._hold(ready, following, reader)
        finally:
            self._prefill.abort_remote_prefill(prefill_job.request_id, prefill_job.attempt)
            following.cancel()
            await asyncio.wait((following,))  # only now may another task read

    async def _admit(self, writer: asyncio.StreamWriter, ticket: str) -> None:
        admitted: dict[str, object] = {
            "ticket": ticket,
            "engine_epoch": self._prefill.engine_epoch,
        }
        if self._link is not None and self._link.offer is not None:
            admitted["transports"] = [NIXL]
        await send_control(writer, Kind.ADMITTED, admitted)

    async def _follow_until_ready(
        self,
        events: "asyncio.Queue[PrefillEvent]",
        following: "asyncio.Task[Message]",
        writer: asyncio.StreamWriter,
    ) -> LeaseReady:
        """WAIT until the prompt is computed; WireError, EOFError or OSError if the peer acts."""
        n_ready = 0
        event = asyncio.create_task(events.get())
        try:
            while True:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait((event, following), timeout=_WAIT_EVERY_S, return_when=first)
                if following.done():
                    raise WireError(f"{_name(following.result())} came before READY")
                if event.done():
                    match event.result():
                        case LeaseReady() as ready:
                            return ready
                        case PrefillRefused(reason=reason, message=message):
                            log.info("refused: %s: %s", reason, message)
                            raise _RefusedError(reason, message)
                        case PrefillProgress(n_ready=n_ready):
                            event = asyncio.create_task(events.get())
                waiting = {"step": self._prefill.computed_steps, "n_ready": n_ready}
                await send_control(writer, Kind.WAIT, waiting)
        finally:
            event.cancel()

    def _ready(self, event: LeaseReady) -> dict[str, object]:
        return {
            "request_id": event.key.request_id,
            "attempt": event.key.attempt,
            "engine_epoch": event.key.engine_epoch,
            "fingerprint": self._layout.fingerprint,
            "dtype": self._layout.dtype,
            "first_token": event.first_token,
            "n_tokens": event.n_tokens,
            "n_blocks": event.n_blocks,
            "pod": self._config.pod_name,
        }

    async def _hold(
        self, event: LeaseReady, following: "asyncio.Task[Message]", reader: asyncio.StreamReader
    ) -> None:
        lease_s = self._config.lease_s
        message = await asyncio.wait_for(following, 2 * lease_s)
        while not isinstance(message, Release):
            if not isinstance(message, Renew):
                raise WireError(f"{_name(message)} makes no sense while a lease is held")
            self._prefill.renew(event.key, lease_s)
            message = await asyncio.wait_for(read_message(reader), 2 * lease_s)
        log.debug("handed over")


def _look_at(task: "asyncio.Task[Message]") -> None:
    if not task.cancelled():
        task.exception()


def _name(message: Message) -> str:
    return type(message).__name__.upper()


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reason: str, message: str
) -> None:
    """Say why, and read on until the peer has it: closing on unread bytes resets the connection."""
    # It is gone or does not listen, or the service ends.
    with contextlib.suppress(OSError, asyncio.CancelledError):
        async with asyncio.timeout(_LAST_WORD_S):
            refusal = {"reason": reason, "message": message[:2000]}
            await send_control(writer, Kind.REFUSED, refusal)
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(1 << 16):
                pass
