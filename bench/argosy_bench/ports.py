"""Ports for processes that suites and tests start on loopback."""

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

_OWN = range(12_000, 32_000)
"""Below the ports that Linux gives to clients and to port 0 (32768 to 60999): a client that
connects meanwhile takes none of them."""

_TURN = Path(tempfile.gettempdir()) / f"argosy-ports-{os.getuid()}"
"""Holds the port that the next caller tries first."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago.

    All processes of a user are given them in turn, so that none gets a port that another one
    was given and has not bound yet.
    """
    with contextlib.closing(os.fdopen(os.open(_TURN, os.O_RDWR | os.O_CREAT, 0o600), "r+")) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        port = int(turn.read() or _OWN.start)
        found: list[int] = []
        while len(found) < count:
            if _is_free(port):
                found.append(port)
            port = port + 1 if port + 1 in _OWN else _OWN.start
        turn.seek(0)
        turn.truncate()
        turn.write(str(port))
    return found


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
