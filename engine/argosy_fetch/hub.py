"""hf://: files of a repository on the Hugging Face Hub, or on what HF_ENDPOINT names.

The token is that of the variable HF_TOKEN, which huggingface_hub reads by itself. Its session is
used, and none of its calls: they read an answer of any length into memory, follow redirects
anywhere, and ask for more than the model.
"""

import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

# The commit's files are read over HTTP from the one address that a firewall must let through.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

from huggingface_hub import constants, get_session, get_token, hf_hub_url, utils
from huggingface_hub.errors import HFValidationError

from argosy_fetch.source import CHUNK, LISTING_S, FetchError, Listing, RemoteFile, RestartedError

_UTILS: Any = utils
"""What the package exports without saying so to type checkers."""
TIMEOUT_S = 60.0
"""Longest silence of the hub."""
_COMMIT = re.compile("[0-9a-f]{40}")
_LARGEST_LISTING = 16 << 20
"""Bytes. A repository of a thousand files needs 300 KB."""
_MOST_REDIRECTS = 5


class Hub:
    """A `Source`: one revision of one repository."""

    def __init__(self, repo: str, revision: str) -> None:
        self._repo, self._revision = repo, revision
        self._commit = ""

    def listing(self) -> Listing:
        what = f"{self._repo}@{self._revision}"
        url = (
            f"{constants.ENDPOINT}/api/models/{self._repo}"
            f"/revision/{quote(self._revision, safe='')}?blobs=True"
        )
        with self._errors(what):
            _UTILS.validate_repo_id(self._repo)
            with self._answer(url, what) as answer:
                model = _parse(answer)
            commit = str(model.get("sha"))
            if not _COMMIT.fullmatch(commit):
                raise FetchError(
                    "SourceUnreachable",
                    f"{constants.ENDPOINT} does not say the commit of {self._repo}",
                )
            if _COMMIT.fullmatch(self._revision) and commit != self._revision:
                raise FetchError(
                    "SourceUnreachable", f"{constants.ENDPOINT} answers {commit} for {what}"
                )
            files = tuple(_file(sibling) for sibling in model.get("siblings") or ())
        self._commit = commit
        return Listing(commit, f"hf/{self._repo.replace('/', '--')}/{commit}", files)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        url = hf_hub_url(self._repo, file.name, revision=self._commit)
        what = f"{file.name} of {self._repo}@{self._commit}"
        with self._errors(what), self._answer(url, what, start) as answer:
            yield from answer.iter_raw(CHUNK)

    @contextmanager
    def _answer(self, url: str, what: str, start: int = 0) -> Iterator[Any]:
        """Return the hub's answer from byte `start` on, of which nothing is read yet."""
        # Bytes as they are stored: a compressed answer has another length.
        headers = {"User-Agent": "argosy-fetch", "Accept-Encoding": "identity"}
        if token := get_token():
            headers["Authorization"] = f"Bearer {token}"
        if start:
            headers["Range"] = f"bytes={start}-"
        client: Any = get_session()
        request = client.build_request("GET", url, headers=headers, timeout=TIMEOUT_S)
        for _ in range(_MOST_REDIRECTS + 1):
            answer = client.send(request, stream=True, follow_redirects=False)
            try:
                onward = answer.next_request
                if onward is None:
                    _check_status(answer, what, start)
                    yield answer
                    return
            finally:
                answer.close()
            # The client leaves the token away where the next host is another.
            if why := _why_not_there(request.url, onward.url):
                raise FetchError("SourceUnreachable", f"{constants.ENDPOINT} sends {what} on {why}")
            request = onward
        raise FetchError(
            "SourceUnreachable",
            f"{constants.ENDPOINT} sends {what} on more than {_MOST_REDIRECTS} times",
        )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn whatever goes wrong with the hub's answers into a FetchError that names `what`."""
        try:
            yield
        except (FetchError, RestartedError):
            raise
        except HFValidationError as error:
            raise FetchError("BadArgument", f"{what}: {error}") from error
        except Exception as error:
            why = (
                f"{constants.ENDPOINT} does not answer for {what}: {type(error).__name__}: {error}"
            )
            raise FetchError("SourceUnreachable", why) from error


def _check_status(answer: Any, what: str, start: int) -> None:
    """Raise FetchError for an answer that refuses, RestartedError for one that begins elsewhere."""
    where, code = constants.ENDPOINT, answer.status_code
    if start and code in (200, 416):
        raise RestartedError
    if start and code == 206:
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise RestartedError
        return
    if code == 200:
        return
    if code in (401, 403):
        token = "the token in HF_TOKEN" if os.environ.get("HF_TOKEN") else "no token"
        raise FetchError(
            "SourceForbidden", f"{where} answers {code} for {what}, asked with {token}"
        )
    if code in (404, 410):
        raise FetchError("SourceNotFound", f"{where} has no {what}: it answers {code}")
    raise FetchError("SourceUnreachable", f"{where} answers {code} for {what}")


def _parse(answer: Any) -> dict[str, Any]:
    """Return the JSON object of an answer that is no longer than a listing, nor takes longer."""
    body, deadline = bytearray(), time.monotonic() + LISTING_S
    for piece in answer.iter_raw():
        body += piece
        if len(body) > _LARGEST_LISTING:
            raise ValueError(f"its list of files has more than {_LARGEST_LISTING} bytes")
        if time.monotonic() > deadline:
            raise ValueError(f"its list of files takes more than {LISTING_S:g} s")
    model = json.loads(body)
    if not isinstance(model, dict):
        raise ValueError("its list of files is no JSON object")
    return model


def _file(sibling: Any) -> RemoteFile:
    name, size, lfs = sibling["rfilename"], sibling.get("size") or 0, sibling.get("lfs")
    if not isinstance(name, str) or type(size) is not int or size < 0:
        raise ValueError(f"it says a file {name!r:.100} of {size!r:.40} bytes")
    digests = [("sha256", lfs["sha256"])] if lfs else []
    if not digests and sibling.get("blobId"):
        digests = [("git", sibling["blobId"])]
    return RemoteFile(name, size, tuple(digests))


def _why_not_there(here: Any, there: Any) -> str | None:
    """Return why a redirect is not followed; None if it is. Metadata services of clouds and what
    listens for this pod alone lie on addresses that no other host needs to send clients to."""
    if here.scheme == "https" and there.scheme != "https":
        return f"to {there.scheme}://{there.host}, without TLS"
    if there.host != here.host and _is_near(there.host):
        return f"to {there.host}, which is an address of this machine or its link"
    return None


def _is_near(host: str) -> bool:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:  # a proxy may know it
        return False
    for address in found:
        ip = ipaddress.ip_address(str(address).partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if ip.is_loopback or ip.is_link_local or ip.is_unspecified:
            return True
    return False
