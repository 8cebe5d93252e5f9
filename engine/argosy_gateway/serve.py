"""Sockets, signals, drain: `cli` calls `serve`, which runs until SIGTERM and the last stream.

uvicorn has no limit for silent connections or slow headers, so its protocol class is given one.
TTFT starts at `on_message_begin`: when this process reads the first byte of a request. Not seen:
the TCP handshake, and bytes waiting in the kernel while the event loop is busy.
"""

import asyncio
import contextlib
import logging
import re
import signal
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from argosy_gateway.app import RECEIVED_AT, admin_app, api_app
from argosy_gateway.config import Config, Limits
from argosy_gateway.openai import error_body
from argosy_gateway.relay import Fleet

__all__ = ["running", "serve"]

log = logging.getLogger(__name__)
_SWEEP_S = 1.0
_UPGRADE = re.compile(rb"(?<=\r\n)upgrade(?=:)", re.IGNORECASE)


class _GuardedProtocol(HttpToolsProtocol):
    """Closes connections that bring no request in time, and notes when a request began."""

    limits = Limits()
    max_connections = 4096

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = False
        self._before_body = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._close_with(503, "Service Unavailable", "Too many connections.")
            return
        self._expect_within(self.limits.first_byte_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # An offer of another protocol may be ignored, but the parser then drops the request's body:
        # Java's own client makes one with every request. No JSON has a line that begins so.
        if self._before_body:
            data = _UPGRADE.sub(b"ignored", data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._close_with(
                    431, "Request Header Fields Too Large", "The request's head is too large."
                )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][RECEIVED_AT] = self.loop.time()
        self._in_head, self._head_bytes = True, 0
        self._expect_within(self.limits.head_s)

    def on_headers_complete(self) -> None:
        self._in_head = self._before_body = False
        self._expect_nothing()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._before_body = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._close_with(400, "Bad Request", msg)

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_with(self, status: int, phrase: str, message: str) -> None:
        self._expect_nothing()
        body = error_body(message, type_="invalid_request_error")
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: this module owns the order of the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _server(app: Any, config: Config, *, port: int, drain_timeout_s: float) -> _Server:
    guard = type(
        "GuardedProtocol",
        (_GuardedProtocol,),
        {"limits": config.limits, "max_connections": 2 * config.max_queue + 64},
    )
    return _Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=port,
            http=guard,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(config.limits.keep_alive_s),
            # Whole seconds; the rest is this module's own deadline.
            timeout_graceful_shutdown=max(1, int(drain_timeout_s)),
        )
    )


async def _sweep(fleet: Fleet) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        fleet.sweep()


async def _drain(fleet: Fleet, stop: asyncio.Event, api: _Server) -> None:
    """After `stop`: unready, new connections for a little longer, then the last stream."""
    await stop.wait()
    fleet.draining = True
    log.info("draining: %d requests in flight", len(fleet.relays))
    # Endpoints of a Service follow readiness with a delay: new connections still arrive.
    await asyncio.sleep(fleet.config.drain_lag_s)
    api.should_exit = True


@contextlib.asynccontextmanager
async def running(fleet: Fleet, *, stop: asyncio.Event) -> AsyncIterator[Sequence[int]]:
    """Both servers, accepting; yields their ports (API, admin). Leaving awaits `stop`, drains."""
    config = fleet.config
    api = _server(
        api_app(fleet),
        config,
        port=config.port,
        drain_timeout_s=config.drain_timeout_s - config.drain_lag_s,
    )
    admin = _server(admin_app(fleet), config, port=config.admin_port, drain_timeout_s=1)
    sweeper = asyncio.create_task(_sweep(fleet))
    drainer = asyncio.create_task(_drain(fleet, stop, api))
    tasks = [asyncio.create_task(s.serve()) for s in (api, admin)]
    try:
        while not (api.started and admin.started):
            if any(t.done() for t in tasks):
                raise OSError(f"cannot listen on {config.host}:{config.port}/{config.admin_port}")
            await asyncio.sleep(0.005)  # uvicorn has no event for this
        yield [s.servers[0].sockets[0].getsockname()[1] for s in (api, admin)]
        await drainer
        await tasks[0]
        admin.should_exit = True
        await tasks[1]
    finally:
        sweeper.cancel()
        drainer.cancel()
        api.should_exit = admin.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(fleet: Fleet, source: Any) -> None:
    """Run until SIGTERM or SIGINT and the end of the drain; `source` keeps the directory."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    watcher = asyncio.create_task(source)
    try:
        async with running(fleet, stop=stop) as ports:
            log.info("serving fleet %s on ports %s", fleet.config.fleet, list(ports))
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
