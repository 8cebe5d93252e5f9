"""The process of rank 1 and up, from its start to its end; `part` computes.

    python -m argosy_engine.runtime.torch.ranks.follower FD KV

FD is a socket to rank 0, which says first what to load (`processes.Hello`). The process ends when
rank 0 closes the socket or dies, also in the middle of a step. KV is the socket on which rank 0
asks for KV and sends it (`kv.answer`).
"""

import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from typing import NoReturn

from argosy import logs
from argosy_engine.errors import LoadError
from argosy_engine.runtime.torch.ranks.processes import Hello

log = logging.getLogger("argosy_engine.rank")


def main(words: list[str]) -> int:
    """Exit status: 0 when rank 0 ended, 1 after an error, which rank 0 is told."""
    sock, kv = (socket.socket(fileno=int(word)) for word in words)
    for one in (sock, kv):
        one.set_inheritable(False)
    for number in (signal.SIGTERM, signal.SIGINT):  # rank 0 drains, and then ends this process
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_rank_0, args=(sock,), daemon=True).start()
    part = importlib.import_module("argosy_engine.runtime.torch.ranks.part")  # and torch: seconds
    hello = Hello.read(sock)
    if hello is None:
        return 0
    logs.configure(hello.config.log_format, hello.config.log_level)

    def fail(error: Exception) -> NoReturn:
        _fail(sock, hello.rank, error)

    try:
        part.follow(sock, kv, hello, fail)
    except Exception as error:
        fail(error)
    return 0


def _fail(sock: socket.socket, rank: int, error: Exception) -> NoReturn:
    """Tell rank 0 why, and end the process. Called on any thread."""
    reason = error.reason if isinstance(error, LoadError) else ""
    message = error.message if isinstance(error, LoadError) else repr(error)
    log.error("rank %d ends", rank, exc_info=error)
    sock.sendall(json.dumps({"reason": reason, "message": message}).encode())
    os._exit(1)


def _end_with_rank_0(sock: socket.socket) -> None:
    """A step that waits for rank 0 may wait without end, so the process is not asked."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
