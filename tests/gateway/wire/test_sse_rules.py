"""What each event of a completion stream means, one row per rule of the OpenAI API and of SSE."""

import pytest

from argosy_gateway.wire.sse import StreamScan, Usage, read_usage


def fed(*data: bytes, hide_usage: bool = True) -> tuple[StreamScan, bytes]:
    scan = StreamScan(hide_usage=hide_usage)
    return scan, b"".join(scan.feed(part) for part in data)


def chat(delta: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":%s,"finish_reason":null}]}\n\n' % delta.encode()


@pytest.mark.parametrize(
    ("event", "events"),
    [
        pytest.param(chat('{"content":"a"}'), 1, id="text of a chat"),
        pytest.param(chat('{"content": "a"}'), 1, id="with a space after the colon"),
        pytest.param(chat(r'{"content":"\""}'), 1, id="text that begins with a quote"),
        pytest.param(chat('{"content":" "}'), 1, id="white space is text"),
        pytest.param(chat('{"reasoning_content":"a"}'), 1, id="vLLM's reasoning until 0.11"),
        pytest.param(chat('{"reasoning":"a"}'), 1, id="vLLM's reasoning since then"),
        pytest.param(chat('{"refusal":"a"}'), 1, id="a refusal"),
        pytest.param(
            chat('{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}'), 1, id="a tool's call"
        ),
        pytest.param(b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', 1, id="a completion"),
        pytest.param(chat('{"content":"a"}') + chat('{"content":"b"}'), 2, id="two events"),
        pytest.param(chat('{"role":"assistant","content":""}'), 0, id="the role alone"),
        pytest.param(chat('{"content":null}'), 0, id="null"),
        pytest.param(chat("{}"), 0, id="a finish reason alone"),
        pytest.param(chat(r'{"name":"\"content\":\"a\""}'), 0, id="the key inside a string"),
        pytest.param(b": ping\n\n", 0, id="a comment"),
        pytest.param(b"data: [DONE]\n\n", 0, id="the end"),
    ],
)
def test_an_event_counts_if_it_has_text_of_the_model(event, events):
    scan, passed = fed(event)
    assert (scan.content_events, scan.had_content) == (events, events > 0)
    assert passed == event


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b'data: {"error":{"message":"out of memory"}}\n\n', True),
        (b'data:{"error":{}}\n\n', True),
        (b'data: { "error" : {}}\n\n', True),
        (b'event: error\ndata: {"error":{}}\n\n', True),
        (b': ping\r\n\r\ndata: {"error":{}}\r\n\r\n', True),
        (chat(r'{"content":"data: {\"error\":1}"}'), False),
        (b'data: {"choices":[],"error":null}\n\n', False),
        (b'data: {"errors":1}\n\n', False),
    ],
)
def test_an_event_that_is_an_error_is_noticed_and_passed_on(event, error):
    scan, passed = fed(event)
    assert scan.error is error
    assert passed == event


COUNTS = b'"usage":{"prompt_tokens":3,"completion_tokens":2}'
ONLY_USAGE = b'data: {"choices":[],%s}\n\n' % COUNTS


@pytest.mark.parametrize(
    ("event", "hidden"),
    [
        pytest.param(ONLY_USAGE, True, id="as vLLM sends it"),
        pytest.param(ONLY_USAGE.replace(b"\n", b"\r\n"), True, id="with CRLF"),
        pytest.param(ONLY_USAGE.replace(b"data: ", b"data:"), True, id="without a space"),
        pytest.param(ONLY_USAGE.replace(b":", b": ").replace(b",", b", "), True, id="with spaces"),
        pytest.param(ONLY_USAGE.replace(b'ge":', b'ge" :'), True, id="a space before the colon"),
        pytest.param(b"id: 7\n" + ONLY_USAGE, True, id="behind another field"),
        pytest.param(ONLY_USAGE.replace(b"{", b'{"id":"data:7",', 1), True, id="with an id"),
        pytest.param(b'data: {"choices":[{"text":"a"}],%s}\n\n' % COUNTS, False, id="beside text"),
        pytest.param(b"data: {%s}\n\n" % COUNTS, False, id="without choices"),
    ],
)
def test_usage_is_read_and_its_chunk_hidden_from_a_client_that_did_not_ask(event, hidden):
    around = chat('{"content":"a"}'), b"data: [DONE]\n\n"
    scan, passed = fed(around[0] + event + around[1])
    assert scan.usage == Usage(prompt_tokens=3, completion_tokens=2)
    assert passed == around[0] + (b"" if hidden else event) + around[1]
    assert scan.done
    asked, passed = fed(event, hide_usage=False)
    assert (asked.usage, passed) == (scan.usage, event)


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}, Usage(3, 2)),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, Usage(0, 0)),
        ({"usage": {"prompt_tokens": 1 << 24, "completion_tokens": 1}}, Usage(1 << 24, 1)),
        ({"usage": {"prompt_tokens": (1 << 24) + 1, "completion_tokens": 1}}, None),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 2}}, None),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2.0}}, None),
        ({"usage": {"prompt_tokens": True, "completion_tokens": 2}}, None),
        ({"usage": {"completion_tokens": 2}}, None),
        ({"usage": [3, 2]}, None),
        ({"choices": []}, None),
        ([{"usage": {"prompt_tokens": 3, "completion_tokens": 2}}], None),
        ("usage", None),
        (None, None),
    ],
)
def test_usage_of_an_answer_is_two_counts_or_nothing(answer, usage):
    assert read_usage(answer) == usage
