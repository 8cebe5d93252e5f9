"""Times of a streamed answer, on a clock that the test sets."""

import json

from local.demo.traffic.stream import Stream


def event(text: str, finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]})


def read(asked: int, *lines: tuple[float, str]) -> Stream:
    stream = Stream(asked)
    for at_s, line in lines:
        stream.line(line, at_s)
    return stream


USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 4}}'


def test_tpot_is_the_mean_gap_between_tokens_from_the_first_text_to_the_last():
    # 4 tokens have 3 gaps; the first text comes at 10 s, the last at 13 s.
    stream = read(
        4,
        (10.0, event("a")),
        (11.5, event("b")),
        (12.0, ""),
        (13.0, event("cd")),
        (19.0, event("", "length")),
        (20.0, USAGE),
        (21.0, "data: [DONE]"),
    )
    assert stream.problem() == ""
    assert stream.first_s == 10.0
    assert stream.tpot_s() == 1.0


def test_an_event_without_text_is_no_first_token():
    stream = read(4, (1.0, event("")), (9.0, event("a")), (12.0, event("b")), (12.0, USAGE))
    assert stream.first_s == 9.0
    assert stream.tpot_s() == 1.0


def test_a_first_token_at_second_zero_is_a_first_token():
    stream = read(4, (0.0, event("a")), (3.0, event("b")), (3.0, USAGE))
    assert stream.first_s == 0.0
    assert stream.tpot_s() == 1.0
