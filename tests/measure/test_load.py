"""Arrivals and lengths that are drawn, and the files that they are read from."""

import itertools
from pathlib import Path
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.sim.flags import UsageError
from argosy_law.sim.traces import TraceError
from argosy_measure.load import Length, Shape, draw_open, read_prompts, read_trace


@given(st.floats(0.1, 100), st.sampled_from([0.25, 1.0, 4.0]), st.integers(0, 99))
def test_open_arrivals_have_the_rate_and_the_burstiness_that_was_asked_for(rate, shape, seed):
    count = 4000
    short = Shape(Length(1), Length(1), seed=seed)
    drawn = itertools.islice(draw_open(short, rate, shape, "a"), count)
    times = [0.0, *(request.at_s for request in drawn)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) >= 0
    # Five standard errors; the second of a heavy tail.
    assert mean(gaps) * rate == pytest.approx(1, abs=5 * (1 / shape / count) ** 0.5)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(shape**-0.5, rel=0.35)


@given(st.integers(10, 2000), st.floats(0, 1.5), st.integers(0, 99))
def test_lengths_have_the_mean_that_was_asked_for(tokens, share, seed):
    shape = Shape(Length(1), Length(tokens, share * tokens), seed=seed)
    drawn = [one.tokens for one in itertools.islice(shape.draw("a"), 4000)]
    assert min(drawn) >= 1
    assert mean(drawn) == pytest.approx(tokens, rel=0.05 + 5 * share / 4000**0.5)
    assert share or set(drawn) == {tokens}


def test_equal_seeds_draw_equal_requests_and_no_two_prompts_are_equal():
    shape = Shape(seed=3)
    one, other = (list(itertools.islice(shape.draw("a"), 50)) for _ in range(2))
    assert one == other
    assert len({request.prompt for request in one}) == 50
    assert one != list(itertools.islice(shape.draw("b"), 50))


@pytest.mark.parametrize("text", ["", "0", "-1", "ten", "128:", "128:-4", "128:inf", "1.5"])
def test_a_length_that_is_none_is_refused(text):
    if text == "128:":
        assert Length.parse(text) == Length(128)
        return
    with pytest.raises(UsageError, match="write a number of tokens"):
        Length.parse(text)


def test_a_trace_gives_times_and_lengths(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0.5,3,2\n1.5,4,1\n")
    first, second = read_trace(path, 0)
    assert (first.at_s, len(first.prompt), first.tokens) == (0.5, 3, 2)
    assert (second.at_s, len(second.prompt), second.tokens) == (1.5, 4, 1)


@pytest.mark.parametrize("rows", ["", "arrival_s,prompt_tokens,output_tokens\n"])
def test_a_trace_without_requests_is_refused(tmp_path: Path, rows):
    path = tmp_path / "trace.csv"
    path.write_text(rows)
    with pytest.raises(TraceError):
        read_trace(path, 0)


def test_prompts_of_a_file_are_used_in_turn_and_have_the_length_drawn_unless_they_say_one():
    prompts = read_prompts("p", ['{"prompt": "a", "tokens": 7}\n', "\n", '{"prompt": "b"}\n'])
    drawn = list(itertools.islice(Shape(answer=Length(5), prompts=prompts).draw("a"), 3))
    assert [(one.prompt, one.tokens) for one in drawn] == [("a", 7), ("b", 5), ("a", 7)]


@pytest.mark.parametrize("line", ["hello", "[]", "{}", '{"prompt": 3}', '{"prompt": ""}', ""])
def test_a_line_that_is_no_prompt_is_refused(line):
    with pytest.raises(UsageError, match='"prompt"'):
        read_prompts("p", [line])
