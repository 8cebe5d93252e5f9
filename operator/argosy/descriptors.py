"""File descriptors: each connection takes one, and a process that has none left cannot answer.

containerd 2 starts containers with a soft limit of 1,024 and a far higher hard limit. So each
program raises its soft limit at its start, and its ports take no more connections than their part
of it. What then still runs out is this process's own fault, and says nothing about its peers.
"""

import contextlib
import errno
import resource
import socket
from typing import Any

_MOST = 1 << 20
"""No program here needs more. Where a hard limit is a thousand million, programs that go through
all their descriptors before they start another one take minutes."""
_RESERVED = 256
"""For files, event loops, probes, calls of the API server, and connections whose owner is not known
yet or that are just being refused."""
_LEAST = 16
_OUT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit() -> None:
    """Raise the soft limit to the hard one. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share(part: float, *, most: int) -> int:
    """Return how many connections take this part of the descriptors, at most `most`.

    With a limit of 1,024 the half is (1,024 - 256) / 2 = 384.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = _MOST if soft == resource.RLIM_INFINITY else soft
    return min(most, max(_LEAST, int((limit - _RESERVED) * part)))


def are_out(error: BaseException | None) -> bool:
    """Return whether a call failed because this process or its node has no descriptor or buffer."""
    return isinstance(error, OSError) and error.errno in _OUT


class Listener(socket.socket):
    """A listening socket with a bound on the connections of callers who have proven nothing yet.

    Beyond it the oldest of these is ended, so that a new caller gets through a crowd of silent
    ones. It counts from accept on: a TLS handshake that never goes on counts, too.

    An event loop accepts all that wait at once, and shows them to their owner in its next turns.
    Of callers that came while it was busy all but `most` would be ended, though they are not
    silent. So `accept` hands out a quarter of `most` in a turn.
    """

    def __init__(self, address: tuple[str, int], *, most: int, backlog: int) -> None:
        super().__init__(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        self._most = most
        self._accepted = 0
        """In this turn of the event loop."""
        self._unproven: dict[int, _Accepted] = {}
        """By descriptor, oldest first."""
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
            self.listen(backlog)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; it is unproven until it is closed or `proven`. BlockingIOError if
        none waits, and once after each quarter of `most`."""
        if self._accepted >= max(1, self._most // 4):
            self._accepted = 0
            raise BlockingIOError(errno.EAGAIN, "the others are accepted in the next turn")
        try:
            plain, address = super().accept()
        except BlockingIOError:
            self._accepted = 0
            raise
        self._accepted += 1
        accepted = _Accepted(self, plain)
        while len(self._unproven) >= self._most:
            self._unproven.pop(next(iter(self._unproven))).end()
        self._unproven[accepted.fileno()] = accepted
        return accepted, address

    def proven(self, descriptor: int) -> None:
        """Count this connection no more: its owner bounds it from now on."""
        self._unproven.pop(descriptor, None)


class _Accepted(socket.socket):
    """A connection that its listener forgets when it is closed."""

    def __init__(self, listener: Listener, plain: socket.socket) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._listener = listener

    def end(self) -> None:
        """Make its owner see an end of the stream, upon which it closes."""
        with contextlib.suppress(OSError):  # it is gone
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.proven(self.fileno())
        super().close()
