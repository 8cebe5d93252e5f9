"""The demo's load client in front of servers that are broken in one way each.

The server is real and speaks HTTP over loopback. What a whole answer looks like is written here by
hand, from the streaming API that vLLM and OpenAI document: events with `choices`, one event with
`usage` and no choices, then `[DONE]`.
"""

import contextlib
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from local.demo.traffic.client import ask
from local.demo.traffic.plan import Due
from local.demo.traffic.score import Limits, met
from tests.local.answering import Reply, answering

ASKED = Due(at_s=0.0, phase=0, prompt_tokens=5, output_tokens=3)
GENEROUS = Limits(ttft_s=60.0, tpot_s=60.0)


def text(piece: str, finish: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "text": piece, "finish_reason": finish}]})


def usage(tokens: int) -> str:
    return json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})


ERROR = json.dumps({"error": {"message": "the engine failed", "type": "server_error"}})
THREE = (text("one"), text(" two"), text(" three"), text("", "length"))
WHOLE = (*THREE, usage(3), "[DONE]")


@pytest.fixture
def serve() -> Iterator:
    """Start a server that gives every POST the same status and events; returns its address."""
    with contextlib.ExitStack() as servers:

        def start(status: int, events: tuple[str, ...], *, cut: bool = False) -> str:
            body = "".join(f"data: {event}\n\n" for event in events).encode()
            pods = {"x-argosy-prefill-pod": "p-1", "x-argosy-decode-pod": "d-1"}
            reply = Reply(status, body, pods, missing=100 if cut else 0)
            return servers.enter_context(answering(reply))

        yield start


async def seen(url: str, begin: float = 0.0):
    async with httpx.AsyncClient(timeout=10, trust_env=False, verify=False) as web:
        return await ask(web, url, "m", 1, ASKED, begin)


BROKEN = [
    ("a_429_alone_is_shed", 429, (ERROR,), "shed", "status 429"),
    ("a_503_after_acceptance_is_lost", 503, (ERROR,), "lost", "status 503"),
    ("a_500_is_lost", 500, (ERROR,), "lost", "status 500"),
    ("a_404_is_lost", 404, (ERROR,), "lost", "status 404"),
    ("an_error_event_is_lost", 200, (text("one"), ERROR), "lost", "error event"),
    ("an_error_event_before_done_is_lost", 200, (ERROR, *WHOLE), "lost", "error event"),
    ("two_tokens_of_three_are_lost", 200, (*THREE, usage(2), "[DONE]"), "lost", "2 tokens"),
    ("four_tokens_of_three_are_lost", 200, (*THREE, usage(4), "[DONE]"), "lost", "4 tokens"),
    ("an_answer_without_usage_is_lost", 200, (*THREE, "[DONE]"), "lost", "no usage"),
    ("an_answer_without_done_is_lost", 200, (*THREE, usage(3)), "lost", "[DONE]"),
    ("nothing_is_lost", 200, (), "lost", "[DONE]"),
    ("done_alone_is_lost", 200, ("[DONE]",), "lost", "no usage"),
    ("no_text_is_lost", 200, (text("", "length"), usage(3), "[DONE]"), "lost", "no text"),
    (
        "a_stop_before_the_length_is_lost",
        200,
        (text("one"), text("", "stop"), usage(3), "[DONE]"),
        "lost",
        "'stop'",
    ),
    ("no_reason_to_finish_is_lost", 200, (text("one"), usage(3), "[DONE]"), "lost", "None"),
    ("what_is_not_json_is_lost", 200, ("{", *WHOLE), "lost", "not a completion event"),
    ("an_event_of_another_api_is_lost", 200, ('{"delta": 1}', *WHOLE), "lost", "not a completion"),
]


@pytest.mark.parametrize(
    ("status", "events", "outcome", "problem"),
    [row[1:] for row in BROKEN],
    ids=[row[0] for row in BROKEN],
)
async def test_what_a_broken_product_answers_is_a_failure_that_says_why(
    serve, status, events, outcome, problem
):
    record = await seen(serve(status, events))
    assert record.outcome == outcome
    assert problem in record.problem
    assert (record.ttft_s, record.tpot_s) == (None, None)
    assert not met(record, GENEROUS)


async def test_a_whole_answer_is_ok_and_says_which_pods_gave_it(serve):
    record = await seen(serve(200, WHOLE))
    assert (record.outcome, record.problem, record.tokens) == ("ok", "", 3)
    assert (record.prefill_pod, record.decode_pod) == ("p-1", "d-1")
    assert record.ttft_s is not None
    assert record.tpot_s is not None
    assert met(record, GENEROUS)


async def test_an_answer_that_is_cut_off_is_lost(serve):
    record = await seen(serve(200, THREE, cut=True))
    assert record.outcome == "lost"
    assert "RemoteProtocolError" in record.problem


async def test_a_text_that_comes_in_one_piece_has_no_tpot_and_misses(serve):
    record = await seen(serve(200, (text("one two three", "length"), usage(3), "[DONE]")))
    assert (record.outcome, record.tpot_s) == ("ok", None)
    assert not met(record, GENEROUS)


async def test_only_a_request_without_a_connection_is_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        record = await seen(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert record.outcome == "refused"
    assert not met(record, GENEROUS)
