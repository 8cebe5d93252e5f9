"""Files that the kubelet mounts and replaces: the peers file and this pod's own token.

The kubelet swaps a link, so a file is never seen half written. Looking whether it was replaced is
one `stat`, 1 to 2 µs, cheap enough for every request.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from argosy_engine.errors import EngineError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Stamp = tuple[int, int, int]
"""Of a file that was read: inode, time of change in ns, size in bytes."""


class FileError(EngineError):
    """A mounted file cannot be read, or does not hold what it must; the text names the file."""


class MountedFile(Generic[_T]):
    """A file's content, read again when the file was replaced.

    If the new content is unusable, the last usable one stays: a fleet does not go out of service
    because one write went wrong. The log says so.
    """

    def __init__(self, path: Path, parse: Callable[[str], _T]) -> None:
        """Raises FileError. `parse` raises ValueError with a text about the content."""
        self._path = path
        self._parse = parse
        self._stamp = stamp(path)
        self._value = self._read()

    def value(self) -> _T:
        """The content now."""
        now = stamp(self._path)
        if now != self._stamp:
            self._stamp = now  # before reading: an unusable file is reported once
            try:
                self._value = self._read()
            except FileError as error:
                log.error("%s; what it held before stays in force", error)
            else:
                log.info("read %s again", self._path)
        return self._value

    def _read(self) -> _T:
        try:
            return self._parse(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"{self._path}: {_reason(error)}") from error


def stamp(path: Path) -> Stamp | None:
    """None for a file that is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(error: Exception) -> str:
    return error.strerror or "not readable" if isinstance(error, OSError) else str(error)


class TokenFile:
    """This pod's own token, for calls of other pods. A call returns it as it is now."""

    def __init__(self, path: Path) -> None:
        """Raises FileError."""
        self._file = MountedFile(path, _token)

    def __call__(self) -> str:
        return self._file.value()


def _token(text: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError("must hold a token")
    return token
