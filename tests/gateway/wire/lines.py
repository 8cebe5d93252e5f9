"""An exchange whose bytes a test feeds, with the parts of answers."""

import pytest

from argosy_gateway.errors import BrokenError
from argosy_gateway.wire.http1 import Exchange
from tests.gateway.transports import Transport

OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
ENDLESS = OK + b"content-length: 99999999\r\n\r\n"
KIB_256, KIB_64 = 262_144, 65_536


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class Line:
    """An exchange with its connection, and the connections that it handed over."""

    def __init__(self, *, keeps=True, reused=False):
        self.kept = []
        self.exchange = Exchange(self.kept.append if keeps else None, reused=reused)
        self.transport = Transport()
        self.transport.set_protocol(self.exchange)
        self.exchange.connection_made(self.transport)

    def feed(self, *parts):
        for part in parts:
            self.exchange.data_received(part)

    def lose(self, error=None):
        self.exchange.connection_lost(error)

    @property
    def reading(self):
        return self.transport.reads[-1] if self.transport.reads else True

    @property
    def fate(self):
        if self.kept == [self.transport]:
            return "kept"
        return "closed" if self.transport.aborted else "open"


async def rest(exchange):
    """The body, part by part."""
    parts = []
    while part := await exchange.read():
        parts.append(part)
    return parts


async def fails(awaitable, kind=BrokenError):
    with pytest.raises(kind) as failed:
        await awaitable
    assert type(failed.value) is kind
    return str(failed.value)
