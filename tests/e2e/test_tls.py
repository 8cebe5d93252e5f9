"""A fleet gets a certificate, with a Secret that a real kubelet mounts."""

import base64
import datetime as dt
import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from local.cluster.config.pki import issue, make_authority
from tests.e2e.installed import complete

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def secret(name):
    now = dt.datetime.now(dt.UTC)
    authority = make_authority(now)
    certificate, key = issue(authority, "fleet", "", ["fleet.example"], now)
    root = authority.certificate.public_bytes(Encoding.PEM)
    files = {"tls.crt": certificate, "tls.key": key, "ca.crt": root}
    data = {file: base64.b64encode(content).decode() for file, content in files.items()}
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls"}
    return json.dumps({**kind, "metadata": {"name": name}, "data": data})


def test_a_fleet_begins_to_speak_tls_once_its_secret_exists_and_serves_all_the_while(argosy):
    argosy.apply("sealed", mode="disaggregated")
    argosy.until_ready("sealed")
    argosy.until_condition("sealed", "TransportSecured", "NoCertificate")
    before = {pod["metadata"]["uid"] for pod in argosy.pods("sealed", "decode")}
    spec = {"spec": {"security": {"tls": {"secretName": "sealed-tls"}}}}
    argosy.kubectl("patch", "sd", "sealed", "--type=merge", "-p", json.dumps(spec))
    argosy.until_condition("sealed", "TransportSecured", "CertificateNotUsed")
    assert complete(argosy.url("sealed"), "sealed").status_code == 200
    assert {pod["metadata"]["uid"] for pod in argosy.pods("sealed", "decode")} == before
    argosy.kubectl("apply", "-f", "-", given=secret("sealed-tls"))
    argosy.until_condition("sealed", "TransportSecured", "AsSpecified", 240)
    answer = complete(argosy.url("sealed"), "sealed")
    assert answer.status_code == 200
    assert answer.headers["x-argosy-prefill-pod"].startswith("sealed-prefill-")
    engines = argosy.pods("sealed", "prefill") + argosy.pods("sealed", "decode")
    for pod in engines:
        assert pod["metadata"]["annotations"]["serving.argosy.dev/tls"] == "true"
    argosy.kubectl("delete", "sd", "sealed", "--wait=false")
