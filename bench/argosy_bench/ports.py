"""Ports for processes that suites and tests start on loopback."""

import contextlib
import secrets
import socket

__all__ = ["free_port", "free_ports"]

_OWN = range(12_000, 32_000)
"""Below the ports that Linux gives to clients and to port 0 (32768 to 60999): a client that
connects meanwhile takes none of them."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        held: list[int] = []
        while len(held) < count:
            port = secrets.choice(_OWN)  # Hypothesis seeds `random`, alike in all processes
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                held.append(port)
        return held


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
