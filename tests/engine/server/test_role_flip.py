"""An engine goes from prefill to decode and back under load: each request gets its whole text."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from argosy_gateway.pods.endpoints import Role, State
from tests.engine.processes import eventually, sim_engines
from tests.gateway.engines import endpoint_of, front

pytestmark = pytest.mark.slow

TOKENS = 30
STEPS = 'argosy_steps_total{kind="%s"}'


async def until(condition):
    await asyncio.to_thread(eventually, condition)


def busy(engine):
    report = engine.page("/drain").json()
    return report["running"] + report["leases"]


async def one(web, number):
    """Status, last event and counted tokens of one streamed request."""
    body = {
        "model": "m", "prompt": f"r{number} " + "word " * 40, "max_tokens": TOKENS,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer = await web.post("/v1/completions", json=body)
    *chunks, done = [x.removeprefix("data: ") for x in answer.text.split("\n\n") if x]
    return answer.status_code, done, json.loads(chunks[-1])["usage"]["completion_tokens"]


async def load(web, stop):
    """Ten requests per second until `stop`, and what became of them."""
    sent = []
    while not stop.is_set():
        sent.append(asyncio.create_task(one(web, len(sent))))
        await asyncio.sleep(0.1)
    return await asyncio.gather(*sent)


async def test_prefill_to_decode_and_back_under_load_loses_no_request(tmp_path):
    file = tmp_path / "role"
    file.write_text("prefill")
    with (
        sim_engines("prefill", "decode") as (p, d),
        sim_engines("decode", options=("--role-file", str(file))) as (third,),
    ):
        async with front() as f, httpx.AsyncClient(base_url=f.url, timeout=60) as web:

            def show(role, state=State.SERVING):
                changing = replace(endpoint_of(third, state), role=Role(role))
                f.state.directory.replace([endpoint_of(p), endpoint_of(d), changing])

            show("prefill")
            stop = asyncio.Event()
            loading = asyncio.create_task(load(web, stop))
            began = third.metric("argosy_engine_start_seconds")
            await until(lambda: third.metric(STEPS % "prefill") > 2)
            for role in ("decode", "prefill", "decode"):
                steps = third.metric(STEPS % role)
                show(role, State.DRAINING)
                file.write_text(role)
                await until(lambda role=role: third.page("/drain").json()["role"] == role)
                await until(lambda: third.page("/ready").status_code == 200)
                show(role)
                await until(lambda r=role, n=steps: third.metric(STEPS % r) > n + 2)
            # The gateway hears of this change late: the engine sends it to another pod.
            file.write_text("prefill")
            await until(lambda: third.page("/drain").json()["role"] == "prefill")
            await until(lambda: f.count("argosy_gateway_retries_total", reason="draining") > 0)
            show("prefill")
            stop.set()
            answers = await loading
        assert len(answers) > 20
        assert set(answers) == {(200, "[DONE]", TOKENS)}
        for engine in (p, d, third):
            await until(lambda engine=engine: busy(engine) == 0)
        assert third.metric("argosy_engine_start_seconds") == began
        assert third.metric("argosy_kv_leases_active") == 0
