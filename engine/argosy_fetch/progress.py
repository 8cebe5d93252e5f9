"""How far a fetch is: `GET /progress` answers `{"bytes": n, "of": m}`, from anywhere.

The operator asks while the Job runs. It needs no right for that, and the Job none to tell it.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from argosy.descriptors import Listener

PORT = 8081
"""Where the operator asks, as it asks gateways."""

_CONNECTIONS = 16
"""Each has a thread."""

log = logging.getLogger("argosy.fetch")


class Progress:
    """Bytes of the model that are there. `begin` is called once, by the thread that fetches."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._size = self._most = 0

    def begin(self, folder: Path, size: int) -> None:
        """The unfinished files are in `folder`; all together have `size` bytes."""
        self._size = size
        self._folder = folder

    def told(self) -> dict[str, int] | None:
        """None until it has begun. It never goes back: a file that did not fit is fetched again,
        and at the end the folder has another name."""
        if self._folder is None:
            return None
        here = 0
        with contextlib.suppress(OSError):  # a file was renamed meanwhile
            here = sum(path.stat().st_size for path in self._folder.glob("*"))
        self._most = min(max(self._most, here), self._size)
        return {"bytes": self._most, "of": self._size}


@contextmanager
def serving(port: int) -> Iterator[tuple[Progress, int]]:
    """A progress that is served while the block runs, and its port. If the port is taken, the block
    runs without showing its progress."""
    progress = Progress()

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            said = progress.told() if self.path == "/progress" else None
            body = json.dumps(said).encode() if said else b""
            self.send_response(200 if said else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the log is about files."""

    try:
        server = ThreadingHTTPServer(("", port), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = Listener(("", port), most=_CONNECTIONS, backlog=_CONNECTIONS)
        server.server_address = server.socket.getsockname()
    except OSError as error:
        log.warning("port %d cannot be used, so progress is in this log alone: %s", port, error)
        yield progress, 0
        return
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield progress, server.server_address[1]
        finally:
            server.shutdown()
