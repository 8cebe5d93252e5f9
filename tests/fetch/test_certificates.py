"""A hub and a store whose certificate an authority of the company's own has signed."""

import datetime as dt
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from local.cluster.config.pki import issue, make_authority
from local.weights.tiny import write_tiny
from tests.support.stores import Trouble, serving

pytest.importorskip("obstore")

NOW = dt.datetime.now(dt.UTC)
MAIN = "import sys; from argosy_fetch.cli import main; sys.exit(main(sys.argv[1:]))"


class Stores:
    """Both speak TLS. `bundle` is the file with their authority."""

    def __init__(self, folder: Path, url: str) -> None:
        self.bundle, self.folder, self.url = folder / "ca.pem", folder, url

    def fetch(self, uri: str, **env: str) -> subprocess.CompletedProcess[str]:
        """In a process of its own: a client reads its authorities once."""
        of_stores = {
            "HF_ENDPOINT": self.url,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        kept = {k: v for k, v in os.environ.items() if k not in ("SSL_CERT_FILE", "HF_TOKEN")}
        words = ["--uri", uri, "--root", str(self.folder / "claim"), "--fleet", "chat"]
        words += ["--progress-port", "0"]
        return subprocess.run(
            [sys.executable, "-c", MAIN, "run", *words],
            env=kept | of_stores | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    by = make_authority(NOW)
    (tmp_path / "ca.pem").write_bytes(by.certificate.public_bytes(Encoding.PEM))
    for name, content in zip(("crt", "key"), issue(by, "hub", "", ["127.0.0.1"], NOW), strict=True):
        (tmp_path / name).write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "claim").mkdir()
    write_tiny(tmp_path / "served/org/tiny")
    with serving(tmp_path / "served", Trouble(), tls) as url:
        yield Stores(tmp_path, url)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hf://org/tiny@main", "CERTIFICATE_VERIFY_FAILED"),
        ("s3://org/tiny", "InvalidCertificate( UnknownIssuer"),
    ],
)
def test_a_bundle_that_ssl_cert_file_names_is_trusted(uri: str, says: str, stores: Stores) -> None:
    refused = stores.fetch(uri)
    assert refused.returncode == 1
    assert '"reason": "SourceUnreachable"' in refused.stdout
    assert says in refused.stdout
    fetched = stores.fetch(uri, SSL_CERT_FILE=str(stores.bundle))
    assert fetched.returncode == 0, fetched.stdout
    assert len(list((stores.folder / "claim").rglob("model.safetensors"))) == 1
