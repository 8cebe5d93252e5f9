"""Why a request missed the SLO: one reason each, the one that took most of its time."""

from dataclasses import replace

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.relay.verdicts import (
    STRAIGHT,
    Course,
    Ending,
    Miss,
    Outcome,
    Path,
    judge,
    reason_of,
)

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
LATE = Outcome(Ending.OK, 0.0, 9.0, 2.0, 2.5, 11)
"""First content after 2 s, then ten tokens in half a second."""
SLOW = Outcome(Ending.OK, 0.0, 9.0, 0.5, 2.0, 11)
"""First content in time, then ten tokens in 1.5 s."""


def reason(outcome: Outcome, course: Course = STRAIGHT) -> Miss | None:
    verdict = judge(outcome, SLO)
    assert verdict is not None
    return reason_of(outcome, verdict, SLO, course)


def test_a_request_that_met_both_limits_has_no_reason() -> None:
    assert reason(Outcome(Ending.OK, 0.0, 9.0, 1.0, 2.0, 11)) is None


@pytest.mark.parametrize(
    ("course", "why"),
    [
        (Course(), Miss.PROMPT),  # nothing delayed it
        (Course(waited_s=0.9), Miss.PROMPT),  # 1.1 s are left for its own prompt
        (Course(waited_s=1.0), Miss.QUEUE),
        (Course(waited_s=1.2, own_share=0.1), Miss.QUEUE),
        (Course(waited_s=0.5, own_share=0.1), Miss.AHEAD),  # 1.5 s, of which 1.35 for others
        (Course(waited_s=1.5, no_pod_s=1.0), Miss.NO_POD),
        (Course(waited_s=1.5, no_pod_s=0.7), Miss.QUEUE),
        (Course(waited_s=0.1, lost_s=1.5), Miss.RETRY),
        (Course(waited_s=0.7, lost_s=0.6), Miss.QUEUE),
    ],
)
def test_a_late_first_token_is_put_down_to_what_took_most_of_its_time(
    course: Course, why: Miss
) -> None:
    assert reason(LATE, course) is why


def test_a_first_token_that_was_held_is_put_down_to_that() -> None:
    assert reason(replace(LATE, held_s=1.2)) is Miss.HELD
    assert reason(replace(LATE, held_s=0.9)) is Miss.PROMPT


def test_a_prompt_that_takes_the_limit_alone_is_named_before_a_longer_wait() -> None:
    late = replace(LATE, first_content_at=5.0, last_content_at=5.5)
    assert reason(late, Course(waited_s=3.9)) is Miss.PROMPT
    assert reason(late, Course(waited_s=4.0)) is Miss.QUEUE


def test_a_client_that_left_while_it_waited_is_put_down_to_the_wait() -> None:
    gone = Outcome(Ending.CLIENT_GONE, 0.0, 4.0)
    assert reason(gone, Course(waited_s=4.0)) is Miss.QUEUE
    assert reason(gone, Course(waited_s=4.0, no_pod_s=4.0)) is Miss.NO_POD


@pytest.mark.parametrize(
    ("course", "why"),
    [
        (Course(), Miss.DECODE),
        (Course(first_gap_s=1.0), Miss.DECODE),  # no KV came from another pod
        (Course(first_gap_s=1.0, handed_over=True), Miss.TRANSFER),
        (Course(first_gap_s=0.15, handed_over=True), Miss.DECODE),
        (Course(moves=1, first_gap_s=1.0, handed_over=True), Miss.MOVED),
    ],
)
def test_slow_tokens_are_put_down_to_decode_the_transfer_or_a_move(
    course: Course, why: Miss
) -> None:
    assert reason(SLOW, course) is why


def test_the_transfer_is_the_reason_only_where_the_limit_would_be_met_without_it() -> None:
    """Ten tokens in 1.5 s; without the gap nine steps, and a tenth as long as they were."""
    course = Course(handed_over=True)
    assert reason(SLOW, replace(course, first_gap_s=0.61)) is Miss.TRANSFER
    assert reason(SLOW, replace(course, first_gap_s=0.59)) is Miss.DECODE
    two = Outcome(Ending.OK, 0.0, 9.0, 0.5, 0.7, 2)
    assert reason(two, replace(course, first_gap_s=0.2)) is Miss.TRANSFER
    assert reason(two) is Miss.DECODE


def test_shed_and_failed_requests_say_so() -> None:
    assert reason(Outcome(Ending.SHED, 0.0, 0.1)) is Miss.SHED
    assert reason(Outcome(Ending.FAILED, 0.0, 0.1, 0.05), Course(waited_s=9.0)) is Miss.FAILED


def travelled(path: Path, now: float = 9.0, **times: float | None) -> Course:
    usual: dict[str, float | None] = {
        "without_pods_at": float("-inf"),
        "first_content_at": None,
        "second_content_at": None,
    }
    return path.course(now, **(usual | times))  # type: ignore[arg-type]


def test_the_path_of_a_request_that_was_sent_at_once() -> None:
    path = Path(2.0)
    path.add_attempt(2.0, own_share=0.5, handed_over=True, goes_on=False)
    course = travelled(path, first_content_at=3.0, second_content_at=3.25)
    assert course == Course(own_share=0.5, handed_over=True, first_gap_s=0.25)
    assert travelled(path, first_content_at=3.0).first_gap_s == 0.0


def test_the_path_over_a_pod_that_failed_and_one_that_the_stream_moved_to() -> None:
    path = Path(2.0)
    path.add_attempt(2.5, own_share=0.1, handed_over=True, goes_on=False)
    path.add_attempt(4.0, own_share=1.0, handed_over=False, goes_on=False)
    path.add_attempt(8.0, own_share=0.2, handed_over=True, goes_on=True)
    assert travelled(path) == Course(waited_s=0.5, lost_s=1.5, own_share=1.0, moves=1)


@pytest.mark.parametrize(
    ("without", "no_pod_s"), [(1.0, 0.0), (2.5, 0.5), (4.0, 1.0), (float("-inf"), 0.0)]
)
def test_the_time_without_pods_is_part_of_the_wait(without: float, no_pod_s: float) -> None:
    path = Path(2.0)
    path.add_attempt(3.0, own_share=1.0, handed_over=False, goes_on=False)
    course = travelled(path, without_pods_at=without)
    assert (course.waited_s, course.no_pod_s) == (1.0, no_pod_s)
