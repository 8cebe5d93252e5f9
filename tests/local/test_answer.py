"""The demo's comparison accepts texts only with the pods that gave them."""

import json

import pytest

from local.demo import answer
from local.demo.answer import Answer, check_apart, check_together, greedy
from local.demo.errors import DemoError
from tests.local.answering import Reply, answering

APART = {"prefill": frozenset({"p-1", "p-2"}), "decode": frozenset({"d-1"})}
TOGETHER = {"colocated": frozenset({"c-1"})}


def apart(text: str, prefill: str | None = "p-1", decode: str | None = "d-1") -> Answer:
    return Answer(text, prefill, decode, None)


def together(text: str, pod: str | None = "c-1", prefill: str | None = None) -> Answer:
    return Answer(text, prefill, None, pod)


def test_three_texts_that_name_a_prefill_and_a_decode_pod_of_the_fleet_are_compared():
    check_apart([apart("a"), apart("b", "p-2"), apart("c")], APART)
    check_together([together("a"), together("b"), together("c")], TOGETHER)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "third"])
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (apart("x", None), "no pod as its prefill pod"),
        (apart("x", ""), "no pod as its prefill pod"),
        (apart("x", "d-1"), "d-1 as its prefill pod"),
        (apart("x", "c-1"), "c-1 as its prefill pod"),
        (apart("x", "p-1", None), "no pod as its decode pod"),
        (apart("x", "p-1", "p-1"), "p-1 as its decode pod"),
        (apart(""), "no text"),
        (apart("b"), "the same"),
    ],
    ids=[
        "no_prefill_pod",
        "an_empty_prefill_pod",
        "a_decode_pod_as_prefill",
        "another_fleets_pod",
        "no_decode_pod",
        "a_prefill_pod_as_decode",
        "no_text",
        "the_text_of_another_prompt",
    ],
)
def test_each_of_the_three_texts_must_name_its_prefill_pod(broken, said, place):
    answers = [apart("b"), apart("c")]
    answers.insert(place, broken)
    with pytest.raises(DemoError, match=said):
        check_apart(answers, APART)


def body(tokens: int | None) -> bytes:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return json.dumps({"choices": [{"text": "some text"}], **usage}).encode()


def test_a_compared_text_carries_the_pods_of_its_own_answer():
    reply = Reply(body=body(64))
    with answering(reply) as url:
        reply.headers = {"x-argosy-prefill-pod": "p-1", "x-argosy-decode-pod": "d-1"}
        assert greedy(url, "m", "why") == Answer("some text", "p-1", "d-1", None)
        reply.headers = {"x-argosy-pod": "c-1"}
        assert greedy(url, "m", "why") == Answer("some text", None, None, "c-1")


class Listing:
    """Stands in for the API server: one list of pods."""

    def __init__(self, *pods: dict) -> None:
        self.pods = list(pods)

    def get(self, path: str, **query: str) -> dict:
        return {"items": self.pods}


def engine(ready: str) -> dict:
    since = "2026-01-01T00:00:12Z"
    return {
        "metadata": {"name": "e-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
        },
    }


@pytest.mark.parametrize("listed", [(), (engine("True"), engine("False"))], ids=["none", "one"])
def test_a_fleet_that_says_ready_while_an_engine_is_not_stops_the_demo(listed):
    with pytest.raises(DemoError, match="says Ready"):
        answer.slowest_start_s(Listing(*listed), "f")
