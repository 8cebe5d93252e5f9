"""What this gateway shows to engines: its token, and a certificate to those that ask for TLS.

The kubelet mounts the files and replaces them before they end (designs/0007-trust.md): the token of
the gateway's own service account, made for this fleet, and a Secret of the type kubernetes.io/tls
(`tls.crt`, `tls.key` and `ca.crt`). Whether they were replaced is looked at for each call, which
takes 1 to 2 µs. Names in an engine's certificate are not compared: pods are called by address.
"""

import logging
import math
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from argosy_gateway.errors import CredentialsError, UnreachableError

__all__ = ["Certificates", "Proof"]

log = logging.getLogger(__name__)

_CERTIFICATE, _KEY, _AUTHORITY = "tls.crt", "tls.key", "ca.crt"
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_Stamp = tuple[int, int]


class Certificates:
    """The TLS context of the next call."""

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.time) -> None:
        """None: the gateway has no certificate. Raises CredentialsError for unusable files.
        `clock` gives seconds since the epoch."""
        self._clock = clock
        self._folder = folder
        self._stamps = self._look()
        self._read = None if folder is None else _read_certificate(folder)

    @property
    def exist(self) -> bool:
        """Whether engines that ask for TLS can be called."""
        return self._folder is not None

    def context(self) -> ssl.SSLContext:
        """That of the next call. If new files are unusable, the certificate before them is used.
        Raises UnreachableError: engines would refuse what this gateway has to show."""
        if self._folder is None or self._read is None:
            raise UnreachableError("this gateway has no certificate: start it with --tls-dir")
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # before reading: unusable files are reported once
            try:
                self._read = _read_certificate(self._folder)
            except CredentialsError as error:
                log.error("%s; the certificate before it stays in use", error)
            else:
                log.info("read the certificate in %s again", self._folder)
        context, ends_s = self._read
        if ends_s <= self._clock():
            # An engine would close the connection without a word: TLS 1.3 checks the caller last.
            where = self._folder / _CERTIFICATE
            raise UnreachableError(f"the certificate in {where} has expired: renew the Secret")
        return context

    def _look(self) -> tuple[_Stamp | None, ...]:
        if self._folder is None:
            return ()
        return tuple(_stamp(self._folder / name) for name in (_CERTIFICATE, _KEY, _AUTHORITY))


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read_certificate(folder: Path) -> tuple[ssl.SSLContext, float]:
    """(the context, when its certificate ends in seconds since the epoch)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    authority, certificate, key = (folder / n for n in (_AUTHORITY, _CERTIFICATE, _KEY))
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise _file_error(authority, error, "no certificate in PEM form") from error
    if not context.get_ca_certs():
        raise CredentialsError(f"--tls-dir: {authority}: holds no authority (CA:TRUE)")
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        what = f"{_CERTIFICATE} and {_KEY} must be PEM files that fit"
        raise _file_error(folder, error, what) from error
    return context, _read_end_s(certificate, key)


def _read_end_s(certificate: Path, key: Path) -> float:
    """When a certificate ends; 0 if it has, infinite if its use is not that of a server.

    Python's ssl tells the dates of a peer's certificate only, so both ends of a connection in
    memory show it to each other.
    """
    ends = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        ends.append(context := ssl.SSLContext(side))
        context.check_hostname = False
    ends[0].load_cert_chain(certificate, key)
    ends[1].load_verify_locations(certificate)
    ends[1].verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ends[0].wrap_bio(one, other, server_side=True)
    client = ends[1].wrap_bio(other, one)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return 0.0 if error.verify_code == _EXPIRED else math.inf
    shown = client.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def _file_error(path: Path, error: OSError, of_content: str) -> CredentialsError:
    """A missing file in the words of the system; what is wrong with its content in ours."""
    why = of_content if isinstance(error, ssl.SSLError) else error.strerror
    return CredentialsError(f"--tls-dir: {path}: {why}")


class Proof:
    """Headers that prove to an engine who calls."""

    def __init__(self, token_file: Path | None) -> None:
        """None: the gateway shows no token. Raises CredentialsError if the file is unusable."""
        self._file = token_file
        self._stamp = self._look()
        self._headers: tuple[tuple[str, str], ...] = ()
        if token_file is not None:
            self._headers = _read_token(token_file)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Those of the next call. If the new file is unusable, the token before it is shown."""
        stamp = self._look()
        if self._file is not None and stamp != self._stamp:
            self._stamp = stamp  # before reading: an unusable file is reported once
            try:
                self._headers = _read_token(self._file)
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


def _read_token(path: Path) -> tuple[tuple[str, str], ...]:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{path}: the token cannot be read: {error}") from error
    if not token or not token.isprintable():
        raise CredentialsError(f"{path} must hold a token, and nothing else")
    return (("authorization", f"Bearer {token}"),)
