"""CPU of the gateway per streamed token, its memory and import time: `python -m
tests.gateway.measure_relay`. The gateway is a process of its own; engine and client live here.

Prints one JSON object. `httpx` and `http1` as argument measure a reader alone, together with its
engine: the difference is what httpx would cost.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

STREAMS, TOKENS = 20, 200
PERIOD_S = 0.02


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-argosy-pod: e\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    chunk = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
        "usage": None,
    }
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    loop = asyncio.get_running_loop()
    began = loop.time()
    for i in range(TOKENS):
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(max(0.0, began + (i + 1) * PERIOD_S - loop.time()))
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": TOKENS}}
    last = b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n"
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
    await writer.drain()
    writer.close()


async def _read_one(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "prompt": "x" * 400, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head += f"content-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    data = await reader.read(-1)
    writer.close()
    assert b"[DONE]" in data, data[-300:]
    return data.count(b"data: ") - 1


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


async def _free_of_port(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                return
            except OSError:
                await asyncio.sleep(0.02)


async def _measure_gateway() -> dict[str, float]:
    engine = await asyncio.start_server(_engine, "127.0.0.1", 0, backlog=256)
    port, admin = 18480, 18481
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        pod = {"name": "e", "role": "colocated", "ip": "127.0.0.1"}
        json.dump([{**pod, "port": engine.sockets[0].getsockname()[1]}], file)
        file.flush()
        command = (
            f"gateway run --fleet f --namespace n --served-name m --host 127.0.0.1 --port {port}"
        )
        command += f" --admin-port {admin} --endpoints {file.name} --drain-lag-s 0"
        began = time.monotonic()
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "argosy", *command.split()
        )
        try:
            await _free_of_port(port)
            start_s = time.monotonic() - began
            await asyncio.gather(*(_read_one(port) for _ in range(2)))
            before, began = _cpu_s(gateway.pid), time.monotonic()
            tokens = sum(await asyncio.gather(*(_read_one(port) for _ in range(STREAMS))))
            cpu_s, wall_s = _cpu_s(gateway.pid) - before, time.monotonic() - began
            rss_mib = _rss_mib(gateway.pid)
        finally:
            gateway.terminate()
            status = await gateway.wait()
    return {
        "cpu_us_per_token": cpu_s / tokens * 1e6,
        "tokens_per_s": tokens / wall_s,
        "rss_mib": rss_mib,
        "start_s": start_s,
        "exit_status": status,
    }


async def _measure_httpx() -> dict[str, float]:
    import httpx

    engine = await asyncio.start_server(_engine, "127.0.0.1", 0, backlog=256)
    url = f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}/"

    async def read(client: httpx.AsyncClient) -> int:
        chunks = 0
        async with client.stream("POST", url, content=b"{}") as response:
            async for _ in response.aiter_raw():
                chunks += 1
        return chunks

    async with httpx.AsyncClient(timeout=30) as client:
        before = resource.getrusage(resource.RUSAGE_SELF)
        chunks = sum(await asyncio.gather(*(read(client) for _ in range(STREAMS))))
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_us_per_chunk_with_its_engine": cpu_s / chunks * 1e6}


async def _measure_http1() -> dict[str, float]:
    from argosy_gateway.wire import http1

    engine = await asyncio.start_server(_engine, "127.0.0.1", 0, backlog=256)
    port = engine.sockets[0].getsockname()[1]

    async def read() -> int:
        chunks = 0
        exchange = await http1.call(
            "127.0.0.1", port, method="POST", target="/", body=b"{}", connect_s=5
        )
        while await exchange.read():
            chunks += 1
        return chunks

    before = resource.getrusage(resource.RUSAGE_SELF)
    chunks = sum(await asyncio.gather(*(read() for _ in range(STREAMS))))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_us_per_chunk_with_its_engine": cpu_s / chunks * 1e6}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["gateway", "httpx", "http1"], nargs="?", default="gateway")
    what = parser.parse_args().what
    measures = {"gateway": _measure_gateway, "httpx": _measure_httpx, "http1": _measure_http1}
    print(json.dumps({k: round(v, 2) for k, v in asyncio.run(measures[what]()).items()}))


if __name__ == "__main__":
    main()
