"""The gateway in front of real engine processes with the timing model, prefill and decode apart."""

import asyncio
import json
import signal
from dataclasses import replace

import httpx
import pytest

from argosy_bench.ports import free_ports
from argosy_gateway.config import Slo
from tests.engine.processes import eventually, sim_engines
from tests.gateway.engines import endpoint_of, front
from tests.support.fault_proxy import Fault, fault_proxy

pytestmark = pytest.mark.slow

ASK = {"model": "m", "prompt": "one two three", "max_tokens": 5}


@pytest.fixture(scope="module")
def engines():
    with sim_engines("prefill", "prefill", "decode", "colocated") as started:
        yield started


def client(f) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f.url, timeout=60, verify=False)


def events(response: httpx.Response) -> list[str]:
    return [x.removeprefix("data: ") for x in response.text.split("\n\n") if x]


async def test_a_prompt_goes_through_a_prefill_and_a_decode_engine(engines):
    p, _, d, c = engines
    slo = Slo(ttft_s=5.0, tpot_s=5.0)
    async with front(slo=slo) as f, client(f) as web:
        f.state.directory.replace([endpoint_of(p), endpoint_of(d)])
        before = d.metric('argosy_kv_transfer_seconds_count{side="receive"')
        apart = await web.post("/v1/completions", json=ASK)
        streamed = await web.post("/v1/completions", json={**ASK, "stream": True})
        assert apart.headers["x-argosy-prefill-pod"] == p.name
        assert apart.headers["x-argosy-decode-pod"] == d.name
        assert d.metric('argosy_kv_transfer_seconds_count{side="receive"') >= before + 1
        f.state.directory.replace([endpoint_of(c)])
        together = await web.post("/v1/completions", json=ASK)
        assert together.headers["x-argosy-pod"] == c.name
        text = apart.json()["choices"][0]["text"]
        assert text == together.json()["choices"][0]["text"]
        *chunks, done = events(streamed)
        assert done == "[DONE]"
        pieces = [json.loads(chunk)["choices"] for chunk in chunks]
        assert "".join(choice[0]["text"] for choice in pieces if choice) == text
        await f.settled()
        assert f.verdicts() == {("ok", "ok"): 3}
        assert f.count("argosy_gateway_output_tokens_sum") == 15


@pytest.mark.slow
@pytest.mark.parametrize("role", ["colocated", "decode"])
async def test_unstreamed_answers_of_a_healthy_fleet_meet_a_ttft_shorter_than_they_last(
    engines, role
):
    limit_s, calls, tokens = 3.0, 12, 200  # of at least 20 ms each
    serving = [e for e in engines[1:] if e.role == role or (role, e.role) == ("decode", "prefill")]
    async with front(slo=Slo(limit_s, tpot_s=1.0)) as f, client(f) as web:
        f.state.directory.replace(map(endpoint_of, serving))

        async def one():
            began = f.state.clock()
            answer = await web.post("/v1/completions", json={**ASK, "max_tokens": tokens})
            assert answer.json()["usage"]["completion_tokens"] == tokens
            return f.state.clock() - began

        assert min(await asyncio.gather(*(one() for _ in range(calls)))) > limit_s
        await f.settled()
        assert f.verdicts() == {("ok", "ok"): calls}


async def test_an_engine_killed_before_its_first_token_costs_no_request(engines):
    survivor = engines[3]
    with sim_engines("colocated") as (victim,):
        async with front() as f, client(f) as web:
            f.state.directory.replace([endpoint_of(victim), endpoint_of(survivor)])
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            answers = [await web.post("/v1/completions", json=ASK) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 200]
            await f.settled()
            assert f.count("argosy_requests_completed_total", result="ok") == 3


async def test_a_prefill_engine_that_gets_sigterm_loses_no_stream(engines):
    _, p, d, _ = engines
    async with front() as f, client(f) as web:
        f.state.directory.replace([endpoint_of(p), endpoint_of(d)])
        async with web.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as answer:
            p.process.send_signal(signal.SIGTERM)
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
    eventually(lambda: p.process.poll() == 0)


async def test_a_real_decode_engine_names_the_prefill_pod_that_nobody_answers_for():
    """The gateway reads the header as the engine writes it, and names the other pod first."""
    with sim_engines("prefill", "decode") as (prefill, decode):
        async with front() as f, httpx.AsyncClient(base_url=f.url, timeout=60) as c:
            pods = [endpoint_of(prefill), endpoint_of(decode)]
            (free,) = free_ports(1)
            gone = replace(pods[0], uid="gone", name="prefill-gone", kv_port=free)
            f.state.directory.replace([*pods, gone])
            pairs = f.state.directory.pairs
            for number in range(40):
                body = {"model": "m", "prompt": f"{number} two three four", "max_tokens": 2}
                assert (await c.post("/v1/completions", json=body)).status_code == 200
                if pairs.failing(1):
                    break
            (failing,) = pairs.failing(9)
            assert (failing.prefill, failing.decode) == ("gone", pods[1].uid)
            assert pairs.avoids("gone", pods[1].uid)
            assert f.count("argosy_gateway_handovers_failed_total", reason="connect") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
async def test_a_handover_that_breaks_after_the_first_token_is_a_failure_of_the_pair(
    engines, stream, breaks
):
    """The prompt is computed and its first token with the client when its KV begins to move."""
    p, _, d, _ = engines
    cut = Fault(cut_after=5) if breaks else Fault()
    words = " ".join(f"{'long' if stream else 'short'}{breaks}{n}" for n in range(400))
    body = {**ASK, "prompt": words, "max_tokens": 20, "stream": stream}
    async with (
        fault_proxy(f"127.0.0.1:{p.kv}", back=cut) as network,
        front() as f,
        client(f) as web,
    ):
        network.only = None if not breaks else 1  # 0 is the conversation, 1 the KV
        port = int(network.address.rpartition(":")[2])
        f.state.directory.replace([replace(endpoint_of(p), kv_port=port), endpoint_of(d)])
        answer = await web.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert ": argosy" not in answer.text
        assert "x-argosy-handover" not in answer.headers
        pairs = f.state.directory.pairs
        assert [row.failures for row in pairs.failing(9)] == ([1] if breaks else [])
        assert pairs.handover_ages().keys() == (set() if breaks else {p.name, d.name})


@pytest.mark.parametrize("role", ["prefill", "decode", "colocated"])
async def test_tokens_and_version_come_from_a_real_engine_of_any_role(engines, role):
    engine = next(e for e in engines if e.role == role)
    async with front() as f, client(f) as web:
        f.state.directory.replace([endpoint_of(engine)])
        told = (await web.post("/tokenize", json={"model": "m", "prompt": "a b"})).json()
        back = await web.post("/detokenize", json={"model": "m", "tokens": told["tokens"]})
        assert told["count"] == len(told["tokens"])
        assert back.status_code == 200
        assert (await web.get("/version")).json()["version"]
        assert (await web.get("/tokenizer_info")).json()["tokenizer_class"] == "SimTokenizer"
        assert f.count("argosy_requests_received_total", outcome="accepted") == 0


async def test_a_salt_separates_prompts_behind_prefill_and_decode_too(engines):
    p, d = engines[0], engines[2]
    prompt, received = "salted words " * 100, 'argosy_kv_transfer_seconds_count{side="receive"'
    async with front() as f, client(f) as web:
        f.state.directory.replace([endpoint_of(p), endpoint_of(d)])

        async def cached(**more):
            answer = await web.post("/v1/completions", json={**ASK, "prompt": prompt, **more})
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        before = d.metric(received)
        assert await cached(cache_salt="one") == 0
        assert await cached(cache_salt="two") == 0
        assert await cached(cache_salt="one") > 0
        assert d.metric(received) == before  # prefill engines are sent no salted prompt
        await cached()
        assert d.metric(received) == before + 1
        assert await cached(cache_salt="three") == 0
