"""What this gateway shows to engines: the token of its own service account, made for this fleet.

The kubelet mounts the file and replaces it before the token ends (designs/0007-trust.md). Whether
it was replaced is looked at for each call, which takes 1 to 2 µs.
"""

import logging
from pathlib import Path

from argosy_gateway.errors import CredentialsError

__all__ = ["Proof"]

log = logging.getLogger(__name__)


class Proof:
    """Headers that prove to an engine who calls."""

    def __init__(self, token_file: Path | None) -> None:
        """None: the gateway shows no token. Raises CredentialsError if the file is unusable."""
        self._file = token_file
        self._stamp = self._look()
        self._headers: tuple[tuple[str, str], ...] = ()
        if token_file is not None:
            self._headers = _read(token_file)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Those of the next call. If the new file is unusable, the token before it is shown."""
        stamp = self._look()
        if self._file is not None and stamp != self._stamp:
            self._stamp = stamp  # before reading: an unusable file is reported once
            try:
                self._headers = _read(self._file)
            except CredentialsError as error:
                log.error("%s; the token before it is shown on", error)
        return self._headers

    def _look(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def _read(path: Path) -> tuple[tuple[str, str], ...]:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{path}: the token cannot be read: {error}") from error
    if not token or not token.isprintable():
        raise CredentialsError(f"{path} must hold a token, and nothing else")
    return (("authorization", f"Bearer {token}"),)
