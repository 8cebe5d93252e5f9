"""A decode engine whose fleet has no prefill engine to offer answers by itself."""

import httpx
import pytest

from argosy_bench.ports import free_ports
from tests.engine.processes import sim_engines

pytestmark = pytest.mark.slow

ASK = {"model": "m", "prompt": "one two three", "max_tokens": 3}


@pytest.fixture(scope="module")
def decode():
    with sim_engines("decode") as (started,):
        yield started


@pytest.mark.parametrize("candidates", [None, "", "nobody"])
def test_a_prompt_without_a_prefill_engine_is_computed_by_decode(decode, candidates):
    if candidates == "nobody":
        candidates = f"127.0.0.1:{free_ports(1)[0]}"
    headers = {} if candidates is None else {"x-argosy-prefill": candidates}
    url = f"http://127.0.0.1:{decode.api}/v1/completions"
    answer = httpx.post(url, json=ASK, headers=headers, timeout=30, verify=False)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert answer.headers["x-argosy-decode-pod"] == decode.name
    assert "x-argosy-prefill-pod" not in answer.headers
    failed = answer.headers.get("x-argosy-failed-prefills")
    assert failed == (None if not candidates else f"{candidates}=connect")


@pytest.mark.parametrize("stream", [False, True])
def test_t38_an_engine_that_must_not_compute_prompts_answers_503_and_names_who_failed(stream):
    one, two = (f"127.0.0.1:{port}" for port in free_ports(2))
    with sim_engines("decode", options=("--kv-on-failure", "fail")) as (decode,):
        url = f"http://127.0.0.1:{decode.api}/v1/completions"
        headers = {"x-argosy-prefill": f"{one},{two}"}
        answer = httpx.post(
            url, json={**ASK, "stream": stream}, headers=headers, timeout=30, verify=False
        )
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "kv_transfer_failed"
    assert answer.headers["x-argosy-failed-prefills"] == f"{one}=connect,{two}=connect"
