"""The OpenAI surface's own answers, the guard on connections, probes and drain."""

import asyncio
import json
import signal
import sys

import httpx
import pytest

from argosy_bench.ports import free_ports
from argosy_gateway.errors import RequestError
from argosy_gateway.wire.openai import read_completion
from tests.gateway.engines import Engine, front

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"


def client(url: str) -> httpx.AsyncClient:
    """Without certificates: loading them takes longer than most tests here."""
    return httpx.AsyncClient(base_url=url, verify=False)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_may_be_nested_equally_deep_on_both_paths(path):
    def chars(levels: int) -> int:
        text = b"[" * levels + b'"four"' + b"]" * levels
        body = b'{"model":"m","prompt":' + text + b',"messages":[{"content":' + text + b"}]}"
        return read_completion(path, body, served_names=("m",)).prompt_chars

    assert chars(15) == 4
    with pytest.raises(RequestError, match="deeply"):
        chars(16)


async def test_half_a_surrogate_pair_reaches_the_engine():
    engine = Engine("a")
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"\\ud800 \\u00e9"}]}'
    async with front(engine) as f, client(f.url) as c:
        assert (await c.post(PATH, content=body)).status_code == 200
    assert engine.calls[0].body["messages"][0]["content"] == "\ud800 é"


async def test_a_drain_turns_unready_finishes_streams_and_takes_nothing_new():
    go_on = asyncio.Event()

    async def slow(call):
        await call.begin_stream()
        await call.token("one")
        await go_on.wait()
        await call.finish(1)

    engine = Engine("a", slow)
    async with (
        front(engine, drain_lag_s=0.3) as f,
        client(f.url) as c,
    ):
        body = {"model": "m", "messages": [], "stream": True}
        stream = asyncio.create_task(c.post(PATH, json=body))
        await f.until(lambda: engine.calls)
        f.stop.set()
        await f.until(lambda: f.state.draining)
        # Not every node knows yet: what still arrives is served.
        late = asyncio.create_task(c.post(PATH, json=body))
        assert (await c.get(f.admin_url + "/ready")).status_code == 503
        await f.until(lambda: len(engine.calls) == 2)
        go_on.set()
        assert "[DONE]" in (await stream).text
        response = await late
        assert "[DONE]" in response.text
        assert response.headers["connection"] == "close"


async def test_the_process_exits_0_after_sigterm_while_a_stream_ends(tmp_path):
    async def slow(call):
        await call.begin_stream()
        await call.token("one")
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        await call.finish(1)

    engine = Engine("a", slow)
    await engine.start()
    file = tmp_path / "endpoints.json"
    pod = {"name": "a", "role": "colocated", "ip": "127.0.0.1", "port": engine.port}
    file.write_text(json.dumps([pod]))
    words = "-m argosy gateway run --fleet f --namespace n --served-name m --host 127.0.0.1"
    port, admin = free_ports(2)
    words += f" --port {port} --admin-port {admin} --drain-lag-s 0 --endpoints {file}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words.split(), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(10):
            while b"serving fleet" not in await process.stderr.readline():
                pass
            async with client(f"http://127.0.0.1:{port}") as c:
                while (await c.get(f"http://127.0.0.1:{admin}/ready")).status_code != 200:
                    pass
                body = {"model": "m", "messages": [], "stream": True}
                assert "[DONE]" in (await c.post(PATH, json=body)).text
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await engine.stop()
