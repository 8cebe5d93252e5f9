"""A mounted Secret of the type kubernetes.io/tls, replaced as the kubelet replaces one."""

import datetime as dt
import itertools
import os
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from local.cluster.config.pki import Authority, issue, make_authority

FILES = ("tls.crt", "tls.key", "ca.crt")
NOW = dt.datetime.now(dt.UTC)
LONG_AGO = NOW - dt.timedelta(days=4000)
_numbers = itertools.count()


def authority() -> Authority:
    return make_authority(NOW)


def pair(by: Authority, *, expired: bool = False) -> tuple[bytes, bytes]:
    """(certificate, key). Its name is that of no pod, as in a Secret that all pods share."""
    return issue(by, "fleet", "", ["fleet.example"], LONG_AGO if expired else NOW)


class Secret:
    """A folder with the three files; `write` swaps them all at once."""

    def __init__(self, folder: Path, by: Authority, **shown: object) -> None:
        folder.mkdir()
        self.folder = folder
        self.option = ("--tls-dir", str(folder))
        self.serial = 0
        self.write(by, **shown)
        for name in FILES:
            (folder / name).symlink_to(Path("..data") / name)

    def write(self, by: Authority, *, trusts: bytes | None = None, expired: bool = False) -> None:
        """A new certificate of `by`; others must show one of `trusts` (PEM), or of `by`."""
        certificate, key = pair(by, expired=expired)
        self.serial = x509.load_pem_x509_certificate(certificate).serial_number
        self.put(certificate, key, root(by) if trusts is None else trusts)

    def put(self, *contents: bytes) -> None:
        version = self.folder / f"..{next(_numbers)}"
        version.mkdir()
        for name, content in zip(FILES, contents, strict=True):
            (version / name).write_bytes(content)
        link = self.folder / "..new"
        link.symlink_to(version.name)
        os.replace(link, self.folder / "..data")

    def caller(self) -> ssl.SSLContext:
        """TLS of someone who has these files."""
        context = stranger(self.folder / "ca.crt")
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        return context


def root(*by: Authority) -> bytes:
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in by)


def stranger(trusts: Path) -> ssl.SSLContext:
    """TLS of someone who has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(trusts)
    return context
