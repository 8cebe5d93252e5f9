"""The order in which requests leave the line."""

import pytest

from argosy_gateway.routing.line import RECENT_TOKENS, Line, Waiting
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


def test_a_flow_that_comes_later_has_saved_nothing_up():
    line = line_of(*(waiting(float(i), flow="old") for i in range(1, 9)))
    for _ in range(4):
        line.serve(line.first_in_time(0.0, 0.0))
    for i in (1, 2, 3):
        line.add(waiting(20.0 + i, flow="new"))
    flows = [one.flow for one in drained(line)]
    assert flows == ["new", "old", "new", "old", "new", "old", "old"]


def test_the_first_request_of_a_flow_goes_next_each_time_that_the_flow_comes_back():
    line = line_of(*(waiting(float(i), tokens=5000, flow="old") for i in range(1, 9)))
    flows = []
    for i in range(4):
        line.serve(line.first_in_time(0.0, 0.0))
        line.add(waiting(20.0 + i, tokens=10, flow="new"))
        line.serve(one := line.first_in_time(0.0, 0.0))
        flows.append(one.flow)
    assert flows == ["new"] * 4


def test_a_flow_that_comes_back_pays_for_what_it_was_served_beyond_its_share():
    line = line_of(*(waiting(float(i), tokens=10, flow="old") for i in range(1, 9)))
    line.serve(line.first_in_time(0.0, 0.0))
    for tokens in (35, 5):
        line.add(waiting(20.0, tokens=tokens, flow="new"))
        served = [line.first_in_time(0.0, 0.0).flow]
        line.serve(line.first_in_time(0.0, 0.0))
        while served[-1] != "new":
            served.append(line.first_in_time(0.0, 0.0).flow)
            line.serve(line.first_in_time(0.0, 0.0))
        assert served == (["new"] if tokens == 35 else ["old", "old", "old", "new"])


@pytest.mark.parametrize(
    ("served", "present"), [(0, True), (RECENT_TOKENS, True), (RECENT_TOKENS + 2, False)]
)
def test_a_flow_is_remembered_as_present_for_so_many_tokens_of_another(served, present):
    line = line_of(waiting(1.0, tokens=1, flow="other"))
    mine = [waiting(2.0, tokens=tokens, flow="mine") for tokens in (max(1, served), 1, 1)]
    assert not line_of(*mine).others(mine[0])
    for one in mine:
        line.add(one)
    assert line.others(mine[0])
    assert not line.others(waiting(1.0, priority=1))
    for _ in range(3):
        line.serve(line.first_in_time(0.0, 0.0))
    assert line.others(mine[2]) is present


def test_late_requests_of_each_flow_go_in_turn():
    many = [waiting(1.0, flow="many") for _ in range(4)]
    few = [waiting(1.0, flow="few") for _ in range(2)]
    line = line_of(*many, *few)
    line.first_in_time(2.0, 2.0)
    out = []
    while (one := line.first_late()) is not None:
        out.append(one)
        line.serve(one)
    assert out == [many[0], few[0], many[1], few[1], many[2], many[3]]


def test_a_late_request_that_leaves_gives_its_turn_to_the_next_of_its_flow():
    many = [waiting(1.0, flow="many") for _ in range(2)]
    few = waiting(1.0, flow="few")
    line = line_of(*many, few)
    line.first_in_time(2.0, 2.0)
    line.remove(many[0])
    assert line.first_late() is many[1]
    line.remove(many[1])
    assert line.first_late() is few


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


def test_any_is_the_one_that_must_begin_first():
    first, second = waiting(1.0, flow="b", priority=3), waiting(9.0)
    line = line_of(second, first)
    assert line.earliest() is first
    line.remove(first)
    assert line.earliest() is second


@pytest.mark.parametrize("flows", [1025, 3000])
def test_idle_flows_are_forgotten(flows):
    line = Line()
    for i in range(flows):
        one = waiting(1.0, flow=str(i))
        line.add(one)
        line.serve(one)
    assert len(line._flows[0]._idle) == 1024
    assert not line._flows[0]._busy


def test_nothing_is_kept_of_a_line_that_is_empty():
    one, two = waiting(1.0), waiting(5.0, flow="b")
    line = line_of(one, two)
    line.first_in_time(2.0, 2.0)
    line.remove(one)
    line.remove(two)
    assert not line._due
    assert not line._late
