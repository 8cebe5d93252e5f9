"""A model hub and an S3 store, as small servers that speak their HTTP. Standard library alone: the
cluster's tests run this file in a pod, `python stores.py FOLDER PORT [PAUSE_S]`.

The hub has one repository for each folder `<org>/<name>` of FOLDER, the store one bucket for each
folder. `Trouble` says what goes wrong.
"""

import hashlib
import json
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape


@dataclass
class Trouble:
    """What goes wrong, and what was asked."""

    token: str | None = None
    """The hub asks for it; the store for it as access key."""
    refuses: int = 403
    """The status for another token."""
    cuts: dict[str, int] = field(default_factory=dict)
    """Files whose answer ends early, once, after so many bytes."""
    spoils: set[str] = field(default_factory=set)
    """Files of which other bytes come than there are."""
    whole: bool = False
    """Ranges are not understood: the file comes from its beginning."""
    past_end: bool = False
    """Ranges are answered 416: the file has become shorter."""
    moved: bool = False
    """The hub sends clients on for each file, as it does to where large ones lie."""
    encodings: set[str | None] = field(default_factory=set)
    """Which encodings of files were asked for."""
    nameless: bool = False
    """The hub does not say the commit of a repository."""
    says: dict[str, str] = field(default_factory=dict)
    """Headers beside those of each file."""
    pause_s: float = 0.0
    """Before each tenth of a file of more than 128 KiB."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of each file that was asked for."""
    heads: dict[str, str] = field(default_factory=dict)
    """The revisions of a repository beside its commit; `main` is always there."""


def commit_of(folder: Path) -> str:
    """40 digits that stand for the folder's contents."""
    digest = hashlib.sha1()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    trouble: Trouble

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        words = [urllib.parse.unquote(word) for word in path.strip("/").split("/")]
        if not self._allowed():
            self._error(self.trouble.refuses, "AccessDenied")
        elif words[:2] == ["api", "models"]:
            self._model(*words[2:])
        elif "resolve" in words and self.trouble.moved and "moved" not in query:
            self.send_response(302)
            self.send_header("Location", f"{self.path}?moved")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif "resolve" in words:
            at = words.index("resolve")
            self._resolved("/".join(words[:at]), words[at + 1], "/".join(words[at + 2 :]))
        elif "list-type=2" in query:
            self._listed(words[0], urllib.parse.parse_qs(query).get("prefix", [""])[0])
        else:
            self._file(self.root / "/".join(words))

    def _allowed(self) -> bool:
        token, said = self.trouble.token, self.headers.get("Authorization") or ""
        return token is None or said == f"Bearer {token}" or f"Credential={token}/" in said

    def _model(self, org: str, name: str, *rest: str) -> None:
        folder = self.root / org / name
        revision = rest[1] if rest else "main"
        if not folder.is_dir():
            self._error(404, "RepoNotFound")
        elif revision not in ("main", commit_of(folder), *self.trouble.heads):
            self._error(404, "RevisionNotFound")
        else:
            siblings = [self._sibling(path) for path in sorted(folder.iterdir())]
            commit = "" if self.trouble.nameless else commit_of(folder)
            model = {"id": f"{org}/{name}", "sha": commit, "siblings": siblings}
            self._answer(json.dumps(model).encode(), "application/json")

    @staticmethod
    def _sibling(path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        sibling: dict[str, Any] = {"rfilename": path.name, "size": len(content), "blobId": blob}
        if path.suffix == ".safetensors":
            digest = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 134}
        return sibling

    def _resolved(self, repo: str, commit: str, name: str) -> None:
        folder = self.root / repo
        if commit != commit_of(folder):
            self._error(404, "RevisionNotFound")
        else:
            self._file(folder / name)

    def _listed(self, bucket: str, prefix: str) -> None:
        if not (self.root / bucket).is_dir():
            self._error(404, "NoSuchBucket")
            return
        found = sorted(p for p in (self.root / bucket).rglob("*") if p.is_file())
        items = []
        for path in found:
            key = path.relative_to(self.root / bucket).as_posix()
            if key.startswith(prefix):
                etag = hashlib.md5(path.read_bytes()).hexdigest()
                items.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size>"
                    f"<ETag>&quot;{etag}&quot;</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        body = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>{''.join(items)}"
            "</ListBucketResult>"
        )
        self._answer(body.encode(), "application/xml")

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._error(404, "EntryNotFound")
            return
        content, asked = path.read_bytes(), self.headers.get("Range", "")
        etag = hashlib.md5(content).hexdigest()
        if path.name in self.trouble.spoils:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int(asked.removeprefix("bytes=").rstrip("-") or 0) if asked else 0
        start = 0 if self.trouble.whole else start
        if self.command == "GET":
            self.trouble.asked.append((path.name, asked))
            self.trouble.encodings.add(self.headers.get("Accept-Encoding"))
        if asked and self.trouble.past_end:
            self._error(416, "InvalidRange")
            return
        self.send_response(206 if asked and not self.trouble.whole else 200)
        self.send_header("ETag", f'"{etag}"')
        for name, value in self.trouble.says.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) - start))
        if asked and not self.trouble.whole:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = self.trouble.cuts.pop(path.name, len(content))
        pieces = 10 if self.trouble.pause_s and len(content) > 1 << 17 else 1
        step = max(1, -(-(end - start) // pieces))
        for at in range(start, end, step):
            if pieces > 1:
                time.sleep(self.trouble.pause_s)
            self.wfile.write(content[at : min(at + step, end)])
        if end < len(content):
            self.close_connection = True

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def server(root: Path, trouble: Trouble, address: tuple[str, int]) -> ThreadingHTTPServer:
    """A server of both kinds; not started."""
    handler = type("Handler", (_Handler,), {"root": root, "trouble": trouble})
    return ThreadingHTTPServer(address, handler)


@contextmanager
def serving(root: Path, trouble: Trouble, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that runs until the block ends; with `tls` it speaks TLS."""
    made = server(root, trouble, ("127.0.0.1", 0))
    if tls is not None:
        # Its handler shakes hands, so that a client that is slow to holds up no other one.
        made.socket = tls.wrap_socket(made.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        made.server_close()


if __name__ == "__main__":
    folder, port, *pause = sys.argv[1:]
    trouble = Trouble(pause_s=float(pause[0]) if pause else 0.0)
    server(Path(folder), trouble, ("0.0.0.0", int(port))).serve_forever()
