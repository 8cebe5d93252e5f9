"""A decode engine whose fleet has no prefill engine to offer answers by itself."""

import httpx
import pytest

from tests.engine.processes import free_ports, sim_engines

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
