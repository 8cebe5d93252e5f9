"""hf://: files of a repository on the Hugging Face Hub, or on what HF_ENDPOINT names.

The token is that of the variable HF_TOKEN, which huggingface_hub reads by itself.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The commit's files are read over HTTP from the one address that a firewall must let through.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

from huggingface_hub import HfApi, constants, errors, get_session, hf_hub_url, utils
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from argosy_fetch.errors import FetchError
from argosy_fetch.source import CHUNK, Listing, RemoteFile, RestartedError

_ERRORS: Any = errors
_UTILS: Any = utils
"""What the package exports without saying so to type checkers."""
TIMEOUT_S = 60.0
"""Longest silence of the hub."""


class Hub:
    """A `Source`: one revision of one repository."""

    def __init__(self, repo: str, revision: str) -> None:
        self._repo, self._revision = repo, revision
        self._commit = ""

    def listing(self) -> Listing:
        with self._errors(f"{self._repo}@{self._revision}"):
            info = HfApi().model_info(
                self._repo, revision=self._revision, files_metadata=True, timeout=TIMEOUT_S
            )
        self._commit = info.sha or ""
        if len(self._commit) != 40:
            raise FetchError(
                "SourceUnreachable", f"{constants.ENDPOINT} does not say the commit of {self._repo}"
            )
        files = []
        for sibling in info.siblings or ():
            digests = [("sha256", sibling.lfs.sha256)] if sibling.lfs else []
            if not digests and sibling.blob_id:
                digests = [("git", sibling.blob_id)]
            files.append(RemoteFile(sibling.rfilename, sibling.size or 0, tuple(digests)))
        folder = f"hf/{self._repo.replace('/', '--')}/{self._commit}"
        return Listing(self._commit, folder, tuple(files))

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        url = hf_hub_url(self._repo, file.name, revision=self._commit)
        headers = _UTILS.build_hf_headers() | ({"Range": f"bytes={start}-"} if start else {})
        # Bytes as they are stored: a compressed answer has another length.
        headers["Accept-Encoding"] = "identity"
        with (
            self._errors(f"{file.name} of {self._repo}@{self._commit}"),
            get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S
            ) as answer,
        ):
            if start and answer.status_code in (200, 416):
                raise RestartedError
            _UTILS.hf_raise_for_status(answer)
            yield from answer.iter_raw(CHUNK)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn errors of the hub into a FetchError that names `what`."""
        where = constants.ENDPOINT
        try:
            yield
        except HfHubHTTPError as error:
            code = error.response.status_code
            if code in (401, 403):
                token = "the token in HF_TOKEN" if os.environ.get("HF_TOKEN") else "no token"
                why = f"{where} answers {code} for {what}, asked with {token}"
                raise FetchError("SourceForbidden", why) from error
            if code in (404, 410):
                why = f"{where} has no {what}: it answers {code}"
                raise FetchError("SourceNotFound", why) from error
            why = f"{where} answers {code} for {what}"
            raise FetchError("SourceUnreachable", why) from error
        except HFValidationError as error:
            raise FetchError("BadArgument", f"{what}: {error}") from error
        except (_ERRORS.HTTPError, OSError) as error:
            why = f"{where} does not answer for {what}: {type(error).__name__}: {error}"
            raise FetchError("SourceUnreachable", why) from error
