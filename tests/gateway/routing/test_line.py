"""The order in which requests leave the line."""

from argosy_gateway.routing.line import Line, Waiting
from argosy_gateway.routing.strategies import RoutingRequest


def waiting(start_by: float, tokens: int = 10, **more) -> Waiting:
    return Waiting(RoutingRequest("", "m", True, tokens, b""), 0.0, 1.0, start_by=start_by, **more)


def line_of(*ones: Waiting) -> Line:
    line = Line()
    for one in ones:
        line.add(one)
    return line


def drained(line: Line, now: float = 0.0) -> list[Waiting]:
    out = []
    while (one := line.first_in_time(now, now)) is not None:
        out.append(one)
        line.serve(one)
    return out


def test_the_earliest_deadline_goes_first():
    late, early = waiting(3.0), waiting(2.0)
    assert drained(line_of(late, early)) == [early, late]


def test_a_request_is_in_time_up_to_the_moment_at_which_it_must_begin():
    one = waiting(2.0)
    line = line_of(one)
    assert line.first_in_time(1.0, 2.0) is one
    assert line.first_in_time(1.0, 2.001) is None
    assert line.first_late() is None
    assert line.first_in_time(2.0, 2.0) is one
    assert line.first_in_time(2.001, 2.001) is None
    assert line.first_late() is one


def test_a_request_that_cannot_begin_in_time_lets_one_behind_it_go():
    tight, loose = waiting(1.0), waiting(5.0)
    assert line_of(tight, loose).first_in_time(0.0, 3.0) is loose


def test_late_requests_go_in_the_order_of_arrival_whatever_their_priority():
    first, second = waiting(5.0, priority=9), waiting(1.0, priority=-9)
    line = line_of(first, second)
    line.first_in_time(2.0, 2.0)
    assert line.first_late() is second
    line.first_in_time(6.0, 6.0)
    assert line.first_late() is first
    line.remove(first)
    assert line.first_late() is second
    line.remove(second)
    assert line.first_late() is None


def test_a_lower_priority_number_goes_first_and_ages_no_other_away():
    low, high = waiting(1.0, priority=1), waiting(9.0, priority=0)
    line = line_of(low, high)
    assert line.first_in_time(2.0, 2.0) is high
    assert line.first_late() is low


def test_the_flow_that_was_served_less_goes_first():
    a = [waiting(float(i), tokens=30, flow="a") for i in (1, 2, 3)]
    b = [waiting(9.0 + i, tokens=20, flow="b") for i in (1, 2, 3)]
    assert drained(line_of(*a, *b)) == [a[0], b[0], b[1], a[1], b[2], a[2]]


def test_the_line_counts_requests_and_tokens_until_they_leave_and_only_once():
    one, two = waiting(1.0, tokens=3), waiting(2.0, tokens=4)
    line = line_of(one, two)
    assert (len(line), line.tokens) == (2, 7)
    line.remove(one)
    line.remove(one)
    assert (len(line), line.tokens) == (1, 4)
    line.serve(two)
    assert (len(line), line.tokens) == (0, 0)
    assert line.earliest() is None


def test_nothing_is_kept_of_a_line_that_is_empty():
    one, two = waiting(1.0), waiting(5.0, flow="b")
    line = line_of(one, two)
    line.first_in_time(2.0, 2.0)
    line.remove(one)
    line.remove(two)
    assert not line._due
    assert not line._late
