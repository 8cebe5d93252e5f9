"""The certificate of this engine, and the authority whose certificates it takes from others.

The kubelet mounts a Secret of the type kubernetes.io/tls: `tls.crt`, `tls.key` and `ca.crt`. It
replaces all three at once when the Secret changes. Ports 8000 and 8002 use what is there now for
each handshake; connections that are open stay as they are.

Each side asks the other for a certificate of `ca.crt`. Names in it are not compared, because pods
call each other by address: who calls is what the tokens say (designs/0007-trust.md).
"""

import datetime as dt
import logging
import ssl
from pathlib import Path

from cryptography import x509

from argosy_engine.transfer.mounted_file import FileError, Stamp, stamp

log = logging.getLogger(__name__)

_CERTIFICATE, _KEY, _AUTHORITY = "tls.crt", "tls.key", "ca.crt"


class Certificates:
    """TLS for both ends, from one folder. Used on two threads, which at worst read it twice."""

    def __init__(self, folder: Path) -> None:
        """Raises FileError if the folder does not hold what it must, or its certificate expired."""
        self._folder = folder
        self._stamps = self._look()
        self._sides = self._read()
        self._door = _context(folder, ssl.PROTOCOL_TLS_SERVER)
        self._door.sni_callback = self._greet

    def server(self) -> ssl.SSLContext:
        """For a port that listens: one context, which takes the files of now at each handshake."""
        return self._door

    def client(self) -> ssl.SSLContext:
        """For the next call of another engine."""
        return self._now()[1]

    def _greet(self, connection: ssl.SSLObject, _name: str | None, _door: ssl.SSLContext) -> None:
        """OpenSSL asks here at the begin of each handshake, whether or not a name was sent."""
        connection.context = self._now()[0]

    def _now(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """(for the server's end, for the client's). The last usable ones if new files are not."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # before reading: unusable files are reported once
            try:
                self._sides = self._read()
            except FileError as error:
                log.error("%s; the certificate before it stays in use", error)
            else:
                log.info("read the certificate in %s again", self._folder)
        return self._sides

    def _look(self) -> tuple[Stamp | None, ...]:
        return tuple(stamp(self._folder / name) for name in (_CERTIFICATE, _KEY, _AUTHORITY))

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        _check_dates(self._folder / _CERTIFICATE)
        server = _context(self._folder, ssl.PROTOCOL_TLS_SERVER)
        return server, _context(self._folder, ssl.PROTOCOL_TLS_CLIENT)


def _context(folder: Path, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would not look at the certificate again
    authority, certificate, key = (folder / n for n in (_AUTHORITY, _CERTIFICATE, _KEY))
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise FileError(f"{authority}: {_reason(error, 'no certificate in PEM form')}") from error
    if not context.get_ca_certs():
        raise FileError(f"{authority}: holds no certificate of an authority (CA:TRUE)")
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        wrong = f"no key in PEM form that fits {_CERTIFICATE}"
        raise FileError(f"{key}: {_reason(error, wrong)}") from error
    return context


def _check_dates(certificate: Path) -> None:
    try:
        ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise FileError(f"{certificate}: {_reason(error, 'no certificate in PEM form')}") from error
    if ends <= dt.datetime.now(dt.UTC):
        raise FileError(f"{certificate}: expired at {ends:%Y-%m-%dT%H:%M:%SZ}; renew the Secret")


def _reason(error: Exception, of_content: str) -> str:
    """A missing file in the words of the system; what is wrong with its content in ours."""
    is_content = isinstance(error, ssl.SSLError | ValueError)
    return of_content if is_content or not isinstance(error, OSError) else str(error.strerror)
