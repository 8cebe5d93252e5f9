"""Sockets, signals and the drain: `cli` calls `serve`, which runs until the end of the drain.

TTFT starts at `Guard.on_message_begin`, when this process reads a request's first byte.
It does not include the TCP handshake, nor the time for which bytes wait in the kernel while the
event loop is busy.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

from argosy import descriptors, http_server
from argosy_gateway.config import Config
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server.admin import admin_app
from argosy_gateway.server.app import api_app
from argosy_gateway.server.guard import Guard

__all__ = ["running", "serve"]

log = logging.getLogger(__name__)
_SWEEP_S = 1.0
_HANGS_S = 10.0
"""So long after the end of its drain the process is ended from a thread of its own."""
_STDERR = 2
"""The file descriptor: what stands for `sys.stderr` may have none."""


class _Server(http_server.Server):
    """Raises where uvicorn would end the process."""

    @property
    def port(self) -> int:
        """The port on which it listens; it must have started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises OSError with the reason."""
        try:
            await super().startup(sockets)
        except SystemExit as error:
            at = f"{self.config.host}:{self.config.port}"
            text = f"cannot listen on {at}; choose another with --port or --admin-port"
            raise OSError(text) from error


def _server(
    app: Any, config: Config, *, port: int, drain_timeout_s: float, most: int | None = None
) -> _Server:
    """`most`: connections; None for those of clients."""
    return _Server(
        http_server.server_config(
            app,
            Guard,
            config.limits,
            most_clients(config) if most is None else most,
            host=config.host,
            port=port,
            loop="asyncio",
            timeout_graceful_shutdown=_whole(drain_timeout_s),
        )
    )


def most_clients(config: Config) -> int:
    """Connections of clients. A request takes one more, to its engine; a fifth is for those that
    wait for their next request (`relay.gateway`)."""
    return descriptors.share(2 / 5, most=2 * config.max_queue + 64)


def _whole(seconds: float) -> int:
    """uvicorn takes whole seconds."""
    return max(1, int(seconds))


async def _sweep(gateway: Gateway, api: _Server, admin: _Server) -> None:
    while True:
        await asyncio.sleep(min(_SWEEP_S, gateway.config.limits.write_stall_s / 4))
        gateway.sweep()
        api.bound(gateway.config.limits, most_clients(gateway.config))
        for server in (api, admin):
            server.check_time(gateway.clock())


async def _drain(gateway: Gateway, stop: asyncio.Event, api: _Server) -> None:
    """After `stop`: turn unready, take new connections for `drain_lag_s`, then only end streams."""
    await stop.wait()
    gateway.draining = True
    config = gateway.config
    # A process that hangs now would stay until the kubelet kills it, which may be hours later.
    hangs_s = config.drain_timeout_s + _HANGS_S
    faulthandler.dump_traceback_later(hangs_s, file=_STDERR, exit=True)
    log.info("draining: %d requests in flight", len(gateway.relays))
    # A Service's endpoints follow readiness with a delay, so new connections still arrive. If all
    # gateways end at once, kube-proxy sends clients here until a probe has failed.
    await asyncio.sleep(config.drain_lag_s)
    api.config.timeout_graceful_shutdown = _whole(config.drain_timeout_s - config.drain_lag_s)
    api.should_exit = True


@contextlib.asynccontextmanager
async def running(gateway: Gateway, *, stop: asyncio.Event) -> AsyncIterator[Sequence[_Server]]:
    """The API server and the admin server, listening. Leaving awaits `stop`, then drains."""
    config = gateway.config
    left_s = config.drain_timeout_s - config.drain_lag_s  # until settings say otherwise
    api = _server(api_app(gateway), config, port=config.port, drain_timeout_s=left_s)
    admin = _server(
        admin_app(gateway),
        config,
        port=config.admin_port,
        drain_timeout_s=1,
        most=http_server.PROBES,
    )
    sweeper = asyncio.create_task(_sweep(gateway, api, admin))
    drainer = asyncio.create_task(_drain(gateway, stop, api))
    tasks = [asyncio.create_task(s.serve()) for s in (api, admin)]
    try:
        while not (api.started and admin.started):
            for task in tasks:
                if task.done():
                    task.result()  # raises OSError
            await asyncio.sleep(0.005)  # uvicorn has no event for this
        yield api, admin
        await drainer
        await tasks[0]
        admin.should_exit = True
        await tasks[1]
    finally:
        gateway.probes.close()
        faulthandler.cancel_dump_traceback_later()
        sweeper.cancel()
        drainer.cancel()
        gateway.connections.close()
        api.should_exit = admin.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(gateway: Gateway, source: Any) -> None:
    """Run until SIGTERM or SIGINT and the end of the drain; `source` updates the directory.

    If `source` ends, the directory would stay as it is for ever. The gateway then drains, too, and
    the error of `source` is raised.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    watcher = asyncio.create_task(source)
    watcher.add_done_callback(lambda _: stop.set())
    try:
        async with running(gateway, stop=stop) as servers:
            ports = [server.port for server in servers]
            log.info("serving fleet %s on ports %s", gateway.config.fleet, ports)
            # What exists by now is needed until the end. To look through it for garbage would stop
            # all streams for some milliseconds each time.
            gc.freeze()
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
