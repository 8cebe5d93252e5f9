"""Certificates of the webhook, and the bundle by which the API server knows them.

Each certificate has an authority of its own, whose key is thrown away at once: nobody can sign a
second one. Keys never leave the process, so a new process has a new certificate.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCKS_DIFFER = dt.timedelta(hours=1)
"""A certificate is valid from an hour before it was made: the API server's clock may be behind."""
MOST_OF_OTHERS = 4
"""Certificates of other processes that a bundle keeps: the one that this process takes over from,
and some that crashed. The newest are kept."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for the webhook's Service. Texts are PEM."""

    authority: bytes
    """The certificate of the authority that signed it."""
    chain: bytes
    key: bytes
    made_at: dt.datetime
    ends_at: dt.datetime

    def is_due(self, now: dt.datetime) -> bool:
        """Whether half of its life is over: time to make the next one."""
        return now >= self.made_at + (self.ends_at - self.made_at) / 2


def new_certificate(host: str, now: dt.datetime, lifetime: dt.timedelta) -> Certificate:
    """A certificate for `host`, such as argosy-webhook.argosy-system.svc."""
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name, name = _name("argosy-webhook-authority"), _name("argosy-webhook")
    root_id = x509.SubjectKeyIdentifier.from_public_key(root_key.public_key())
    dates = (now - CLOCKS_DIFFER, now + lifetime)
    root = (
        _builder(root_name, root_name, root_key.public_key(), dates)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(root_id, critical=False)
        .sign(root_key, hashes.SHA256())
    )
    own = (
        _builder(name, root_name, key.public_key(), dates)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root_id), critical=False
        )
        .sign(root_key, hashes.SHA256())
    )
    return Certificate(
        root.public_bytes(Encoding.PEM),
        own.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        now,
        now + lifetime,
    )


def bundle(held: bytes, own: Iterable[bytes], now: dt.datetime) -> bytes:
    """The authorities `held` with `own` among them, without those that have ended. PEM.

    What is no certificate is left out. `held` as it is if nothing has to change.
    """
    ours = [x509.load_pem_x509_certificate(one) for one in own]
    try:
        others = [one for one in x509.load_pem_x509_certificates(held) if one not in ours]
    except ValueError:
        others = []
    counting = [one for one in others if one.not_valid_after_utc > now]
    newest = sorted(counting, key=lambda one: one.not_valid_before_utc)[-MOST_OF_OTHERS:]
    wanted = {one.public_bytes(Encoding.PEM) for one in (*newest, *ours)}
    if wanted == set(_pieces(held)):
        return held
    return b"".join(sorted(wanted))


def _pieces(text: bytes) -> list[bytes]:
    """The certificates of a PEM text, each as it would be written alone."""
    try:
        return [one.public_bytes(Encoding.PEM) for one in x509.load_pem_x509_certificates(text)]
    except ValueError:
        return []


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    dates: tuple[dt.datetime, dt.datetime],
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
