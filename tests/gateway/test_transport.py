"""Fields and headers that move KV between engines come from the gateway alone, never from a client.

A real gateway process stands in front of a recording backend that answers as vLLM does: it names no
pod.
"""

import asyncio
import contextlib
import json
import sys

import httpx
import pytest
import pytest_asyncio

from argosy_bench.ports import free_ports
from tests.gateway.engines import Engine, answer

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
ASK = {"model": "m", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
KILLS = {"do_remote_prefill": True, "remote_block_ids": None}
"""What ends the process of a vLLM engine that has a connector."""


class Recording(Engine):
    """Another engine than ours."""

    def pod(self):
        return "server", "uvicorn"


async def answers(call):
    if call.path in (CHAT, PLAIN):
        await answer(call)
    else:
        await call.status(200, {"tokens": [1], "count": 1})


@contextlib.asynccontextmanager
async def gateway(folder, engine):
    """The URL of a gateway process in front of this engine."""
    await engine.start()
    file = folder / "endpoints.json"
    file.write_text(
        json.dumps(
            [
                {
                    "name": engine.name,
                    "role": "colocated",
                    "ip": "127.0.0.1",
                    "port": engine.port,
                    "engine": "vllm",
                }
            ]
        )
    )
    port, admin = free_ports(2)
    words = f"""-m argosy gateway run --fleet f --namespace n --served-name m --host 127.0.0.1
        --port {port} --admin-port {admin} --drain-lag-s 0 --endpoints {file}"""
    process = await asyncio.create_subprocess_exec(sys.executable, *words.split())
    try:
        async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as web:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await web.get(f"http://127.0.0.1:{admin}/ready")).status_code == 200:
                        break
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()
        await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory):
    engine = Recording("a", answers)
    async with gateway(tmp_path_factory.mktemp("fleet"), engine) as url:
        yield engine, url


def with_members(**members):
    return json.dumps({**ASK, **members}).encode()


ATTACKS = [
    ("kv_transfer_params", with_members(kv_transfer_params=KILLS)),
    ("kv_transfer_params", with_members(kv_transfer_params=KILLS, stream=True)),
    ("kv_transfer_params", with_members(kv_transfer_params=KILLS, n=3, prompt=["a", "b"])),
    ("kv_transfer_params", with_members(kv_transfer_params=[])),
    ("ec_transfer_params", with_members(ec_transfer_params={"peer": "10.0.0.1"})),
    ("bootstrap_host", with_members(bootstrap_host="10.0.0.1")),
    ("bootstrap_port", with_members(bootstrap_port=8998)),
    ("bootstrap_room", with_members(bootstrap_room=[1])),
    ("bootstrap_of_later_releases", with_members(bootstrap_of_later_releases=0)),
    ("data_parallel_rank", with_members(data_parallel_rank=0)),
    ("routed_dp_rank", with_members(routed_dp_rank=1)),
    ("disagg_prefill_dp_rank", with_members(disagg_prefill_dp_rank=1)),
    ("rid", with_members(rid="of another client")),
    ("argosy_resume", with_members(argosy_resume={"token_ids": [1]}, stream=True)),
    ("vllm_xargs", with_members(vllm_xargs={"kv_transfer_params": "text"})),
    ("vllm_xargs", with_members(vllm_xargs={"harmless": 1, "ec_transfer_params": ["text"]})),
    (
        "kv_transfer_params",
        with_members(x=1).replace(b'"x": 1', b'"kv\\u005ftransfer_params": {"do": 1}'),
    ),
    (
        "kv_transfer_params",
        with_members(x=1).replace(b'"x": 1', b'"kv_transfer_params": null, "kv_transfer_params":1'),
    ),
    (
        "kv_transfer_params",
        with_members(x=1).replace(b'"x": 1', b'"kv_transfer_params":1, "kv_transfer_params": null'),
    ),
    ("kv_transfer_params", with_members(kv_transfer_params=KILLS).decode().encode("utf-16")),
]


@pytest.mark.parametrize("path", [CHAT, PLAIN, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(("field", "body"), ATTACKS)
async def test_a_client_that_writes_a_field_of_the_transport_is_refused_by_its_name(
    fleet, path, field, body
):
    engine, url = fleet
    engine.calls.clear()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as web:
        refused = await web.post(path, content=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == field
    assert field in error["message"]
    assert engine.calls == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_field_of_the_transport_that_is_null_says_nothing_and_is_taken(fleet, stream):
    engine, url = fleet
    engine.calls.clear()
    body = {**ASK, "stream": stream, "kv_transfer_params": None, "rid": None, "vllm_xargs": None}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as web:
        assert (await web.post(CHAT, json=body)).status_code == 200
        assert (await web.post(CHAT, json={**body, "vllm_xargs": {"own": 1}})).status_code == 200
    assert [call.body["kv_transfer_params"] for call in engine.calls] == [None, None]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/generate", "/invocations"])
async def test_other_paths_of_an_engine_are_not_reached_through_the_gateway(fleet, path):
    engine, url = fleet
    engine.calls.clear()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as web:
        answers = [
            await web.post(path, json={**ASK, "kv_transfer_params": KILLS}),
            await web.post(path, files={"file": b"x"}),
        ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert engine.calls == []


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_no_header_of_a_client_but_the_requests_id_reaches_an_engine(fleet, path):
    engine, url = fleet
    engine.calls.clear()
    headers = {
        "x-data-parallel-rank": "3",
        "x-prefiller-host-port": "10.0.0.1:8000",
        "x-argosy-prefill": "10.0.0.1:8002",
        "x-argosy-prefill-uids": "u",
        "x-argosy-resume": "1",
        "x-argosy-token-ids": "1",
        "x-argosy-priority": "-5",
        "x-argosy-attempt": "7",
        "x-request-id": "___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:2_0",
        "authorization": "Bearer of-the-client",
        "x-session-id": "s",
        "cookie": "c=1",
    }
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=headers) as web:
        assert (await web.post(path + "?rid=1", json=ASK)).status_code == 200
    (call,) = engine.calls
    ours = {"host", "content-type", "content-length", "connection", "x-request-id"}
    ours |= {"authorization"} | ({"x-argosy-attempt"} if path == CHAT else set())
    assert call.headers.keys() <= ours
    assert call.path == path
    assert call.headers["authorization"] == "bearer a"  # the recorder reads in lower case
    assert call.headers.get("x-argosy-attempt", "1") == "1"
    assert ":" not in call.headers["x-request-id"]
