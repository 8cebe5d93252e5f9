"""Traces are read line by line: what is wrong is named with its line and what to write."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.sim.traces import LARGEST_DELAY_S, Trace, TraceError, read, scaled
from tests.sim.fleets import trace

HEADER = "arrival_s,prompt_tokens,output_tokens"


def lines(*rows: str, header: str = HEADER) -> list[str]:
    return [f"{header}\n", *(f"{row}\n" for row in rows)]


def test_a_file_becomes_a_trace() -> None:
    read_ = read("t.csv", lines("0.5,10,1", "", "0.5,20,2", "3,30,3"), most_tokens=100)
    assert read_ == Trace([0.5, 0.5, 3.0], [10, 20, 30], [1, 2, 3])
    assert read_.end == 3.0
    assert read_.computed_tokens() == [10, 20, 30]


def test_cached_prefixes_are_a_fourth_column() -> None:
    header = f"{HEADER},cached_prefix_tokens"
    read_ = read("t.csv", lines("0,10,1,4", "1,10,1,10", header=header), most_tokens=100)
    assert read_.cached == [4, 10]
    assert read_.computed_tokens() == [6, 1]
    assert read_.without_cache().computed_tokens() == [10, 10]


@pytest.mark.parametrize(
    ("rows", "line", "word"),
    [
        (["0,10,1", "x,10,1"], 3, "12.5"),
        (["0,10,1", "nan,10,1"], 3, "seconds from the start"),
        (["inf,10,1"], 2, "seconds from the start"),
        (["-1,10,1"], 2, "seconds from the start"),
        (["5,10,1", "4,10,1"], 3, "sort by arrival_s"),
        (["1700000000,10,1"], 2, "count arrival_s from its start"),
        (["0,10,1", "21601,10,1"], 3, "missing data"),
        (["0,ten,1"], 2, "whole number"),
        (["0,1.5,1"], 2, "whole number"),
        (["0,0,1"], 2, "prompt_tokens is 0; the least is 1"),
        (["0,10,0"], 2, "output_tokens is 0; the least is 1"),
        (["0,10,-3"], 2, "the least is 1"),
        (["0,10"], 2, "2 values where the header has 3"),
        (["0,10,1,9"], 2, "4 values where the header has 3"),
        (["0,1000000,20"], 2, "do not fit"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(rows: list[str], line: int, word: str) -> None:
    with pytest.raises(TraceError) as caught:
        read("t.csv", lines(*rows), most_tokens=480_000)
    assert str(caught.value).startswith(f"t.csv, line {line}: ")
    assert word in str(caught.value)


def test_more_cached_tokens_than_the_prompt_has_are_refused() -> None:
    with pytest.raises(TraceError, match=r"line 2.*11, more than the prompt's 10"):
        read("t.csv", lines("0,10,1,11", header=f"{HEADER},cached_prefix_tokens"), most_tokens=100)


def test_a_wrong_header_an_empty_file_and_a_file_without_requests_are_refused() -> None:
    with pytest.raises(TraceError, match=r"line 1: the header is 'TIMESTAMP,a,b'; write 'arrival"):
        read("t.csv", lines("0,1,1", header="TIMESTAMP,a,b"), most_tokens=100)
    with pytest.raises(TraceError, match=r"t\.csv is empty: write the header"):
        read("t.csv", [], most_tokens=100)
    with pytest.raises(TraceError, match="no requests"):
        read("t.csv", lines(), most_tokens=100)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_no_text_makes_the_reader_raise_anything_else(rows: list[str]) -> None:
    with suppress(TraceError):
        read("t.csv", lines(*rows), most_tokens=100)


def test_copies_are_delayed_each_on_its_own_and_stay_in_order() -> None:
    one = trace([(float(n), 10 + n, 1 + n) for n in range(200)])
    one.cached = list(range(200))
    four = scaled(one, 4, seed=3)
    assert len(four) == 800
    assert four.arrival == sorted(four.arrival)
    delays = []
    for at, prompt, output, cached in zip(
        four.arrival, four.prompt, four.output, four.cached, strict=True
    ):
        assert (output, cached) == (prompt - 9, prompt - 10)
        delays.append(at - (prompt - 10))
    assert min(delays) >= 0
    assert 44 < max(delays) <= LARGEST_DELAY_S
    assert len(set(delays)) == 800
    assert scaled(one, 4, seed=3) == four != scaled(one, 4, seed=4)


def test_a_part_of_a_copy_is_a_share_of_the_requests() -> None:
    one = trace([(float(n), 1, 1) for n in range(2000)])
    assert len(scaled(one, 0.5, seed=0)) == pytest.approx(1000, abs=100)
    assert len(scaled(one, 2.5, seed=0)) == pytest.approx(5000, abs=100)
    assert scaled(one, 1, seed=0) is one
    with pytest.raises(TraceError, match="leaves no request"):
        scaled(trace([(0.0, 1, 1)]), 0.01, seed=0)
