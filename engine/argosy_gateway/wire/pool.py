"""Connections to engines, kept between requests.

`relay.attempt` calls engines here; the sweeper of `relay.gateway` closes what waits for too long or
belongs to a pod that is gone. A connection is kept only after a whole answer. An engine may close
it at any time, also while the next request is on its way: such a request fails with StaleError, and
its caller decides whether to send it again.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple

from argosy_gateway.errors import ShortageError, UnreachableError
from argosy_gateway.wire.http1 import Exchange, authority, connect, request_head

__all__ = ["Peer", "Pool"]


class Peer(NamedTuple):
    """Who a connection was made to. Another pod at the same address is another peer."""

    uid: str
    """Of the pod."""
    host: str
    port: int
    tls: ssl.SSLContext | None
    """A new certificate makes a new context, and so new connections."""


class _Idle(asyncio.Protocol):
    """A connection that waits for its next request."""

    __slots__ = ("_ended", "since", "transport")

    def __init__(
        self, transport: asyncio.Transport, since: float, ended: Callable[["_Idle"], None]
    ) -> None:
        self.transport = transport
        self.since = since
        self._ended = ended

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        """Nothing asked for it: what follows could be taken for the next answer."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._ended(self)


class Pool:
    """All kept connections of this process."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        idle_s: float,
        most_of_one: int,
        most: int,
        most_body_bytes: int,
    ) -> None:
        """`idle_s` must be less than the time after which an engine closes, `most_of_one` is per
        peer. A request with a longer body than `most_body_bytes` gets a connection of its own: the
        kernel of the engine's pod takes in a shorter one whole, whatever the engine does."""
        self._clock = clock
        self._idle_s = idle_s
        self._most_of_one = most_of_one
        self._most = most
        self._most_body_bytes = most_body_bytes
        self._idle: dict[Peer, list[_Idle]] = {}
        """Longest idle first. Peers without a connection have no entry."""
        self._count = 0

    def __len__(self) -> int:
        """How many connections wait."""
        return self._count

    async def post(
        self,
        peer: Peer,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        *,
        connect_s: float,
        fresh: bool = False,
    ) -> Exchange:
        """Send a request, over a kept connection unless `fresh`. Raises UnreachableError.

        The caller must `release` the exchange after a whole answer and else `abort` it.
        """
        head = request_head(
            "POST",
            target,
            authority(peer.host, peer.port),
            (*headers, ("content-length", str(len(body)))),
        )
        short = len(body) <= self._most_body_bytes
        exchange = self._take(peer) if short and not fresh else None
        if exchange is None:
            exchange = await self._connect(peer, connect_s, keep=short)
        exchange.send(head, body)
        return exchange

    def sweep(self, may_be_called: Callable[[Peer], bool]) -> None:
        """Close what waits for too long, and all connections to other peers than those."""
        now = self._clock()
        for peer, idle in tuple(self._idle.items()):
            if not may_be_called(peer):
                self._drop(peer)
                continue
            for one in tuple(idle):
                if now - one.since > self._idle_s:
                    self._close(peer, one)

    def close(self) -> None:
        """Close all that wait."""
        self.sweep(lambda _: False)

    async def _connect(self, peer: Peer, connect_s: float, *, keep: bool) -> Exchange:
        def keep_it(transport: asyncio.Transport) -> None:
            # A pod that vanished closes nothing, and the next request would wait for minutes. So
            # the kernel ends the connection if nobody takes in a request within `connect_s`.
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(connect_s * 1000))
            self._keep(peer, transport)

        def make() -> Exchange:
            return Exchange(keep_it if keep else None)

        async def new() -> Exchange:
            return await connect(make, peer.host, peer.port, connect_s=connect_s, tls=peer.tls)

        try:
            return await new()
        except ShortageError:
            if not self._count:
                raise
            self.close()  # those that wait have the descriptors that this one needs
            await asyncio.sleep(0)  # until they are closed
            return await new()
        except UnreachableError:
            self._drop(peer)  # what shows that it can be reached again is a new connection
            raise

    def _take(self, peer: Peer) -> Exchange | None:
        """The latest one: the others come to their end when fewer are needed."""
        while idle := self._idle.get(peer):
            one = idle[-1]
            self._remove(peer, one)
            transport = one.transport
            if transport.is_closing() or self._clock() - one.since > self._idle_s:
                transport.abort()
                continue
            exchange = Exchange(lambda kept: self._keep(peer, kept), reused=True)
            transport.set_protocol(exchange)
            exchange.connection_made(transport)
            return exchange
        return None

    def _keep(self, peer: Peer, transport: asyncio.Transport) -> None:
        idle = self._idle.setdefault(peer, [])
        if len(idle) >= self._most_of_one or self._count >= self._most:
            if not idle:
                del self._idle[peer]
            transport.abort()
            return
        one = _Idle(transport, self._clock(), lambda ended: self._remove(peer, ended))
        transport.set_protocol(one)
        idle.append(one)
        self._count += 1

    def _drop(self, peer: Peer) -> None:
        for one in tuple(self._idle.get(peer, ())):
            self._close(peer, one)

    def _close(self, peer: Peer, one: _Idle) -> None:
        self._remove(peer, one)
        one.transport.abort()

    def _remove(self, peer: Peer, one: _Idle) -> None:
        idle = self._idle.get(peer, [])
        if one in idle:
            idle.remove(one)
            self._count -= 1
            if not idle:
                del self._idle[peer]
