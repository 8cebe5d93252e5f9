"""An unstreamed answer says when its first token could have left the engine."""

import time

import httpx
import pytest

from tests.engine.processes import sim_engines

pytestmark = pytest.mark.slow

ASK = {"model": "m", "prompt": "one two three", "max_tokens": 150}  # 3 s of decode steps
HEADER = "x-argosy-ttft-ms"


@pytest.fixture(scope="module")
def engines():
    with sim_engines("prefill", "decode", "colocated") as started:
        yield started


def ask(engine, headers=None, **more):
    began = time.monotonic()
    answer = httpx.post(
        f"http://127.0.0.1:{engine.api}/v1/completions",
        json={**ASK, **more}, headers=headers, timeout=60, verify=False,
    )  # fmt: skip
    return answer, 1000 * (time.monotonic() - began)


def assert_first_token_only(answer, took_ms):
    ttft_ms = float(answer.headers[HEADER])
    assert 18 < ttft_ms < took_ms - 1000  # 18 ms: the preset's prefill


def test_a_whole_answer_names_the_time_of_its_first_token_not_of_its_last(engines):
    assert_first_token_only(*ask(engines[2]))


@pytest.mark.slow
def test_the_first_token_of_a_pulled_prompt_counts_from_decodes_accept(engines):
    prefill, decode, _ = engines
    answer, took_ms = ask(decode, {"x-argosy-prefill": f"127.0.0.1:{prefill.kv}"})
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    assert_first_token_only(answer, took_ms)
