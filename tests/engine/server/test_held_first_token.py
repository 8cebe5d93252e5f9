"""A decode engine that may hold the first token says how long it did, and loses none."""

import httpx
import pytest

from tests.engine.processes import sim_engines

pytestmark = pytest.mark.slow

HEADER, HELD = "x-argosy-first-token-ms", "x-argosy-first-token-held-ms"


@pytest.fixture(scope="module")
def pair():
    with sim_engines("prefill", "decode") as started:
        yield started


def ask(pair, *, stream=False, **headers):
    prefill, decode = pair
    return httpx.post(
        f"http://127.0.0.1:{decode.api}/v1/completions",
        json={"model": "m", "prompt": "one two three", "max_tokens": 4, "stream": stream},
        headers={"x-argosy-prefill": f"127.0.0.1:{prefill.kv}", **headers},
        timeout=60,
        verify=False,
    )


def held_s(decode, suffix):
    return decode.metric(f"argosy_first_token_held_seconds_{suffix}")


def test_the_answer_is_the_same_and_tells_how_long_its_first_token_was_held(pair):
    _, decode = pair
    at_once, streamed = ask(pair), ask(pair, stream=True)
    assert HELD not in at_once.headers
    assert HELD not in streamed.headers
    assert held_s(decode, "count") == 0
    held = ask(pair, **{HEADER: "60000"})
    held_ms = float(held.headers[HELD])
    assert 0 < held_ms < float(held.headers["x-argosy-ttft-ms"])
    assert held.json()["choices"] == at_once.json()["choices"]
    assert held_s(decode, "count") == 1
    assert held_s(decode, "sum") == pytest.approx(held_ms / 1000, abs=1e-4)
    stream = ask(pair, stream=True, **{HEADER: "60000"})
    assert float(stream.headers[HELD]) > 0
    events = [line for line in stream.text.splitlines() if line.startswith("data: ")]
    assert len(events) == len([x for x in streamed.text.splitlines() if x.startswith("data: ")])


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "1e3", ""])
def test_another_word_than_a_number_of_milliseconds_is_refused(pair, value):
    answer = ask(pair, **{HEADER: value})
    assert answer.status_code == 400
    message = "x-argosy-first-token-ms must be a number of milliseconds, like 180"
    assert answer.json()["error"]["message"] == message
