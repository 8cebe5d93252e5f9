"""s3://: objects below a prefix of a bucket, on AWS or on what AWS_ENDPOINT_URL names.

Keys, region, endpoint and web identity come from the variables that AWS's own clients read.
"""

import asyncio
import hashlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store

from argosy_fetch.source import (
    CHUNK,
    LISTING_S,
    FetchError,
    FetchReason,
    Listing,
    RemoteFile,
)

TIMEOUT_S = 60
"""Longest silence of the store."""
_MD5 = re.compile("[0-9a-f]{32}")
_LONGEST = 600
"""Characters of what the store's client says."""


class Bucket:
    """A `Source`: what lies below a prefix. Its commit is a digest of names, sizes and ETags."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        with self._errors(f"s3://{bucket}/{prefix}"):
            self._store: Any = S3Store(
                bucket,
                client_options={
                    # Stores of one's own often speak without TLS. AWS is asked with it.
                    "allow_http": True,
                    "connect_timeout": timedelta(seconds=TIMEOUT_S),
                    "timeout": timedelta(days=1),
                },
                retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=TIMEOUT_S)},
            )

    def listing(self) -> Listing:
        where = f"s3://{self._bucket}/{self._prefix}"
        files, known = list[RemoteFile](), hashlib.sha256()
        with self._errors(where):
            for obj in sorted(asyncio.run(self._objects()), key=lambda obj: obj["path"]):
                folder, _, name = obj["path"].rpartition("/")
                if folder != self._prefix:  # outside of what was asked for
                    continue
                etag = obj["e_tag"] or ""
                digests = self._md5(obj["path"], etag.strip('"'))
                known.update(f"{name}\0{obj['size']}\0{etag}\n".encode())
                files.append(RemoteFile(name, obj["size"], digests, etag))
        if not files:
            raise FetchError("SourceNotFound", f"there is no object below {where}/")
        commit = known.hexdigest()[:40]
        place = f"{self._bucket}--{self._prefix.replace('/', '--')}"
        return Listing(commit, f"s3/{place}/{commit}", tuple(files))

    async def _objects(self) -> Any:
        """List the objects, all pages within one time: only the store says if more follow."""
        try:
            async with asyncio.timeout(LISTING_S):
                found: Any = await obstore.list_with_delimiter_async(
                    self._store, f"{self._prefix}/"
                )
                return found["objects"]
        except TimeoutError:
            raise ValueError(f"its list of objects takes more than {LISTING_S:g} s") from None

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        path = f"{self._prefix}/{file.name}"
        with self._errors(f"s3://{self._bucket}/{path}"):
            options: Any = {"if_match": file.version, "range": {"offset": start}}
            answer = obstore.get(self._store, path, options=options if file.size else {})
            for chunk in answer.stream(CHUNK):
                yield bytes(chunk)

    def _md5(self, path: str, etag: str) -> tuple[tuple[str, str], ...]:
        """Return the ETag of an object as its MD5, which it is if the object was put in one part
        and no key of KMS or of a customer encrypts it. Only the headers of the object say that."""
        if not _MD5.fullmatch(etag):
            return ()
        url = obstore.sign(self._store, "HEAD", path, timedelta(minutes=10))
        head = urllib.request.Request(url, method="HEAD")  # noqa: S310
        try:
            with urllib.request.urlopen(head, timeout=TIMEOUT_S) as answer:  # noqa: S310
                said = {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError:
            return ()  # who may list and read may lack the right to this: the size is compared
        plain = said.get("x-amz-server-side-encryption", "AES256") == "AES256"
        customers = "x-amz-server-side-encryption-customer-algorithm" in said
        return (("md5", etag),) if plain and not customers else ()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn errors of the store into a FetchError that names `what`."""
        try:
            yield
        except (exceptions.BaseError, urllib.error.URLError, ValueError, OSError) as error:
            said = " ".join(str(error).split())
            reason, said = _reason(error, said), _shortened(said)
            keys = "AWS_ACCESS_KEY_ID" in os.environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ
            with_what = "" if keys or reason != "SourceForbidden" else " (asked without keys)"
            raise FetchError(reason, f"{what} cannot be read{with_what}: {said}") from error


def _shortened(said: str) -> str:
    """Keep what the client says first and last: it begins with what it asked and ends with the
    innermost cause, such as a certificate of an unknown authority."""
    half = _LONGEST // 2
    return said if len(said) <= _LONGEST else f"{said[:half]} … {said[-half:]}"


_NO_STATUS = re.compile(r"\w+://\S+|\b[\d.]+(?:ns|µs|ms|s)\b")
"""Addresses and times, whose numbers are no status: a call may end "in 401.3ms"."""


def _reason(error: Exception, said: str) -> FetchReason:
    """Choose the reason by the error, and by its text: stores answer a list of nothing with the
    status alone."""
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return "SourceForbidden"
    if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
        return "SourceNotFound"
    if isinstance(error, exceptions.PreconditionError):
        return "FilesIncomplete"
    said = _NO_STATUS.sub(" ", said)
    if re.search(r"\b(401|403)\b|AccessDenied|InvalidAccessKeyId|SignatureDoesNot", said):
        return "SourceForbidden"
    return "SourceNotFound" if re.search(r"\b404\b|NoSuchBucket", said) else "SourceUnreachable"
