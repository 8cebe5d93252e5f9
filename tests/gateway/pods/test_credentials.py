"""How the gateway finds the API server and logs in: in a pod, and by a kubeconfig."""

import base64
import datetime as dt
import json
import ssl

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from argosy_gateway.errors import CredentialsError
from argosy_gateway.pods.credentials import from_kubeconfig, in_cluster
from local.cluster.config.pki import issue, make_authority

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
NOW = dt.datetime.now(dt.UTC)


def test_a_pod_logs_in_with_its_service_account(tmp_path):
    (tmp_path / "token").write_text("t\n")
    server = in_cluster(POD, tmp_path)
    assert (server.host, server.port) == ("10.96.0.1", 6443)
    assert server.ca_file == tmp_path / "ca.crt"
    assert server.headers() == [("authorization", "Bearer t")]
    (tmp_path / "token").write_text("replaced by the kubelet")
    assert server.headers() == [("authorization", "Bearer replaced by the kubelet")]


def kubeconfig(folder, *, cluster=None, user=None, **changes):
    """Written as JSON, which is YAML, too. Another context, cluster and user stand first."""
    other = {"name": "other", "context": {}, "cluster": {}, "user": {}}
    cluster = {"server": "http://10.0.0.1:8001", **(cluster or {})}
    config = {
        "current-context": "c",
        "contexts": [other, {"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [other, {"name": "k", "cluster": cluster}],
        "users": [other, {"name": "u", "user": user}],
        **changes,
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return path


def test_the_user_logs_in_by_a_token_or_by_a_file_beside_the_kubeconfig(tmp_path):
    (tmp_path / "t").write_text("from a file\n")
    by_token = from_kubeconfig(kubeconfig(tmp_path, user={"token": "named"}))
    assert by_token.headers() == [("authorization", "Bearer named")]
    by_file = from_kubeconfig(kubeconfig(tmp_path, user={"token": "named", "tokenFile": "t"}))
    assert by_file.headers() == [("authorization", "Bearer from a file")]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"user": {"exec": {}}}, "by a program"),
        ({"user": {"auth-provider": {}}}, "by a program"),
        ({"contexts": None}, "no entry 'c' in 'contexts'"),
        ({"contexts": []}, "no entry 'c' in 'contexts'"),
        ({"current-context": "x"}, "no entry 'x' in 'contexts'"),
        ({"clusters": []}, "no entry 'k' in 'clusters'"),
        ({"users": []}, "no entry 'u' in 'users'"),
    ],
)
def test_a_kubeconfig_that_does_not_say_how_to_log_in_is_refused(tmp_path, changes, says):
    path = kubeconfig(tmp_path, **changes)
    with pytest.raises(CredentialsError, match=says) as raised:
        from_kubeconfig(path)
    assert str(path) in str(raised.value)


HTTPS = {"server": "https://api:6443"}
AUTHORITY = make_authority(NOW)
CA = AUTHORITY.certificate.public_bytes(Encoding.PEM)


def trusted(server):
    return [int(each["serialNumber"], 16) for each in server.context().get_ca_certs()]


def test_the_authority_of_the_kubeconfig_is_the_only_one_trusted(tmp_path):
    (tmp_path / "ca.pem").write_bytes(CA)
    inline = {"certificate-authority-data": base64.b64encode(CA).decode()}
    for authority in (inline, {"certificate-authority": "ca.pem"}):
        server = from_kubeconfig(kubeconfig(tmp_path, cluster={**HTTPS, **authority}))
        assert trusted(server) == [AUTHORITY.certificate.serial_number]
        assert server.context().verify_mode is ssl.CERT_REQUIRED
        assert server.context().check_hostname


def handshake(server, client):
    """Both ends of a TLS connection in memory; the certificate that the server was shown."""
    ends = [ssl.MemoryBIO() for _ in range(4)]
    at_server = server.wrap_bio(ends[0], ends[1], server_side=True)
    at_client = client.wrap_bio(ends[1], ends[0], server_hostname="api")
    waiting = [at_client, at_server, at_client, at_server]
    for end in waiting:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return at_server.getpeercert()


def test_a_client_certificate_is_shown_to_the_api_server(tmp_path):
    for name, names in (("server", ["api"]), ("client", [])):
        certificate, key = issue(AUTHORITY, name, "", names, NOW)
        (tmp_path / f"{name}.crt").write_bytes(certificate)
        (tmp_path / f"{name}.key").write_bytes(key)
    (tmp_path / "ca.pem").write_bytes(CA)
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    listening.load_verify_locations(tmp_path / "ca.pem")
    listening.verify_mode = ssl.CERT_OPTIONAL
    cluster = {**HTTPS, "certificate-authority": "ca.pem"}
    user = {"client-certificate": "client.crt", "client-key": "client.key"}

    def shown(user):
        server = from_kubeconfig(kubeconfig(tmp_path, cluster=cluster, user=user))
        return handshake(listening, server.context())

    assert shown(user)["subject"] == ((("commonName", "client"),),)
    assert not shown({"client-certificate": "client.crt"})
    assert not shown({"client-key": "client.key"})
