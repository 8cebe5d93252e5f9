"""Routers for vLLM drive simulated engines, without Argosy's gateway."""

import httpx
import pytest

from tests.engine.processes import eventually, sim_engines

pytestmark = pytest.mark.slow

LEASES, USED = "argosy_kv_leases_active", "vllm:kv_cache_usage_perc"
ON = "--external-routers"


def ask(start: str) -> dict[str, object]:
    """A request whose prompt is in no prefix cache if `start` is new."""
    prompt = " ".join([start, *(f"word{index}" for index in range(300))])
    return {"model": "m", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}


def complete(engine, body, **headers) -> httpx.Response:
    url = f"http://127.0.0.1:{engine.api}/v1/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60, verify=False)


def text(answer) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def is_empty(*engines) -> bool:
    return all(engine.metric(LEASES) == 0 == engine.metric(USED) for engine in engines)


@pytest.fixture(scope="module")
def prefill():
    with sim_engines("prefill", options=(ON,)) as (started,):
        yield started


@pytest.fixture(scope="module")
def decode(prefill):
    with sim_engines("decode", options=(ON, "--kv-port", str(prefill.kv))) as (started,):
        yield started


def test_llm_ds_header_names_the_prefill_engine_by_its_api_port(prefill, decode):
    body = ask("header")
    answer = complete(decode, body, **{"x-prefiller-host-port": f"127.0.0.1:{prefill.api}"})
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    alone = complete(decode, body)
    assert "x-argosy-prefill-pod" not in alone.headers
    assert text(answer) == text(alone)
    eventually(lambda: is_empty(prefill, decode))


def test_the_gateways_header_counts_before_llm_ds(prefill, decode):
    sent = {
        "x-prefiller-host-port": f"127.0.0.9:{prefill.api}",
        "x-argosy-prefill": f"127.0.0.1:{prefill.kv}",
    }
    answer = complete(decode, ask("both"), **sent)
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    assert "x-argosy-failed-prefills" not in answer.headers


def test_a_prefill_engine_that_is_not_there_is_named_with_its_kv_port(prefill, decode):
    answer = complete(decode, ask("nobody"), **{"x-prefiller-host-port": "127.0.0.9:8000"})
    assert answer.headers["x-argosy-failed-prefills"] == f"127.0.0.9:{prefill.kv}=connect"
    assert len(text(answer).split()) == 6


def test_a_malformed_header_is_400_and_says_what_to_write(decode):
    answer = complete(decode, ask("bad"), **{"x-prefiller-host-port": "http://127.0.0.1:8000"})
    assert answer.status_code == 400
    assert "host:port" in answer.json()["error"]["message"]


def test_without_the_option_llm_ds_header_has_no_effect(prefill):
    with sim_engines("decode", options=("--kv-port", str(prefill.kv))) as (decode,):
        sent = {"x-prefiller-host-port": f"127.0.0.1:{prefill.api}"}
        answer = complete(decode, ask("off"), **sent)
        assert "x-argosy-prefill-pod" not in answer.headers
        assert "x-argosy-failed-prefills" not in answer.headers
        assert len(text(answer).split()) == 6
