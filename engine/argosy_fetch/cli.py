"""`argosy fetch run …`: fetch one model into the claim, and say what came of it.

The result is the container's termination message, which the operator reads: the commit and the
folder, or reason and message of the failure. While the Job runs, the operator asks how far it is:
`GET /progress` answers `{"bytes": n, "of": m}`. It needs no right for that, and the Job none to
tell it.
"""

import argparse
import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from argosy.descriptors import Listener
from argosy_fetch.fill import Filled, fill
from argosy_fetch.source import FetchError, Source, hub_address, s3_address

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
        """Count what comes into `folder` from now on; all files together have `size` bytes."""
        self._size = size
        self._folder = folder

    def read(self) -> dict[str, int] | None:
        """Return bytes here and in all, None until it has begun. It never goes back: a file that
        did not fit is fetched again, and at the end the folder has another name."""
        if self._folder is None:
            return None
        here = 0
        with contextlib.suppress(OSError):  # a file was renamed meanwhile
            here = sum(path.stat().st_size for path in self._folder.glob("*"))
        self._most = min(max(self._most, here), self._size)
        return {"bytes": self._most, "of": self._size}


@contextmanager
def serving(port: int) -> Iterator[tuple[Progress, int]]:
    """Serve a progress while the block runs; yield it and its port. If the port is taken, the block
    runs without showing its progress."""
    progress = Progress()

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            said = progress.read() if self.path == "/progress" else None
            body = json.dumps(said).encode() if said else b""
            self.send_response(200 if said else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing: the log is about files."""

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


_TERMINATION_LOG = "/dev/termination-log"  # the kubelet mounts it into every container
_LONGEST_MESSAGE = 3000
"""Characters of a message."""
_LONGEST_RESULT = 4096
"""Bytes of a result that the kubelet keeps."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="argosy fetch", description="Fetch a fleet's model.")
    run = parser.add_subparsers(dest="command", required=True).add_parser(
        "run", help="fetch, and end", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    run.add_argument("--uri", required=True, help="hf://<org>/<name>@<revision>, s3://<bucket>/…")
    run.add_argument("--root", required=True, type=Path, help="where the claim is mounted")
    run.add_argument("--fleet", required=True, help="the ServingDeployment's name")
    run.add_argument(
        "--any-architecture",
        action="store_true",
        help="for an engine image that runs more than ours does",
    )
    run.add_argument("--progress-port", type=int, default=PORT, help="for GET /progress")
    run.add_argument("--termination-message", default=_TERMINATION_LOG, help="file for the result")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command. Exit status 0: the model is there. 1: it is not, and the result says why."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for client in ("httpx", "httpx2"):  # they log URLs whole, with passwords and signatures
        logging.getLogger(client).setLevel(logging.WARNING)
    try:
        filled = _fill(options)
    except FetchError as error:
        sys.stderr.write(f"{error}\n")
        _write_result(options.termination_message, _refusal(error))
        return 1
    _write_result(
        options.termination_message,
        {
            "commit": filled.commit,
            "path": filled.folder,
            "files": filled.files,
            "bytes": filled.size,
        },
    )
    return 0


def _refusal(error: FetchError) -> dict[str, str]:
    """Shorten the message until the kubelet keeps the result whole.

    In JSON one character has up to twelve bytes.
    """
    refusal = {"reason": error.reason, "message": error.message[:_LONGEST_MESSAGE]}
    while len(json.dumps(refusal)) > _LONGEST_RESULT:
        refusal["message"] = refusal["message"][: len(refusal["message"]) * 9 // 10]
    return refusal


def _fill(options: argparse.Namespace) -> Filled:
    with serving(options.progress_port) as (progress, _):
        return fill(
            _source_of(options.uri),
            options.root,
            options.fleet,
            any_architecture=options.any_architecture,
            begins=progress.begin,
        )


def _source_of(uri: str) -> Source:
    """Return the source that a model's URI names. FetchError(BadArgument) for another URI."""
    if hub := hub_address(uri):
        from argosy_fetch.hub import Hub

        return Hub(*hub)
    if bucket := s3_address(uri):
        from argosy_fetch.s3 import Bucket

        return Bucket(*bucket)
    raise FetchError(
        "BadArgument", f"{uri} is not hf://<org>/<name>@<revision> or s3://<bucket>/<prefix>"
    )


def _write_result(path: str, result: dict[str, Any]) -> None:
    text = json.dumps(result)
    sys.stdout.write(f"{text}\n")
    if path != _TERMINATION_LOG or os.path.exists(path):
        Path(path).write_text(text)
