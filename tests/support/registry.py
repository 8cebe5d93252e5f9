"""A registry that speaks the OCI distribution API, version 2, and a way to put artifacts into it.
Standard library alone: the cluster's tests run this file in a pod, `python registry.py FOLDER PORT
USER PASSWORD`.

FOLDER has `blobs/<digest>` and `tags.json`, which maps `<repository>:<tag>` to a digest.
"""

import base64
import hashlib
import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TAR = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TOKEN = "a-token"


@dataclass
class Rules:
    """Who may read, how they prove it, what goes wrong, and what was asked."""

    user: str = ""
    """Empty: all may read."""
    password: str = ""
    asks_for: str = "Basic"
    """Or Bearer: a token, which /token gives for user and password."""
    blobs_at: str = ""
    """Blobs are redirected to this address."""
    spoils: set[str] = field(default_factory=set)
    """Digests for which other bytes come."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Authorization of each request."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar_of(folder: Path) -> bytes:
    """The files of a folder as a layer."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    return packed.getvalue()


def keep(folder: Path, content: bytes) -> str:
    """A blob; gives its digest."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / digest_of(content)).write_bytes(content)
    return digest_of(content)


def name(folder: Path, tagged: str, digest: str) -> None:
    """Let `<repository>:<tag>` lead to a digest."""
    file = folder / "tags.json"
    tags = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(tags | {tagged: digest}))


Part = bytes | tuple[bytes, dict[str, Any]]
"""A layer's content; with fields of its descriptor."""


def push(folder: Path, tagged: str, layers: Sequence[Part]) -> str:
    """Put an artifact under `<repository>:<tag>`; gives its digest."""
    described = []
    for layer in layers:
        content, fields = layer if isinstance(layer, tuple) else (layer, {})
        item = {"mediaType": TAR, "digest": keep(folder, content), "size": len(content)}
        described.append(item | fields)
    empty = keep(folder, b"{}")
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": empty, "size": 2},
        "layers": described,
    }
    return push_document(folder, tagged, manifest)


def push_document(folder: Path, tagged: str, document: Any) -> str:
    """Put a manifest or an index under a name; gives its digest."""
    digest = keep(folder, json.dumps(document).encode())
    name(folder, tagged, digest)
    return digest


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    rules: Rules

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        said = self.headers.get("Authorization") or ""
        self.rules.asked.append((path, said))
        if path == "/token":
            self._token(said)
        elif not self._allowed(said):
            self._answer(401, b"", challenge=True)
        elif path.startswith("/v2/") and "/manifests/" in path:
            repository, _, at = path.removeprefix("/v2/").partition("/manifests/")
            tags = json.loads((self.folder / "tags.json").read_text())
            self._send(at if at.startswith("sha256:") else tags.get(f"{repository}:{at}", ""))
        elif path.startswith("/v2/") and "/blobs/" in path:
            if self.rules.blobs_at:
                self.send_response(307)
                self.send_header("Location", self.rules.blobs_at + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._send(path.rpartition("/")[2])
        else:
            self._answer(200 if path == "/v2/" else 404, b"{}")

    def _basic(self) -> str:
        pair = f"{self.rules.user}:{self.rules.password}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"

    def _allowed(self, said: str) -> bool:
        wanted = f"Bearer {TOKEN}" if self.rules.asks_for == "Bearer" else self._basic()
        return not self.rules.user or said == wanted

    def _token(self, said: str) -> None:
        right = said == self._basic() and "scope=repository" in self.path
        self._answer(200 if right else 401, json.dumps({"token": TOKEN}).encode() if right else b"")

    def _send(self, digest: str) -> None:
        file = self.folder / "blobs" / digest
        if not digest or not file.is_file():
            errors = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}
            self._answer(404, json.dumps(errors).encode())
            return
        content = file.read_bytes()
        if digest in self.rules.spoils:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._answer(200, content)

    def _answer(self, status: int, body: bytes, *, challenge: bool = False) -> None:
        self.send_response(status)
        if challenge and self.rules.asks_for == "Bearer":
            at = f"http://{self.headers['Host']}/token"
            scope = "repository:models/tiny:pull"
            words = f'Bearer realm="{at}",service="models",scope="{scope}"'
            self.send_header("WWW-Authenticate", words)
        elif challenge:
            self.send_header("WWW-Authenticate", 'Basic realm="models"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def server(folder: Path, rules: Rules, address: tuple[str, int]) -> ThreadingHTTPServer:
    """A registry; not started."""
    handler = type("Handler", (_Handler,), {"folder": folder, "rules": rules})
    return ThreadingHTTPServer(address, handler)


@contextmanager
def serving(folder: Path, rules: Rules) -> Iterator[str]:
    """Host and port of a registry that runs until the block ends."""
    made = server(folder, rules, ("127.0.0.1", 0))
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        made.server_close()


if __name__ == "__main__":
    folder, port, user, password = sys.argv[1:5]
    server(Path(folder), Rules(user, password), ("127.0.0.1", int(port))).serve_forever()
