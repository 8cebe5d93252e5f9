"""Which handovers are avoided, for how long, and who is their cause, in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.pods.pairs import NO_FAILURES, FailingPair, Pairs


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pairs(clock):
    return Pairs(clock)


def test_a_pair_that_failed_is_avoided_and_other_pairs_of_its_ends_are_not(pairs):
    assert not pairs.avoids("p", "d")
    pairs.count_failure("p", "d", "silent")
    assert pairs.avoids("p", "d")
    assert not pairs.avoids("p", "d2")
    assert not pairs.avoids("p2", "d")
    assert not pairs.avoids("d", "p")


def test_the_time_doubles_from_a_second_to_a_minute(pairs, clock):
    lengths = []
    for _ in range(9):
        pairs.count_failure("p", "d", "silent")
        began_at = clock.now
        while pairs.avoids("p", "d"):
            clock.now += 0.5
        lengths.append(clock.now - began_at)
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_after_its_time_one_request_tries_the_pair_until_one_succeeds(pairs, clock):
    for _ in range(2):
        pairs.count_failure("p", "d", "silent")
    clock.now += 2
    assert not pairs.avoids("p", "d")
    pairs.begin("p", "d")
    assert pairs.avoids("p", "d")
    clock.now += 1.9
    assert pairs.avoids("p", "d"), "as long as the last time"
    clock.now += 0.1
    assert not pairs.avoids("p", "d")
    pairs.begin("p", "d")
    pairs.count_success("p", "d")
    assert not pairs.avoids("p", "d")
    assert pairs.failing(9) == []


def test_a_prefill_pod_that_fails_with_two_decode_pods_is_avoided_by_all(pairs, clock):
    pairs.count_failure("p", "d1", "fingerprint")
    assert not pairs.is_cause("p")
    pairs.count_failure("p", "d1", "fingerprint")
    assert not pairs.is_cause("p"), "the same partner shows nothing new"
    pairs.count_failure("p", "d2", "fingerprint")
    assert pairs.is_cause("p")
    assert not pairs.is_cause("d1")
    assert pairs.avoids("p", "d3")
    assert not pairs.avoids("p2", "d3")
    clock.now += 1
    assert not pairs.avoids("p", "d3")
    pairs.begin("p", "d3")
    assert pairs.avoids("p", "d4"), "one request over all pairs finds out"
    pairs.count_success("p", "d3")
    assert not pairs.is_cause("p")
    assert not pairs.avoids("p", "d4")
    assert [row.decode for row in pairs.failing(9)] == ["d1", "d2"], "their pairs failed last"


def test_a_decode_pod_that_fails_with_two_prefill_pods_is_the_cause(pairs):
    pairs.count_failure("p1", "d", "silent")
    pairs.count_failure("p2", "d", "silent")
    assert pairs.is_cause("d")
    assert not pairs.avoids("p1", "d2"), "the prefill pods are in order"
    pairs.count_success("p3", "d")
    assert not pairs.is_cause("d")


NAMED = {"p1": "u1", "10.0.0.1:8002": "u1", "p2": "u2", "[fd00::2]:8002": "u2"}


def test_the_headers_name_pods_or_addresses_and_the_reasons(pairs):
    header = b"p1=silent, [fd00::2]:8002=crc"
    found = pairs.learn("d", NAMED, failed=header, served=b"p3")
    assert found == {"u1": "silent", "u2": "crc"}
    assert pairs.failing(9) == [
        FailingPair("u1", "d", 1, "silent"),
        FailingPair("u2", "d", 1, "crc"),
    ]
    assert pairs.learn("d", NAMED, failed=None, served=b"p1") == {}
    assert pairs.failing(9) == [FailingPair("u2", "d", 1, "crc")]


def test_a_pod_that_computed_the_prompt_and_then_failed_has_not_handed_over(pairs):
    assert pairs.learn("d", NAMED, failed=b"10.0.0.1:8002=broken", served=b"p1") == {"u1": "broken"}
    assert [row.prefill for row in pairs.failing(9)] == ["u1"]
    assert pairs.handover_ages() == {}


@pytest.mark.parametrize("reason", sorted(NO_FAILURES))
def test_a_refusal_of_a_pod_in_good_health_is_no_failure(pairs, reason):
    assert pairs.learn("d", NAMED, failed=f"p1={reason}".encode(), served=None) == {}
    assert pairs.failing(9) == []


@given(failed=st.binary(max_size=200), served=st.binary(max_size=50))
def test_any_header_is_read_and_names_only_candidates(failed, served):
    pairs = Pairs(lambda: 0.0)
    assert set(pairs.learn("d", NAMED, failed=failed, served=served)) <= {"u1", "u2"}


def test_no_more_than_4096_pairs_are_remembered_the_first_is_forgotten(pairs):
    for number in range(4097):
        pairs.count_failure(f"p{number}", f"d{number}", "silent")
    assert len(pairs.failing(9999)) == 4096
    assert not pairs.avoids("p0", "d0")
    assert pairs.avoids("p1", "d1")
    assert pairs.avoids("p4096", "d4096")
