"""Fill the claim: a folder of a model appears whole, or not at all.

Files are written to `.partial/<owner>/<folder>/<name>.part`, compared with the source's sizes and
digests, and renamed. When all are there, their folder is renamed to its place, and then `MARKER` is
written into it. A process that dies leaves what it wrote: the next one continues it, or writes it
again where it does not fit.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy_fetch.check import CONFIG, INDEX, check_config, check_index, check_weights, wanted
from argosy_fetch.source import (
    CHUNK,
    MARKER,
    FetchError,
    Listing,
    RemoteFile,
    RestartedError,
    Source,
)

PARTIAL = ".partial"

log = logging.getLogger("argosy.fetch")


@dataclass(frozen=True, slots=True)
class Filled:
    """A model in the claim."""

    commit: str
    folder: str
    """Below the claim's root."""
    files: int
    size: int
    """Of all files, in bytes."""


def fill(
    source: Source,
    root: Path,
    owner: str,
    *,
    any_architecture: bool = False,
    begins: Callable[[Path, int], None] = lambda _folder, _size: None,
) -> Filled:
    """Return the model of `source` below `root`, fetched if it is not there. `owner` is the fleet:
    two fleets with one claim do not write to the same file. `begins` is told the folder of
    unfinished files, and the bytes of all. FetchError says why it cannot be."""
    listing = source.listing()
    files = wanted(listing.files, any_weights=any_architecture)
    size = sum(file.size for file in files)
    filled = Filled(listing.commit, listing.folder, len(files), size)
    place = root / listing.folder
    with _disk_errors(root, size):
        if _is_whole(place, filled, files):
            # A fleet with another engine may have filled it.
            check_config(place / CONFIG, any_architecture=any_architecture)
            log.info("%s is there already", listing.folder)
            return filled
        partial = _partial(root, owner, listing)
        if place.is_dir():  # renamed, and then the process died before it wrote the marker
            partial = place
        _check_room(root, partial, files)
        begins(partial, size)
        done = 0
        for number, file in enumerate(sorted(files, key=_small_first), 1):
            fetch(source, file, partial)
            if file.name == CONFIG:
                check_config(partial / CONFIG, any_architecture=any_architecture)
            if file.name == INDEX:
                check_index(partial / INDEX, {file.name for file in files})
            done += file.size
            log.info("%s: file %d of %d, byte %d of %d", file.name, number, len(files), done, size)
        _publish(partial, place, filled)
        shutil.rmtree(root / PARTIAL / owner, ignore_errors=True)
    return filled


def _small_first(file: RemoteFile) -> tuple[bool, bool, int]:
    """Sort config.json first, and then the index: by them the rest may be refused."""
    return file.name != CONFIG, file.name != INDEX, file.size


def fetch(source: Source, file: RemoteFile, folder: Path) -> None:
    """Fetch one file, or nothing if it is there. What does not fit its size and digest is fetched
    once more from its beginning. FetchError(FilesIncomplete) if that does not fit either."""
    path, part = folder / file.name, folder / f"{file.name}.part"
    if path.exists() and _why_unfit(path, file) is None:
        return
    why: str | None = None
    for last in (False, True):
        try:
            _append(source, file, part)
        except RestartedError:
            part.unlink()
        short = part.exists() and part.stat().st_size < file.size
        why = _why_unfit(part, file) if part.exists() else "nothing came"
        if why is None:
            part.replace(path)
            return
        if not short:  # what is short is continued, by the next process too
            part.unlink(missing_ok=True)
        if not last:
            log.warning("%s is asked for again: %s", file.name, why)
    raise FetchError("FilesIncomplete", f"{file.name} does not fit what its source says: {why}")


def _append(source: Source, file: RemoteFile, part: Path) -> None:
    """Write what comes, and one byte more than was announced at most: the claim has room for no
    more, and the file is refused by it."""
    start = part.stat().st_size if part.exists() else 0
    if start >= file.size > 0:
        return
    with part.open("ab") as out:
        for chunk in source.read(file, start):
            out.write(chunk[: file.size + 1 - out.tell()])
            if out.tell() > file.size:
                break
        out.flush()
        os.fsync(out.fileno())


def _why_unfit(path: Path, file: RemoteFile) -> str | None:
    """Return how the file differs from what its source says; None if it does not."""
    size = path.stat().st_size
    if size > file.size:
        return f"more than {file.size} bytes came"
    if size < file.size:
        return f"{size} of {file.size} bytes came"
    for kind, digits in file.digests:
        if _digest(path, kind, size) != digits:
            return f"its {kind} digest is another"
    if file.name.endswith(".safetensors"):
        try:
            check_weights(path)
        except FetchError as error:
            return error.message
    return None


def _digest(path: Path, kind: str, size: int) -> str:
    # Not for security: these are the digests that git and S3 name contents by.
    digest = {
        "sha256": lambda: hashlib.sha256(),
        "git": lambda: hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False),
        "md5": lambda: hashlib.md5(usedforsecurity=False),
    }[kind]()
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _partial(root: Path, owner: str, listing: Listing) -> Path:
    """Return the folder for unfinished files. Those of other commits are of no use any more."""
    mine = root / PARTIAL / owner
    partial = mine / listing.commit
    for other in mine.glob("*"):
        if other != partial:
            shutil.rmtree(other, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    return partial


def _publish(partial: Path, place: Path, filled: Filled) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if partial != place:
        try:
            partial.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return  # another fleet put the same commit there meanwhile
    marker = place / f"{MARKER}.part"
    body = {"commit": filled.commit, "files": filled.files, "bytes": filled.size}
    marker.write_text(json.dumps(body))
    marker.replace(place / MARKER)


def _is_whole(place: Path, filled: Filled, files: tuple[RemoteFile, ...]) -> bool:
    """Whether the folder has its marker, and every file its size."""
    try:
        marker: Any = json.loads((place / MARKER).read_text())
        sizes = all((place / file.name).stat().st_size == file.size for file in files)
        return sizes and marker["commit"] == filled.commit
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_room(root: Path, partial: Path, files: tuple[RemoteFile, ...]) -> None:
    here = sum(path.stat().st_size for path in partial.glob("*"))
    lacks = sum(file.size for file in files) - here
    free = shutil.disk_usage(root).free
    if lacks > free:
        raise _full(f"{lacks} more bytes are needed, and the claim has {free} free")


def _full(why: str) -> FetchError:
    return FetchError("VolumeFull", f"the model does not fit into the claim: {why}")


@contextmanager
def _disk_errors(root: Path, size: int) -> Iterator[None]:
    """Turn errors of the claim's file system into a FetchError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(
                f"it has {size} bytes, and no space was left while it was written"
            ) from error
        why = f"{root} cannot be written: {error.strerror or error}"
        raise FetchError("VolumeNotWritable", why) from error
