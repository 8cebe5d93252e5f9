"""What the conditions say about the encryption between a fleet's pods."""

import pytest

from tests.core.status.worlds import GATEWAY, NOW, Row, World, compare, pod

TLS = {"security": {"tls": {"secretName": "chat-tls"}}}
ENGINE = pod("colocated", tls=True)
FRONT = pod("gateway", revision="", tls=True)
STARTING = {"phase": "Pending", "ready": False, "started": False, "waits_since": NOW}
ENCRYPTED = {"TransportSecured": "True AsSpecified"}
WAITS = pod("colocated", tls=True, **STARTING)
ROWS = [
    Row(
        "the spec names no Secret",
        World(pods=(ENGINE, FRONT)),
        {"TransportSecured": "False NoCertificate"},
    ),
    Row(
        "every pod has the certificate",
        World(TLS, pods=(ENGINE, FRONT)),
        {"TransportSecured": "True AsSpecified"},
    ),
    Row(
        "a second gateway pod starts",
        World(TLS, pods=(ENGINE, FRONT, pod("gateway", 2, "", tls=True, **STARTING))),
        {"TransportSecured": "True AsSpecified"},
    ),
    Row(
        "a gateway pod of before is being deleted and still calls engines",
        World(TLS, pods=(ENGINE, FRONT, pod("gateway", 2, "", terminating=True))),
        {
            "Reconciling": "True RollingOut",
            "RolledOut": "False RollingOut",
            "TransportSecured": "False CertificateNotUsed",
        },
    ),
    Row(
        "what had no certificate has ended",
        World(TLS, pods=(ENGINE, FRONT, pod("gateway", 2, "", phase="Succeeded"))),
        {"TransportSecured": "True AsSpecified"},
    ),
    Row(
        "a gateway of before runs, so that engines stay as they are",
        World(TLS, pods=(ENGINE, FRONT, GATEWAY)),
        {"TransportSecured": "False CertificateNotUsed"},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_condition_says_whether_the_traffic_is_encrypted(row: Row) -> None:
    found, expected = compare(row)
    assert found == expected


ENCRYPTED = {"TransportSecured": "True AsSpecified"}
NOT_USED = "False CertificateNotUsed"
WAITS = pod("colocated", tls=True, **STARTING)


@pytest.mark.parametrize(
    ("world", "says"),
    [
        pytest.param(
            World(TLS, pods=(FRONT,), before=ENCRYPTED), "True AsSpecified", id="no engine pod"
        ),
        pytest.param(
            World(TLS, pods=(WAITS, FRONT), before=ENCRYPTED), "True AsSpecified", id="it starts"
        ),
        pytest.param(
            World(TLS, pods=(ENGINE, pod("colocated", 2, tls=True, **STARTING), FRONT)),
            "True AsSpecified",
            id="one engine pod serves, and the next one starts",
        ),
        pytest.param(World(TLS, pods=(FRONT,)), NOT_USED, id="no engine pod has ever started"),
        pytest.param(
            World(TLS, pods=(WAITS, FRONT), before={"TransportSecured": "False NoCertificate"}),
            NOT_USED,
            id="the Secret was just named",
        ),
        pytest.param(
            World(TLS, pods=(WAITS, FRONT, GATEWAY), before=ENCRYPTED),
            NOT_USED,
            id="a gateway pod has no certificate",
        ),
        pytest.param(
            World(pods=(WAITS, FRONT), before=ENCRYPTED),
            "False NoCertificate",
            id="the spec names no Secret any more",
        ),
    ],
)
def test_a_fleet_that_was_encrypted_stays_so_over_zero_replicas(world: World, says: str) -> None:
    found, _ = compare(Row("", world, {}))
    assert found["TransportSecured"] == says


def test_a_fleet_whose_secret_does_not_exist_is_not_called_encrypted() -> None:
    """Its pods have the volume, but cannot mount it."""
    found, _ = compare(Row("", World(TLS, pods=(WAITS, FRONT)), {}))
    assert found["TransportSecured"] == NOT_USED
