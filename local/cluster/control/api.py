"""A small client of the API server, for the supervisor and tests. Standard library only."""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from local.cluster.errors import ApiError


class Api:
    """One server with one token. OSError if it cannot be reached."""

    def __init__(self, server: str, ca: str, token: str, timeout_s: float = 5) -> None:
        address = urlsplit(server)
        self._host, self._port = address.hostname or "", address.port or 443
        self._trust = ssl.create_default_context(cadata=ca)
        self._token = token
        self._timeout_s = timeout_s

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "Api":
        """From a file that `components.kubeconfig` wrote."""
        config = json.loads(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], ca, config["users"][0]["user"]["token"])

    def _open(self, verb: str, path: str, body: Any, kind: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._trust
        )
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body)
        connection.request(verb, path, data, headers)
        answer = connection.getresponse()
        if answer.status >= 400:
            text = answer.read().decode(errors="replace")
            try:
                text = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                text = text[:500]
            raise ApiError(answer.status, text)
        return answer

    def text(self, path: str) -> str:
        """GET; the body as text."""
        return self._open("GET", path, None, "application/json").read().decode()

    def get(self, path: str) -> Any:
        """GET; the body decoded from JSON."""
        return json.loads(self.text(path))

    def post(self, path: str, body: Any) -> Any:
        """POST an object; returns the server's."""
        return json.loads(self._open("POST", path, body, "application/json").read())

    def delete(self, path: str, body: Any = None) -> Any:
        """DELETE, with optional DeleteOptions."""
        return json.loads(self._open("DELETE", path, body, "application/json").read())

    def patch(self, path: str, body: Any) -> Any:
        """JSON merge patch; returns the server's object."""
        kind = "application/merge-patch+json"
        return json.loads(self._open("PATCH", path, body, kind).read())

    def watch(self, path: str, version: str, timeout_s: int) -> Iterator[Any]:
        """Events of a collection until the server closes the watch; OSError if it falls silent."""
        mark = "&" if "?" in path else "?"
        asked = f"{path}{mark}watch=true&resourceVersion={version}&timeoutSeconds={timeout_s}"
        old, self._timeout_s = self._timeout_s, timeout_s + 5
        try:
            answer = self._open("GET", asked, None, "application/json")
        finally:
            self._timeout_s = old
        for line in answer:
            yield json.loads(line)
