"""Requests are drawn from a table of rates, which is checked line by line."""

from collections.abc import Iterator

import pytest

from argosy_law.sim.rates import drawn, read
from argosy_law.sim.traces import TraceError
from tests.sim.fleets import trace

LENGTHS = trace([(0.0, 100, 1), (1.0, 200, 2), (2.0, 300, 3)])


def table(*rows: str, header: str = "t_s,req_per_s,gap") -> list[str]:
    return [f"{line}\n" for line in (header, *rows)]


def test_a_table_becomes_points_that_begin_at_0() -> None:
    assert read("r.csv", table("600,2.5,0", "", "1200,3,0")) == [(0.0, 2.5), (600.0, 3.0)]
    other = table("217,23,9", "650,24,9", header="t_s,req_per_s_mid,req_per_s_low")
    assert read("r.csv", other) == [(0.0, 23.0), (433.0, 24.0)]


@pytest.mark.parametrize(
    ("rows", "line", "word"),
    [
        (["0,1,0", "x,1,0"], 3, "t_s is 'x'; write a number"),
        (["0,1,0", "1,nan,0"], 3, "req_per_s is nan; write a number of at least 0"),
        (["0,1,0", "1,-2,0"], 3, "req_per_s is -2"),
        (["0,inf,0"], 2, "req_per_s is inf"),
        (["0,1000001,0"], 2, "the most is 1e+06"),
        (["5,1,0", "5,1,0"], 3, "t_s is 5, not after 5: sort by t_s"),
        (["0,1,0", "21601,1,0"], 3, "missing data"),
        (["0,1,0", "600,1,1"], 3, "gap marks missing data"),
        (["0,1"], 2, "2 values where the header has 3"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(rows: list[str], line: int, word: str) -> None:
    with pytest.raises(TraceError) as caught:
        read("r.csv", table(*rows))
    assert str(caught.value).startswith(f"r.csv, line {line}: ")
    assert word in str(caught.value)


def test_a_wrong_header_and_too_few_rows_are_refused() -> None:
    with pytest.raises(TraceError, match=r"r\.csv, line 1: the header needs t_s and req_per_s"):
        read("r.csv", table("1,2", header="time,rate"))
    with pytest.raises(TraceError, match=r"r\.csv, line 1: .* it has nothing"):
        read("r.csv", [])
    with pytest.raises(TraceError, match=r"r\.csv has 1 rows; it needs two"):
        read("r.csv", table("0,1,0"))


def test_arrivals_follow_the_rates_in_straight_lines() -> None:
    points = [(0.0, 0.0), (1000.0, 10.0), (2000.0, 10.0), (3000.0, 0.0)]
    found = drawn(points, LENGTHS, scale=2.0, seed=1)
    assert found.arrival == sorted(found.arrival)

    def count(begin: float, end: float) -> int:
        return sum(begin <= at < end for at in found.arrival)

    assert count(0, 500) == pytest.approx(2500, rel=0.1)
    assert count(500, 1000) == pytest.approx(7500, rel=0.1)
    assert count(1000, 2000) == pytest.approx(20_000, rel=0.05)
    assert count(2500, 3000) == pytest.approx(2500, rel=0.1)


def test_equal_seeds_draw_equal_requests() -> None:
    points = [(0.0, 5.0), (100.0, 5.0)]
    assert drawn(points, LENGTHS, 1.0, 1) == drawn(points, LENGTHS, 1.0, 1)
    assert drawn(points, LENGTHS, 1.0, 1) != drawn(points, LENGTHS, 1.0, 2)


def test_a_line_that_is_no_text_is_named() -> None:
    with pytest.raises(TraceError, match=r"^r\.csv, line 3: no text of comma-separated values: "):
        read("r.csv", table("0,1,0", "1,1," + "1" * 200_000))

    def broken() -> Iterator[str]:
        yield from table("0,1,0")
        b"\xff".decode()

    with pytest.raises(TraceError, match=r"^r\.csv, line 3: no text of comma-separated values: "):
        read("r.csv", broken())
