"""TLS of the engine's ports: what is asked of both sides, and what a new Secret changes."""

import socket
import ssl
import threading

import pytest
from cryptography import x509

from argosy_engine.transfer.certificates import Certificates
from argosy_engine.transfer.mounted_file import FileError
from tests.engine.trust.certificates import Secret, authority, pair, root

ONE, TWO = authority(), authority()


@pytest.fixture
def secret(tmp_path):
    return Secret(tmp_path / "tls", ONE)


def met(server: ssl.SSLContext, client: ssl.SSLContext) -> int:
    """The serial number of the certificate that the server showed. SSLError of either side."""
    ours, theirs = socket.socketpair()
    failed: list[ssl.SSLError] = []

    def listen() -> None:
        with ours:
            try:
                with server.wrap_socket(ours, server_side=True) as connection:
                    connection.sendall(b"x")
            except ssl.SSLError as error:
                failed.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        with theirs, client.wrap_socket(theirs) as connection:
            connection.recv(1)
            shown = connection.getpeercert(binary_form=True)
            # Resumed with a ticket, a later call would show no certificate.
            assert connection.session is None or not connection.session.has_ticket
    finally:
        thread.join()
    if failed:
        raise failed[0]
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_caller_with_a_certificate_of_another_authority_is_refused(secret, tmp_path):
    other = Secret(tmp_path / "other", TWO, trusts=root(ONE))
    with pytest.raises(ssl.SSLError):
        met(Certificates(secret.folder).server(), other.caller())


def test_an_engine_with_a_certificate_of_another_authority_is_not_called(secret, tmp_path):
    other = Secret(tmp_path / "other", TWO, trusts=root(ONE))
    with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_VERIFY_FAILED|UNKNOWN_CA"):
        met(Certificates(other.folder).server(), Certificates(secret.folder).client())


def test_an_expired_certificate_of_a_caller_is_refused(secret, tmp_path):
    old = Secret(tmp_path / "old", ONE, expired=True)
    with pytest.raises(ssl.SSLError, match=r"EXPIRED|certificate has expired"):
        met(Certificates(secret.folder).server(), old.caller())


def test_versions_before_1_3_are_refused(secret):
    caller = secret.caller()
    caller.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        met(Certificates(secret.folder).server(), caller)


def test_a_new_secret_counts_at_the_next_handshake_on_both_sides(secret):
    ours = Certificates(secret.folder)
    server = ours.server()
    before = met(server, ours.client())
    secret.write(ONE)
    assert met(server, ours.client()) == secret.serial != before


def test_a_new_authority_replaces_the_one_before(secret):
    ours = Certificates(secret.folder)
    server, old = ours.server(), secret.caller()
    secret.write(ONE, trusts=root(ONE, TWO))
    assert met(server, old) == secret.serial
    secret.write(TWO)
    assert met(server, ours.client()) == secret.serial
    with pytest.raises(ssl.SSLError):
        met(server, old)


@pytest.mark.parametrize("what", ["key", "expired", "empty"])
def test_unusable_new_files_leave_the_ones_before_and_are_reported_once(secret, caplog, what):
    ours = Certificates(secret.folder)
    server, serial = ours.server(), secret.serial
    (certificate, key), (_, other) = pair(ONE, expired=what == "expired"), pair(ONE)
    if what == "empty":
        secret.put(b"", b"", b"")
    else:
        secret.put(certificate, other if what == "key" else key, root(ONE))
    assert met(server, ours.client()) == serial
    assert met(server, ours.client()) == serial
    said = [r.message for r in caplog.records if "the certificate before it stays" in r.message]
    assert len(said) == 1
    secret.write(ONE)
    assert met(server, ours.client()) == secret.serial != serial


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("tls.crt", "tls.crt: No such file or directory"),
        ("tls.key", "tls.key: No such file or directory"),
        ("ca.crt", "ca.crt: No such file or directory"),
    ],
)
def test_a_folder_without_a_file_is_refused_by_its_name(secret, missing, why):
    (secret.folder / missing).unlink()
    with pytest.raises(FileError) as error:
        Certificates(secret.folder)
    assert str(error.value) == f"{secret.folder}/{why}"


def test_what_is_wrong_with_the_content_is_said(secret):
    certificate, key = pair(ONE)
    for contents, why in (
        ((b"x", key, root(ONE)), "tls.crt: no certificate in PEM form"),
        ((certificate, pair(ONE)[1], root(ONE)), "tls.key: no key in PEM form that fits tls.crt"),
        ((certificate, key, b"x"), "ca.crt: no certificate in PEM form"),
        ((certificate, key, certificate), "ca.crt: holds no certificate of an authority (CA:TRUE)"),
    ):
        secret.put(*contents)
        with pytest.raises(FileError) as error:
            Certificates(secret.folder)
        assert str(error.value) == f"{secret.folder}/{why}"
