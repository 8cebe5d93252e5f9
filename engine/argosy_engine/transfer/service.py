"""The KV service: a thread with its own event loop, for both ends of the handover.

Made by the server's start for the roles prefill and decode. Both listen: a decode engine for those
that go on with its streams when it leaves. See `core.handover.messages` for the events between it
and the engine loop.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable

from argosy.descriptors import Listener, share
from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import PrefillPort, PullEvent, PullJob
from argosy_engine.core.runner import Runner
from argosy_engine.errors import LoadError
from argosy_engine.transfer.nixl import Link, has_adapter, installed
from argosy_engine.transfer.prefill_server import Authorize, PrefillServer
from argosy_engine.transfer.puller import ClientTls, Credential, Puller

log = logging.getLogger(__name__)

_BACKLOG = 256
_UNPROVEN = 64
"""Most connections that have not shown yet who opened them."""
UCX_PORTS = "8003-8010"
"""In a pod: what its NetworkPolicy opens to the fleet's engines. UCX_TCP_PORT_RANGE overrides."""


class KvService:
    """Implements `core.handover.messages.TransferService`."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        runner: Runner,
        prefill: PrefillPort,
        post: Callable[[PullEvent], None],
        authorize: Authorize | None = None,
        credential: Credential | None = None,
        server_ssl: ssl.SSLContext | None = None,
        client_ssl: ClientTls | None = None,
    ) -> None:
        """`authorize` and `server_ssl` are for callers, `credential` and `client_ssl` for calls.

        Without them all may call, and nothing is encrypted. LoadError if NIXL must be used and
        cannot be.
        """
        self._config = config
        self._server_ssl = server_ssl
        self.link = _link(config, runner, encrypted=server_ssl is not None)
        self._puller = Puller(
            config, runner, post, credential=credential, ssl_context=client_ssl, link=self.link
        )
        self._server = PrefillServer(config, runner, prefill, authorize, self.link)
        self._aio = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kv", daemon=True)
        self._pulls: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._socket: Listener | None = None
        self.port = 0  # where it listens

    def start(self) -> None:
        address = (self._config.host, self._config.kv_port)
        backlog = share(1 / 16, most=_BACKLOG)
        self._socket = Listener(address, most=_UNPROVEN, backlog=backlog)
        self._server.proven = self._socket.proven
        # Accepted sockets inherit it; asyncio sets it only on sockets that name their protocol.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = int(self._socket.getsockname()[1])
        self._thread.start()

    def start_pull(self, job: PullJob) -> None:
        self._aio.call_soon_threadsafe(self._start_pull, job)

    def cancel_pull(self, request_id: str, attempt: int) -> None:
        self._aio.call_soon_threadsafe(self._cancel_pull, (request_id, attempt))

    def close(self) -> None:
        if self._thread.is_alive():
            self._aio.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        if self.link is not None:
            self.link.close()

    def _start_pull(self, job: PullJob) -> None:
        key = (job.request_id, job.attempt)
        task = self._aio.create_task(self._puller.pull(job))
        self._pulls[key] = task
        task.add_done_callback(lambda _: self._pulls.pop(key, None))

    def _cancel_pull(self, key: tuple[str, int]) -> None:
        # One turn later: a task that is cancelled before its first step would post no event.
        if task := self._pulls.get(key):
            self._aio.call_soon(task.cancel)

    def _run(self) -> None:
        asyncio.set_event_loop(self._aio)
        with contextlib.closing(self._aio):
            self._aio.run_until_complete(self._live())

    async def _live(self) -> None:
        server = None
        if self._socket is not None:
            server = await asyncio.start_server(
                self._server.serve,
                sock=self._socket,
                ssl=self._server_ssl,
                backlog=share(1 / 16, most=_BACKLOG),
            )
        await self._stop.wait()
        if server is not None:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._puller.close()
        self._server.close()


def _link(config: EngineConfig, runner: Runner, *, encrypted: bool) -> Link | None:
    """NIXL, where it is to be used; its process starts meanwhile. LoadError if it must be there."""
    size = runner.kv_layout().wire_block_bytes
    pinned = config.kv_transport == "nixl"
    if config.kv_transport == "tcp" or not size or not (pinned or has_adapter()):
        return None
    why = ""
    if encrypted:
        why = "NIXL does not encrypt, and --tls-dir asks for it"
    elif not installed():
        why = "NIXL is not installed (pip install 'argosy[nixl]')"
    if not why:
        return Link(size, UCX_PORTS if config.pod_ip else "")
    if pinned:
        raise LoadError("BadArgument", f"--kv-transport nixl: {why}; or write --kv-transport auto")
    log.info("KV travels over TCP: %s", why)
    return None
