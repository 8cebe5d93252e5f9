"""The OpenAI surface's own answers, the guard on connections, probes and drain."""

import asyncio
import json
import signal
import sys

import httpx
import pytest

from argosy_bench.ports import free_ports
from argosy_gateway.config import Limits, Slo
from argosy_gateway.errors import RequestError
from argosy_gateway.wire.openai import read_completion
from tests.gateway.engines import Engine, front

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"


def client(url: str) -> httpx.AsyncClient:
    """Without certificates: loading them takes longer than most tests here."""
    return httpx.AsyncClient(base_url=url, verify=False)


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        (b"{", 400, None, "not JSON"),
        (b"[1]", 400, None, "JSON object"),
        (b"\xff", 400, None, "not JSON"),
        (b"[" * 100_000, 400, None, "deeply"),
        (b'{"model":"m","messages":[],"temperature":NaN}', 400, None, "finite"),
        (b'{"model":7,"messages":[]}', 400, None, "'model'"),
        (b'{"model":"gpt-9","messages":[]}', 404, "model_not_found", "this fleet serves 'm'"),
        (b'{"model":"m"}', 400, None, "'messages' is required"),
        (b'{"model":"m","messages":["x"]}', 400, None, "list of objects"),
        (b'{"model":"m","messages":[],"stream":1}', 400, None, "'stream'"),
        (b"x" * 2000, 413, None, "larger than 1000"),
        (b'{"model":"\\ud800","messages":[]}', 404, "model_not_found", "this fleet serves 'm'"),
        (
            b'{"model":"m","messages":[{"content":' + b"[" * 17 + b"]" * 17 + b"}]}",
            400,
            None,
            "deeply",
        ),
    ],
)
async def test_a_wrong_request_is_answered_with_an_openai_error(body, status, code, says):
    engine = Engine("a")
    limits = Limits(body_bytes=1000 if len(body) == 2000 else 1 << 20)
    async with front(engine, limits=limits, slo=Slo(1, 1)) as f:
        async with client(f.url) as c:
            response = await c.post(PATH, content=body)
        error = response.json()["error"]
        assert response.status_code == status
        assert says in error["message"]
        assert error["code"] == code
        assert set(error) == {"message", "type", "param", "code"}
        assert not engine.calls
        assert f.count("argosy_requests_received_total", outcome="invalid") == 1
        assert f.verdicts() == {}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_may_be_nested_equally_deep_on_both_paths(path):
    def chars(levels: int) -> int:
        text = b"[" * levels + b'"four"' + b"]" * levels
        body = b'{"model":"m","prompt":' + text + b',"messages":[{"content":' + text + b"}]}"
        return read_completion(path, body, served_names=("m",)).prompt_chars

    assert chars(15) == 4
    with pytest.raises(RequestError, match="deeply"):
        chars(16)


async def test_wrong_paths_and_methods_are_openai_errors_and_models_are_listed():
    async with front() as f, client(f.url) as c:
        assert (await c.get("/v2")).json()["error"]["type"] == "invalid_request_error"
        wrong = await c.get(PATH)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert [m["id"] for m in (await c.get("/v1/models")).json()["data"]] == ["m"]
        assert (await c.get("/v1/models/x")).json()["error"]["code"] == "model_not_found"
        assert (await c.get("/health")).status_code == 200


async def test_a_chunked_body_is_counted_while_it_arrives():
    async def much():
        for _ in range(10):
            yield b"x" * 500

    async with (
        front(limits=Limits(body_bytes=1000)) as f,
        client(f.url) as c,
    ):
        assert (await c.post(PATH, content=much())).status_code == 413


@pytest.mark.parametrize(
    ("line", "hosts", "status"),
    [
        (b"HTTP/1.1", b"host: x\r\n", 200),
        (b"HTTP/1.0", b"", 200),
        (b"HTTP/1.1", b"", 400),
        (b"HTTP/1.1", b"host: x\r\nhost: y\r\n", 400),
        (b"HTTP/1.0", b"host: x\r\nHost: x\r\n", 400),
        (b"", b"host: x\r\n", 400),
    ],
)
async def test_a_request_has_one_host_and_a_version_or_the_connection_ends(line, hosts, status):
    engine = Engine("a")
    body = b'{"model":"m","messages":[]}'
    request = b"POST " + PATH.encode() + b" %b\r\n" % line + hosts
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with front(engine) as f:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(f.url).port)
        writer.write(request)
        async with asyncio.timeout(5):
            assert b" %d " % status in await reader.readuntil(b"\r\n")
            if status == 400:
                assert b"invalid_request_error" in await reader.read()
        writer.close()
    assert len(engine.calls) == (status == 200)


async def test_an_offer_of_http2_is_ignored_and_the_body_is_read():
    """As Java's own client makes it with each request in clear text."""
    body = b'{"model":"m","messages":[]}'
    head = b"POST " + PATH.encode() + b" HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    head += b"Host: x\r\nContent-Length: %d\r\n" % len(body)
    request = head + b"HTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n\r\n" + body
    async with front(Engine("a")) as f:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(f.url).port)
        for _ in range(2):
            writer.write(request)
            async with asyncio.timeout(2):
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"}}")
        writer.close()


async def test_a_head_beyond_its_limit_is_answered_431():
    async with front() as f:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(f.url).port)
        writer.write(b"GET / HTTP/1.1\r\n" + b"a: " + b"x" * 40_000)
        async with asyncio.timeout(2):
            assert b" 431 " in await reader.read()
        writer.close()


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
