"""Routers for vLLM drive simulated engines, without Argosy's gateway."""

import json

import httpx
import pytest

from tests.engine.processes import eventually, sim_engines

pytestmark = pytest.mark.slow

LEASES, USED = "argosy_kv_leases_active", "vllm:kv_cache_usage_perc"
ON = "--external-routers"


def ask(start: str) -> dict[str, object]:
    """A request whose prompt is in no prefix cache if `start` is new."""
    prompt = " ".join(f"{start}{index}" for index in range(300))
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


# ----------------------------------------------------------------- vLLM's kv_transfer_params

ASK_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def chat(engine, body) -> httpx.Response:
    url = f"http://127.0.0.1:{engine.api}/v1/chat/completions"
    return httpx.post(url, json=body, timeout=60, verify=False)


def prefilled(prefill, body, send=complete) -> dict[str, object]:
    """What vLLM's example proxy asks a prefill engine, and takes from its answer."""
    first = {**body, "kv_transfer_params": ASK_PREFILL, "stream": False, "max_tokens": 1}
    if "max_completion_tokens" in first:
        first["max_completion_tokens"] = 1
    first.pop("stream_options", None)
    answer = send(prefill, first)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["usage"]["completion_tokens"] == 1
    return said["kv_transfer_params"]


@pytest.mark.parametrize("send", [complete, chat])
def test_vllms_example_proxy_gets_the_text_of_an_engine_alone(prefill, decode, send):
    body = ask(f"proxy {send.__name__}")
    if send is chat:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    params = prefilled(prefill, body, send)
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert (params["remote_host"], params["remote_port"]) == ("127.0.0.1", prefill.kv)
    assert params["remote_block_ids"] == list(range(len(params["remote_block_ids"])))
    assert prefill.metric(LEASES) == 1
    answer = send(decode, {**body, "kv_transfer_params": params})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    assert "x-argosy-failed-prefills" not in answer.headers
    alone = send(decode, body)
    assert "x-argosy-prefill-pod" not in alone.headers
    assert answer.json()["choices"] == alone.json()["choices"]
    assert answer.json()["usage"]["completion_tokens"] == 6
    eventually(lambda: is_empty(prefill, decode))


def test_a_stream_of_llm_ds_sidecar_goes_on_after_prefills_token(prefill, decode):
    """The sidecar leaves the header and larger `min_tokens` as they are."""
    body = {**ask("sidecar"), "min_tokens": 4}
    params = prefilled(prefill, body)
    sent = {**body, "stream": True, "kv_transfer_params": params}
    named = {"x-prefiller-host-port": f"127.0.0.9:{prefill.api}"}
    answer = complete(decode, sent, **named)
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    assert "x-argosy-failed-prefills" not in answer.headers
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    texts = [json.loads(event)["choices"][0]["text"] for event in events]
    assert "".join(texts) == text(complete(decode, body))
    eventually(lambda: is_empty(prefill, decode))


def test_a_prompt_is_handed_over_once_and_the_next_one_computes_it_itself(prefill, decode):
    body = ask("twice")
    params = prefilled(prefill, body)
    sent = {**body, "kv_transfer_params": params}
    once = complete(decode, sent)
    with sim_engines("decode", options=(ON,)) as (other,):
        again = complete(other, sent)
        assert again.headers["x-argosy-failed-prefills"] == f"127.0.0.1:{prefill.kv}=lease_gone"
        assert text(again) == text(once)
        eventually(lambda: is_empty(prefill, other))


@pytest.mark.parametrize(("on_failure", "status"), [("recompute", 200), ("fail", 503)])
def test_after_the_lease_decode_does_as_on_failure_says(on_failure, status):
    options = (ON, "--lease-s", "0.2", "--kv-on-failure", on_failure)
    with sim_engines("prefill", "decode", options=options) as (prefill, decode):
        body = ask("late")
        params = prefilled(prefill, body)
        eventually(lambda: is_empty(prefill))
        answer = complete(decode, {**body, "kv_transfer_params": params})
        assert answer.status_code == status
        assert answer.headers["x-argosy-failed-prefills"] == f"127.0.0.1:{prefill.kv}=lease_gone"
        eventually(lambda: is_empty(decode))


def test_decode_takes_a_claimed_prompt_that_it_has_in_its_cache_so_that_the_lease_ends(
    prefill, decode
):
    body = ask("cached")
    alone = text(complete(decode, body))
    answer = complete(decode, {**body, "kv_transfer_params": prefilled(prefill, body)})
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
    assert text(answer) == alone
    eventually(lambda: is_empty(prefill, decode))


def test_each_engine_says_which_role_it_has(prefill, decode):
    body = ask("roles")
    answer = complete(prefill, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "prefill_only")
    answer = complete(decode, {**body, "kv_transfer_params": ASK_PREFILL})
    assert answer.status_code == 400
    assert "send it to a prefill engine" in answer.json()["error"]["message"]


def test_a_client_of_argosys_gateway_may_not_name_kv_peers(prefill, decode):
    """The gateway passes bodies on, and its attempt's number shows that it did."""
    body = ask("client")
    params = prefilled(prefill, body)
    sent = {**body, "kv_transfer_params": params}
    answer = complete(decode, sent, **{"x-argosy-attempt": "1"})
    assert answer.status_code == 400
    assert "leave it out" in answer.json()["error"]["message"]
    assert prefill.metric(LEASES) == 1
    answer = complete(decode, sent)
    assert answer.headers["x-argosy-prefill-pod"] == prefill.name
    eventually(lambda: is_empty(prefill, decode))


def test_without_the_option_kv_transfer_params_are_refused():
    with sim_engines("prefill", "decode") as engines:
        for engine in engines:
            answer = complete(engine, {**ask("off"), "kv_transfer_params": ASK_PREFILL})
            assert answer.status_code == 400
            eventually(lambda engine=engine: is_empty(engine))
