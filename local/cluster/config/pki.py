"""Certificates and tokens of one cluster: new at every start, valid for 30 days."""

import datetime as dt
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local.cluster.layout import API_ADDRESS, API_SERVICE, node_address

_VALID = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs the certificates of one cluster."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def _name(common: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _VALID)
    )


def make_authority(now: dt.datetime) -> Authority:
    """A self-signed root."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("argosy-one-machine")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        **dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment"), False),
        **dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False),
    )
    certificate = (
        _builder(name, name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def issue(
    authority: Authority, common: str, organization: str, names: list[str], now: dt.datetime
) -> tuple[bytes, bytes]:
    """(certificate, key) as PEM, for client and server use; `names` are DNS names or IPs."""
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    issuer = authority.certificate.subject
    builder = _builder(_name(common, organization), issuer, key.public_key(), now)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
        critical=False,
    )
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as unencrypted PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_all(folder: Path, nodes: list[str]) -> dict[str, str]:
    """Write certificates, keys and the token file into `folder`; returns user → token."""
    now = dt.datetime.now(dt.UTC)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = make_authority(now)
    ca = authority.certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.crt").write_bytes(ca)
    api_names = ["127.0.0.1", "localhost", API_SERVICE, API_ADDRESS]
    api_names += ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    api_names += ["kubernetes.default.svc.cluster.local"]
    for name, common, organization, names in (
        ("apiserver", "kube-apiserver", "", api_names),
        ("kubelet-client", "kube-apiserver-kubelet-client", "system:masters", []),
        ("kubelet", "kubelet", "", [*nodes, *map(node_address, nodes)]),
    ):
        certificate, key = issue(authority, common, organization, names, now)
        (folder / f"{name}.crt").write_bytes(certificate)
        write_private(folder / f"{name}.key", key)
    accounts = ec.generate_private_key(ec.SECP256R1())
    write_private(folder / "accounts.key", private_pem(accounts))
    return _write_tokens(folder, nodes)


def _write_tokens(folder: Path, nodes: list[str]) -> dict[str, str]:
    users = {
        "argosy-admin": "system:masters",
        "system:kube-controller-manager": "",
        "system:kube-scheduler": "",
        "system:kube-proxy": "",
        "system:coredns": "",
        **{f"system:node:{node}": "system:nodes" for node in nodes},
    }
    tokens = {user: secrets.token_urlsafe(32) for user in users}
    lines = [
        f'{tokens[user]},{user},{user},"{group}"' if group else f"{tokens[user]},{user},{user}"
        for user, group in users.items()
    ]
    write_private(folder / "tokens.csv", ("\n".join(lines) + "\n").encode())
    return tokens
