"""Where a model comes from: what `hub.py` and `s3.py` give to `fill.py`, and `FetchError`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from argosy.urls import hide_credentials

FetchReason = Literal[
    "SourceForbidden",
    "SourceNotFound",
    "SourceUnreachable",
    "OnlyPickles",
    "FilesIncomplete",
    "VolumeFull",
    "VolumeNotWritable",
    "UnsupportedArchitecture",
    "WeightsInvalid",
    "BadArgument",
]
"""Reasons of conditions of the ServingDeployment (designs/0001-seams.md §3)."""


class FetchError(Exception):
    """The model cannot be fetched. `message` names what was asked, and says why.

    User and password are cut out of every URL in it: it ends in a condition of the fleet, and
    clients put the URL that they asked into their own errors.
    """

    def __init__(self, reason: FetchReason, message: str) -> None:
        self.reason: FetchReason = reason
        self.message = hide_credentials(message)
        super().__init__(f"{reason}: {self.message}")


CHUNK = 4 << 20
"""Bytes that are read and written at a time."""
MARKER = ".argosy.json"
"""Written last: the folder is whole, and of which commit it is. No file of a source has its name.
"""
LISTING_S = 300.0
"""Longest time for the names of all files. A source that never ends them is none."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the source."""

    name: str
    """Its path below the model's folder, such as `model.safetensors`."""
    size: int
    """In bytes."""
    digests: tuple[tuple[str, str], ...] = ()
    """What its content is known by: `sha256`, `md5` or `git` (as git names a blob), and the hex
    digits. Empty where the source gives none: then only the size is compared."""
    version: str = ""
    """What a read asks for, so that a file that changes meanwhile is not mixed: an ETag."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source has, at one moment."""

    commit: str
    """40 hexadecimal digits that stand for exactly these contents."""
    folder: str
    """Where the model lies in the claim, such as `hf/org--name/<commit>`."""
    files: tuple[RemoteFile, ...]


class Source(Protocol):
    """A model's origin. Errors of both calls are `FetchError`s."""

    def listing(self) -> Listing:
        """Resolve the revision, and name every file."""

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Return the file's bytes from `start` on. It may begin earlier: see `RestartedError`."""


class RestartedError(Exception):
    """The source cannot continue in the middle of a file: it must be read from its beginning."""


_HUB = re.compile(
    r"hf://(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[A-Za-z0-9][\w.-]*))?"
)
_S3 = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]*)/(?P<prefix>[A-Za-z0-9_-][\w.-]*(/[\w.-]+)*)"
)
MAIN = "main"
"""The revision of hf://<org>/<name> without one."""


def hub_address(uri: str) -> tuple[str, str] | None:
    """Return repository and revision of an hf:// URI; None for another one."""
    found = _HUB.fullmatch(uri)
    return None if found is None else (found["repo"], found["revision"] or MAIN)


def s3_address(uri: str) -> tuple[str, str] | None:
    """Return bucket and prefix of an s3:// URI; None for another one."""
    found = _S3.fullmatch(uri)
    return None if found is None else (found["bucket"], found["prefix"])
