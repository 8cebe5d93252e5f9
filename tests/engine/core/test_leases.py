"""Leases end by release or time, and never under an active send."""

import pytest

from argosy_engine.core.handover.leases import LeaseTable
from argosy_engine.core.handover.messages import LeaseKey
from argosy_engine.errors import LeaseGoneError

KEY = LeaseKey("r", 1, "epoch")


def granted():
    table = LeaseTable()
    table.promise(KEY, "t")
    table.grant(KEY, (1, 2), expires_s=10.0)
    return table


def test_a_lease_ends_when_it_is_released():
    table = granted()
    table.release(KEY)
    assert table.collect(0.0) == [KEY]
    assert table.expired == 0


def test_a_lease_ends_by_time_but_not_under_an_active_send():
    table = granted()
    assert table.begin_send(KEY, 9.0) == (1, 2)
    assert table.collect(99.0) == []
    table.end_send(KEY)
    assert table.collect(99.0) == [KEY]
    assert table.expired == 1


def test_renewal_moves_the_end():
    table = granted()
    table.renew(KEY, expires_s=20.0, now=5.0)
    assert table.collect(15.0) == []


@pytest.mark.parametrize(
    "key", [LeaseKey("r", 2, "epoch"), LeaseKey("r", 1, "older"), LeaseKey("x", 1, "epoch")]
)
def test_another_attempt_epoch_or_request_never_matches(key):
    with pytest.raises(LeaseGoneError):
        granted().begin_send(key, 0.0)


def test_an_expired_lease_serves_no_bytes():
    with pytest.raises(LeaseGoneError, match="expired"):
        granted().begin_send(KEY, 11.0)
