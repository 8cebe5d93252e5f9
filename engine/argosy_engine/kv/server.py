"""Prefill's end of a hand-over: one connection is one prompt, from PREFILL to RELEASE.

Speaks to decode over TCP and to the engine loop through `PrefillPort`. The connection is the
lease's life line: when it closes, for whatever reason, the lease is given up.
"""

import asyncio
import contextlib
import time
from typing import Any

from argosy_engine.config import EngineConfig
from argosy_engine.core.runner import Runner
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.transfer import (
    LeaseGone,
    LeaseReady,
    PrefillEvent,
    PrefillPort,
    PrefillRefused,
    RemotePrefill,
)
from argosy_engine.kv.stream import read_control, send_control
from argosy_engine.kv.wire import Kind, WireError, encode_run

__all__ = ["PrefillServer"]

_HELLO_S = 10.0  # from accept to a whole PREFILL frame
_RUN_BYTES = 4 << 20  # blocks are sent in runs of about this size


class PrefillServer:
    """`serve` is asyncio's connection callback."""

    def __init__(self, config: EngineConfig, runner: Runner, prefill: PrefillPort) -> None:
        self._config = config
        self._runner = runner
        self._layout = runner.kv_layout()
        self._prefill = prefill

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except WireError as error:
            await _refuse(writer, "protocol", str(error))
        except (OSError, EOFError, TimeoutError):
            pass  # the peer is gone or silent: the lease was given up on the way here
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, hello = await asyncio.wait_for(read_control(reader), _HELLO_S)
        if kind is not Kind.PREFILL:
            raise WireError(f"a connection begins with PREFILL, not {kind.name}")
        if hello.get("fingerprint") != self._layout.fingerprint:
            text = f"here {self._layout.fingerprint!r}, there {hello.get('fingerprint')!r}"
            await _refuse(writer, "fingerprint", f"the KV layouts differ: {text}")
            return
        order = _order(hello, self._config.lease_s)
        await send_control(writer, Kind.ACCEPTED, {"engine_epoch": self._prefill.engine_epoch})
        following = asyncio.create_task(read_control(reader))
        refused = False
        try:
            event = await self._computed(order, following)
            if isinstance(event, PrefillRefused):
                refused = True
                await _refuse(writer, event.reason, event.message)
            elif event is not None:
                await send_control(writer, Kind.READY, self._ready(event))
                await self._serve_lease(event, following, reader, writer)
        finally:
            following.cancel()
            if not refused:  # a refused twin must not end the lease of the one that was there first
                self._prefill.abort_remote_prefill(order.request_id, order.attempt)

    async def _computed(
        self, order: RemotePrefill, following: "asyncio.Task[tuple[Kind, dict[str, Any]]]"
    ) -> PrefillEvent | None:
        """The engine's answer; None when the peer left (or spoke out of turn) before it."""
        aio = asyncio.get_running_loop()
        answer: asyncio.Future[PrefillEvent] = aio.create_future()

        def settle(event: PrefillEvent) -> None:
            if not answer.done():
                answer.set_result(event)

        def on_event(event: PrefillEvent) -> None:
            aio.call_soon_threadsafe(settle, event)

        self._prefill.submit_remote_prefill(order, on_event)
        await asyncio.wait((answer, following), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None

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
        following: "asyncio.Task[tuple[Kind, dict[str, Any]]]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        lease_s = self._config.lease_s
        kind, payload = await asyncio.wait_for(following, 2 * lease_s)
        while kind is not Kind.RELEASE:
            try:
                if kind is Kind.PULL:
                    await self._send(event, _whole(payload, "from_token"), writer)
                elif kind is Kind.RENEW:
                    self._prefill.renew(event.key, lease_s)
                else:
                    raise WireError(f"{kind.name} makes no sense while a lease is held")
            except LeaseGone as gone:
                await _refuse(writer, "lease_gone", str(gone))
                return
            kind, payload = await asyncio.wait_for(read_control(reader), 2 * lease_s)
        self._prefill.release(event.key)

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


def _order(hello: dict[str, Any], longest_lease_s: float) -> RemotePrefill:
    try:
        token_ids = hello["token_ids"]
        if not token_ids or not all(type(token) is int and token >= 0 for token in token_ids):
            raise ValueError("token_ids must be a list of ids, not empty")
        return RemotePrefill(
            request_id=str(hello["request_id"])[:128],
            attempt=int(hello["attempt"]),
            token_ids=tuple(token_ids),
            sampling=SamplingParams.from_json(hello["sampling"]),
            lease_s=min(float(hello["lease_s"]), longest_lease_s),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"bad PREFILL: {error!r}") from error


def _whole(payload: dict[str, Any], name: str) -> int:
    value = payload.get(name)
    if type(value) is not int or value < 0:
        raise WireError(f"{name} must be a whole number, not {value!r}")
    return value


async def _refuse(writer: asyncio.StreamWriter, reason: str, message: str) -> None:
    with contextlib.suppress(OSError):  # it is gone: nobody to tell
        await send_control(writer, Kind.REFUSED, {"reason": reason, "message": message[:2000]})
