"""What a store's client says, and the reason that the Job names for it."""

import pytest

from argosy_fetch.s3 import _reason

CUT = (
    "Error performing GET http://127.0.0.1:{port}/org/tiny in {took}, after 3 retries - HTTP error"
)
STATUS = "Server returned non-2xx status code: {status}: "


@pytest.mark.parametrize("took", ["401.28899ms", "403ms", "404.1s", "401µs", "403s"])
@pytest.mark.parametrize("port", [8080, 401, 404])
def test_a_time_and_a_port_are_no_status(took: str, port: int) -> None:
    assert _reason(OSError(), CUT.format(port=port, took=took)) == "SourceUnreachable"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("401 Unauthorized", "SourceForbidden"),
        ("403", "SourceForbidden"),
        ("404 Not Found", "SourceNotFound"),
        ("503", "SourceUnreachable"),
    ],
)
def test_a_status_is_one_also_beside_a_time(status: str, reason: str) -> None:
    said = CUT.format(port=8080, took="403ms") + STATUS.format(status=status)
    assert _reason(OSError(), said) == reason
