"""What the conditions say about the encryption between a fleet's pods."""

import pytest

from tests.core.status.worlds import GATEWAY, Row, World, pod, told

TLS = {"security": {"tls": {"secretName": "chat-tls"}}}
ENGINE = pod("colocated", tls=True)
FRONT = pod("gateway", revision="", tls=True)
STARTING = {"phase": "Pending", "ready": False, "started": False}
ROWS = [
    Row(
        "the spec names no Secret",
        World(pods=(ENGINE, FRONT)),
        {"TransportSecured": "False NoCertificate"},
        {"NoCertificate": "requests and KV caches travel between the pods in the clear"},
    ),
    Row(
        "every pod has the certificate",
        World(TLS, pods=(ENGINE, FRONT)),
        {"TransportSecured": "True Encrypted"},
        {"Encrypted": "engine pods take only calls with TLS and a certificate"},
    ),
    Row(
        "a second gateway pod starts",
        World(TLS, pods=(ENGINE, FRONT, pod("gateway", 2, "", tls=True, **STARTING))),
        {"TransportSecured": "True Encrypted"},
    ),
    Row(
        "a gateway pod of before is being deleted and still calls engines",
        World(TLS, pods=(ENGINE, FRONT, pod("gateway", 2, "", terminating=True))),
        {"TransportSecured": "False CertificateNotUsed"},
        {
            "CertificateNotUsed": "pods without the certificate still run, or no engine pod has "
            "started with it"
        },
    ),
    Row(
        "what had no certificate has ended",
        World(TLS, pods=(ENGINE, FRONT, pod("gateway", 2, "", phase="Succeeded"))),
        {"TransportSecured": "True Encrypted"},
    ),
    Row(
        "a gateway of before runs, so that engines stay as they are",
        World(TLS, pods=(ENGINE, FRONT, GATEWAY)),
        {"TransportSecured": "False CertificateNotUsed"},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_condition_says_whether_the_traffic_is_encrypted(row: Row) -> None:
    found, expected = told(row)
    assert found == expected


def test_a_fleet_whose_secret_does_not_exist_is_not_called_encrypted() -> None:
    """Its pods have the volume, but cannot mount it."""
    waits = pod("colocated", tls=True, **STARTING)
    found, _ = told(Row("", World(TLS, pods=(waits, FRONT)), {}))
    assert found["TransportSecured"] == "False CertificateNotUsed"
