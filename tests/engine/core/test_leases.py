"""Leases end by release or time, and never under an active send."""

import pytest

from argosy_engine.core.handover.leases import LeaseTable
from argosy_engine.core.handover.messages import LeaseKey, LeaseReady, Offer
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


OFFER = Offer(
    ready=LeaseReady(key=KEY, first_token=7, n_tokens=20, n_blocks=2), prompt=b"of the tokens"
)


def test_an_offer_is_claimed_once_and_then_its_lease_lives_as_long_as_the_claim_says():
    table = granted()
    table.offer(OFFER, now=9.0)
    assert table.claim("t", expires_s=20.0, now=9.0) is OFFER
    assert table.collect(19.9) == []
    with pytest.raises(LeaseGoneError, match="claimed before"):
        table.claim("t", expires_s=90.0, now=9.0)
    assert table.collect(20.0) == [KEY]


def test_a_lease_that_was_not_offered_is_not_claimed():
    table = granted()
    with pytest.raises(LeaseGoneError, match="not offered"):
        table.claim("t", expires_s=90.0, now=0.0)
    assert table.collect(10.0) == [KEY]


def test_nobody_claims_with_another_ticket():
    table = granted()
    table.offer(OFFER, now=0.0)
    with pytest.raises(LeaseGoneError, match="no lease has this ticket"):
        table.claim("u", expires_s=90.0, now=0.0)


def test_an_offer_ends_with_its_lease():
    table = granted()
    table.offer(OFFER, now=9.9)
    with pytest.raises(LeaseGoneError, match="expired"):
        table.claim("t", expires_s=90.0, now=10.0)
    table.release(KEY)
    with pytest.raises(LeaseGoneError, match="released"):
        table.claim("t", expires_s=90.0, now=0.0)
    with pytest.raises(LeaseGoneError, match="released"):
        table.offer(OFFER, now=0.0)
