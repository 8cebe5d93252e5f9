"""What the scan finds in a stream, for any cut of its bytes."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.errors import RequestError
from argosy_gateway.wire.sse import StreamScan, Usage

USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def token(text: str, space: str = "") -> bytes:
    chunk = {"choices": [{"delta": {"content": text}}], "usage": None}
    separators = ("," + space, ":" + space)
    return event(json.dumps(chunk, ensure_ascii=False, separators=separators).encode())


@given(
    texts=st.lists(st.text(min_size=1) | st.just("\n: argosy 5\n"), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_ids_are_taken_out_of_any_cut_of_the_bytes(texts, cuts):
    tokens = [token(t) for t in texts]
    named = [b": argosy %d,7\n" % i + event for i, event in enumerate(tokens)]
    stream = b"".join(named) + b": argosy 2 end\n" + event(b"{}") + event(b"[DONE]")
    edges = sorted({0, *(min(c, len(stream)) for c in cuts), len(stream)})
    seen = []
    scan = StreamScan(hide_usage=False, on_ids=lambda ids, end: seen.append((ids, end)))
    passed = b"".join(scan.feed(stream[a:b]) for a, b in itertools.pairwise(edges))
    assert passed == b"".join(tokens) + event(b"{}") + event(b"[DONE]")
    assert seen == [*((b"%d,7" % i, False) for i in range(len(texts))), (b"2", True)]
    assert scan.done


@pytest.mark.parametrize(
    ("comment", "taken"),
    [
        (b": argosy 5,6\n", (b"5,6", False)),
        (b": argosy 5,6 end\n", (b"5,6", True)),
        (b": argosy  end\n", (b"", True)),
    ],
)
def test_the_comment_of_a_single_event_has_its_ids_and_whether_it_is_the_last(comment, taken):
    seen = []
    scan = StreamScan(hide_usage=False, on_ids=lambda ids, end: seen.append((ids, end)))
    assert scan.feed(comment + token("a end")) == token("a end")
    assert scan.feed(comment + event(b"{}") + token("b")) == event(b"{}") + token("b")
    assert seen == [taken, taken]


def test_ids_of_an_event_that_is_not_whole_are_not_taken():
    seen = []
    scan = StreamScan(hide_usage=False, on_ids=lambda ids, _: seen.append(ids))
    assert scan.feed(b": argosy 5\n" + token("a") + b": argosy 6\ndata: {") == token("a")
    assert seen == [b"5"]
    scan.resume()
    assert scan.feed(b": argosy 6\n" + token("b")) == token("b")
    assert seen == [b"5", b"6"]


@given(
    place=st.integers(0, 3),
    said=st.sampled_from([b"whole", b"failed ip:1=broken", b"failed "]),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_what_came_of_a_handover_is_taken_out_of_any_cut_of_the_bytes(place, said, cuts):
    tokens = [token(text) for text in ("a", "\n: argosy-handover whole\n", "c", "d")]
    events = [b": argosy %d\n" % i + event for i, event in enumerate(tokens)]
    events[place] = b": argosy-handover " + said + b"\n" + events[place]
    stream = b"".join(events) + event(b"[DONE]")
    edges = sorted({0, *(min(c, len(stream)) for c in cuts), len(stream)})
    ids, told = [], []
    scan = StreamScan(hide_usage=False, on_ids=lambda found, _: ids.append(found))
    scan.on_handover = told.append
    passed = b"".join(scan.feed(stream[a:b]) for a, b in itertools.pairwise(edges))
    assert passed == b"".join(tokens) + event(b"[DONE]")
    assert told == [said]
    assert ids == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("before", [b"", token("a")])
def test_an_error_event_is_held_with_all_that_follows(before):
    error = event(b'{"error": {"message": "boom"}}')
    scan = StreamScan(hide_usage=False, holds_error=True)
    assert scan.feed(before + error + event(b"[DONE]")) == before
    assert scan.held_error == error + event(b"[DONE]")
    assert (scan.error, scan.done) == (True, False)
    scan.resume()
    assert (scan.error, scan.held_error) == (False, b"")


@given(
    texts=st.lists(st.text(min_size=1), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 500), max_size=8),
    hide=st.booleans(),
    space=st.sampled_from(["", " "]),
)
def test_any_cut_of_the_bytes_passes_on_the_same_events(texts, cuts, hide, space):
    tokens = b"".join(token(t, space) for t in texts)
    usage, done = event(USAGE), event(b"[DONE]")
    stream = tokens + usage + done
    edges = sorted({0, *(min(c, len(stream)) for c in cuts), len(stream)})
    scan = StreamScan(hide_usage=hide)
    passed = b"".join(scan.feed(stream[a:b]) for a, b in itertools.pairwise(edges))
    assert passed == tokens + (b"" if hide else usage) + done
    assert scan.content_events == len(texts)
    assert scan.usage == Usage(3, 2)
    assert scan.done
    assert not scan.error


@pytest.mark.parametrize(
    "text",
    ['"usage": {"prompt_tokens": 1}', "data: [DONE]", "\n\ndata: [DONE]\n\n", 'data: {"error":'],
)
def test_a_models_text_cannot_pretend_to_be_the_protocol(text):
    scan = StreamScan(hide_usage=True)
    assert scan.feed(token(text)) == token(text)
    assert (scan.usage, scan.done, scan.error) == (None, False, False)


def test_an_event_without_an_end_is_refused_before_it_fills_memory():
    scan = StreamScan(hide_usage=True)
    for _ in range(4):
        assert scan.feed(b"x" * (1 << 20)) == b""
    with pytest.raises(RequestError) as refused:
        scan.feed(b"x")
    assert (refused.value.status, refused.value.code) == (400, "answer_too_long")
