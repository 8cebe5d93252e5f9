"""Which addresses of Prometheus a user's object may name, checked by name and again by address.

Entries come from the operator's command line (chart value `prometheus.allowed`). `metrics.py` asks
`permits` first; `server.py` mounts `GuardedAdapter`, which checks the address that a connection has
in the end. A name that resolves to loopback or to another network is cut off before a byte is sent.
Without this, a user who may create a fleet could make the operator connect to any address of the
cluster (server-side request forgery, CWE-918).
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from socket import socket
from typing import Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager
from urllib3.util.retry import Retry

from argosy.urls import hide_credentials

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_PORTS = {"http": 80, "https": 443}


class NotAllowedError(OSError):
    """The connection's real address is outside the allow-list."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`host:port`, `*.suffix:port` or `network/bits:port`."""

    host: str
    """Lower case, an IPv6 address without its brackets; or `*.suffix`."""
    port: int
    network: Network | None = None
    """Set for an entry by address; `host` is unused then."""

    @classmethod
    def of(cls, text: str) -> "Entry":
        """Raises ValueError with what to write instead."""
        host, colon, port = text.strip().rpartition(":")
        number = int(port) if port.isascii() and port.isdecimal() else 0
        if not colon or not host or not 0 < number < 65536:
            raise ValueError(
                f"{text!r} is no entry of the allow-list: write host:port, *.suffix:port or "
                "network/bits:port, such as prometheus.monitoring:9090"
            )
        if "/" not in host:
            return cls(host.strip("[]").lower(), number)
        try:
            network = ipaddress.ip_network(host.strip("[]"))
        except ValueError as error:
            raise ValueError(f"{text!r} is no entry of the allow-list: {error}") from error
        return cls("", number, network)

    def is_named(self, host: str, port: int) -> bool:
        """Whether the entry names this host. Its address is not looked at."""
        if self.network is not None or port != self.port:
            return False
        wildcard = self.host.startswith("*.") and host.endswith(self.host[1:])
        return wildcard or host == self.host


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Addresses that are allowed beside the operator's own Prometheus. Empty: none."""

    entries: tuple[Entry, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Allowlist":
        return cls(tuple(Entry.of(text) for text in texts))

    def permits(self, url: str) -> bool:
        """Whether the URL may be tried at all. Its text alone decides, so the answer says nothing
        about the network."""
        host, port = _place(url)
        by_address = (e for e in self.entries if e.network is not None and e.port == port)
        return bool(host) and (self._is_named(host, port) or any(by_address))

    def admits(self, url: str, address: str) -> bool:
        """Whether bytes may be sent to this address of the URL's host."""
        host, port = _place(url)
        ip = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        networks = [e.network for e in self.entries if e.network is not None and e.port == port]
        if any(ip in network for network in networks):
            return True
        special = ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified
        return self._is_named(host, port) and not special

    def _is_named(self, host: str, port: int) -> bool:
        return any(entry.is_named(host, port) for entry in self.entries)


NOTHING_ELSE = Allowlist()
"""Only the Prometheus that the operator was installed with is allowed."""


def _place(url: str) -> tuple[str, int]:
    """Return (host, port) of the URL; ("", 0) where it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return "", 0
    return (parts.hostname or "").lower().rstrip("."), port


class GuardedAdapter(HTTPAdapter):
    """requests' adapter whose connections are cut off before the first byte unless `allowed`
    admits their address."""

    def __init__(self, url: str, allowed: Allowlist) -> None:
        self.url, self.allowed = url, allowed
        super().__init__(max_retries=Retry(0))

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        self.poolmanager = PoolManager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _pools(self.url, self.allowed)


def _pools(url: str, allowed: Allowlist) -> dict[str, type[HTTPConnectionPool]]:
    def checked(connected: socket) -> socket:
        address, port = connected.getpeername()[:2]
        if port == _place(url)[1] and allowed.admits(url, address):
            return connected
        connected.close()
        raise NotAllowedError(
            f"{hide_credentials(url)} resolves to an address outside the allow-list"
        )

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket:
            return checked(super()._new_conn())

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket:
            return checked(super()._new_conn())

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}
