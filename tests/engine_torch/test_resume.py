"""A stream of real weights that is cut goes on elsewhere with the same tokens."""

import json
import urllib.request
from itertools import count

import pytest

from local.weights.tiny import write_tiny
from tests.engine.server.spelling import Event, events_of
from tests.engine_torch.engines import Engine, engine

pytestmark = pytest.mark.torch
TOKENS = 48
WAYS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "seed": 7},
    "filtered": {"temperature": 0.8, "seed": 8, "top_p": 0.9, "top_k": 40},
    "penalised": {"temperature": 0, "repetition_penalty": 1.3},
    "sampled and penalised": {
        "temperature": 0.9,
        "seed": 9,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "min_tokens": 30,
    },
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """(prefill, decode, colocated) over one tiny model."""
    folder = tmp_path_factory.mktemp("resume")
    model = write_tiny(folder / "tiny")
    with (
        engine(model, "prefill", folder / "p.log") as prefill,
        engine(model, "decode", folder / "d.log") as decode,
        engine(model, "colocated", folder / "c.log") as colocated,
    ):
        yield prefill, decode, colocated


SENT = 'argosy_kv_transfer_seconds_count{side="send"}'
RECEIVED = 'argosy_kv_transfer_seconds_count{side="receive"}'


@pytest.fixture(scope="module")
def another(fleet, tmp_path_factory):
    """A second decode engine."""
    folder = tmp_path_factory.mktemp("another")
    with engine(write_tiny(folder / "tiny"), "decode", folder / "d.log") as started:
        yield started


def stream(to: Engine, body: dict, prefill: Engine | None = None, **headers: str) -> list[Event]:
    body = {"model": "m", "prompt": "once upon a time", "max_tokens": TOKENS, **body}
    named = {"content-type": "application/json", "x-argosy-token-ids": "1", **headers}
    if prefill is not None:
        named["x-argosy-prefill"] = f"127.0.0.1:{prefill.kv}"
    options = {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    data = json.dumps({**body, **options}).encode()
    url = f"http://127.0.0.1:{to.api}/v1/completions"
    with urllib.request.urlopen(urllib.request.Request(url, data, named), timeout=100) as answer:
        return events_of(answer.read().decode())


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def ids_of(events: list[Event]) -> list[int]:
    return [i for event in events for i in event.ids or ()]


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_stream_goes_on_with_the_same_tokens_apart_and_together(fleet, way):
    prefill, decode, colocated = fleet
    whole = stream(colocated, WAYS[way])
    assert len(ids_of(whole)) == TOKENS
    for cut in (1, len(whole) // 2, len(whole) - 4):
        have = whole[:cut]
        sent = {"token_ids": ids_of(have), "created": have[0].chunk["created"]}
        body = {**WAYS[way], "argosy_resume": sent}
        for head, peer in ((colocated, None), (decode, prefill)):
            rest = stream(head, body, peer, **{"x-argosy-resume": "1"})
            assert text_of(have) + text_of(rest) == text_of(whole)
            assert ids_of(have) + ids_of(rest) == ids_of(whole)
            assert rest[-2].chunk["usage"]["completion_tokens"] == TOKENS


LONG = 600
NUMBERS = count()


def left_after(engine: Engine, body: dict, events: int) -> list[Event]:
    """The first events of a stream that leaves the engine, which keeps its KV."""
    body = {"model": "m", "prompt": "once upon a time", "max_tokens": LONG, **body}
    named = {"content-type": "application/json", "x-request-id": f"leaves-{next(NUMBERS)}"}
    data = json.dumps({**body, "stream": True, "ignore_eos": True}).encode()
    url = f"http://127.0.0.1:{engine.api}"
    ask = urllib.request.Request(
        f"{url}/v1/completions", data, {**named, "x-argosy-token-ids": "1"}
    )
    with urllib.request.urlopen(ask, timeout=100) as answer:
        lines = b""
        while lines.count(b"data: ") < events or not lines.endswith(b"\n\n"):
            lines += answer.readline()
        keep = urllib.request.Request(f"{url}/argosy/keep", b"{}", named)
        urllib.request.urlopen(keep, timeout=10).close()
    return events_of(lines.decode())


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_goes_on_with_the_kv_that_it_left_and_has_the_same_tokens(fleet, another, way):
    _, leaving, colocated = fleet
    body = {**WAYS[way], "max_tokens": LONG}
    whole = stream(colocated, body)
    have = left_after(leaving, WAYS[way], 25)
    sent = {"token_ids": ids_of(have), "created": have[0].chunk["created"]}
    before = leaving.metric(SENT), another.metric(RECEIVED)
    kept_at = {"x-argosy-resume": "1", "x-argosy-kept-at": f"127.0.0.1:{leaving.kv}/"}
    rest = stream(another, {**body, "argosy_resume": sent}, **kept_at)
    assert ids_of(have) + ids_of(rest) == ids_of(whole)
    assert text_of(have) + text_of(rest) == text_of(whole)
    assert leaving.metric(SENT) == before[0] + 1
    assert another.metric(RECEIVED) == before[1] + 1
