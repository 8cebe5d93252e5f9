"""Back-off from prefill engines that failed, in virtual time."""

from argosy_engine.core.handover.patience import Suspects

A, B = "10.0.0.1:8002", "10.0.0.2:8002"


def test_an_engine_that_failed_is_left_alone_twice_as_long_each_time_up_to_a_minute():
    suspects, now, waits = Suspects(), 0.0, []
    for _ in range(7):
        suspects.failed(A, asked_s=now, now=now)
        began = now
        while not suspects.may_ask(A, now):
            now += 1.0
        waits.append(now - began)
    assert waits == [2, 4, 8, 16, 32, 60, 60]
    assert suspects.may_ask(B, now)


def test_one_request_asks_again_while_the_others_stay_away():
    suspects = Suspects()
    suspects.failed(A, asked_s=0.0, now=5.0)
    assert not suspects.may_ask(A, 6.9)
    assert [suspects.may_ask(A, 7.0) for _ in range(3)] == [True, False, False]


def test_requests_that_were_under_way_when_it_failed_count_as_one_failure():
    suspects = Suspects()
    for index in range(50):
        suspects.failed(A, asked_s=index * 0.01, now=5.0 + index * 0.01)
    assert suspects.may_ask(A, 7.0)


def test_an_answer_of_an_engine_without_suspicion_changes_nothing():
    suspects = Suspects()
    suspects.answered(A)
    assert suspects.may_ask(A, 0.0)


def test_a_failure_of_the_same_moment_counts_and_one_that_was_asked_before_does_not():
    suspects = Suspects()
    suspects.failed(A, asked_s=5.0, now=5.0)
    suspects.failed(A, asked_s=4.9, now=5.0)
    assert suspects.trusts(A, 7.0)
    suspects.failed(A, asked_s=5.0, now=7.0)
    assert not suspects.trusts(A, 10.9)
    assert suspects.trusts(A, 11.0)


def test_an_answer_ends_all_suspicion_and_a_refusal_lasts_a_second():
    suspects = Suspects()
    suspects.failed(A, asked_s=0.0, now=5.0)
    suspects.answered(A)
    assert suspects.may_ask(A, 5.0)
    suspects.refused(A, now=5.0)
    assert not suspects.trusts(A, 5.9)
    assert suspects.trusts(A, 6.0)


def test_addresses_of_pods_long_gone_are_forgotten():
    suspects = Suspects()
    for index in range(10_000):
        suspects.failed(f"10.0.0.{index}:8002", asked_s=float(index), now=float(index))
    assert len(suspects._of) <= 1024
