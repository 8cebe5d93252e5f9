"""A decode engine that is told a TPOT limit computes some short prompts itself."""

import threading

import httpx
import pytest

from tests.engine.processes import eventually, sim_engines

pytestmark = pytest.mark.slow

HEADER = "x-argosy-tpot-ms"


@pytest.fixture(scope="module")
def pair():
    with sim_engines("prefill", "decode") as started:
        yield started


def ask(pair, prompt="one two three", tokens=1, **headers):
    prefill, decode = pair
    return httpx.post(
        f"http://127.0.0.1:{decode.api}/v1/completions",
        json={"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True},
        headers={"x-argosy-prefill": f"127.0.0.1:{prefill.kv}", **headers},
        timeout=60,
        verify=False,
    )


def test_one_short_prompt_of_32_is_tried_beside_a_stream_and_its_answer_is_the_same(pair):
    _, decode = pair
    told = {HEADER: "1000"}
    stream = threading.Thread(target=ask, args=(pair, "a stream", 600), kwargs=told)  # 12 s
    stream.start()
    eventually(lambda: decode.metric('argosy_step_decode_sequences_total{kind="decode"') > 3)
    answers = [ask(pair, tokens=2, **told) for _ in range(32)]
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {
        ask(pair, tokens=2).json()["choices"][0]["text"]
    }
    apart = ["x-argosy-prefill-pod" in answer.headers for answer in answers]
    assert apart.count(False) == 1
    assert decode.metric("argosy_handovers_saved_total") == 1
    stream.join()
