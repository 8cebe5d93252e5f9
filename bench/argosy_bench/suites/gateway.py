"""`make bench-gateway`: what a streamed token costs the gateway, and what its HTTP client saves.

    python -m argosy_bench.suites.gateway [--json FILE]

The gateway is a process of its own; a stub engine and the clients are in this process. The engine
sends 200 tokens a stream, 20 ms apart, to 20 streams at once. Afterwards the gateway's HTTP client
and httpx read the same engine in turn, each three times, and the best run of each counts.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_gateway.wire import http1

STREAMS, TOKENS = 20, 200
PERIOD_S = 0.02
_READER_RUNS = 3

FIGURES = (
    Figure("cpu_us_per_token", "µs", Target("<=", 100, of_the_machine=True), digits=1),
    Figure("tokens_per_s", "tokens/s", digits=0),
    Figure("rss_mib", "MiB", Target("<=", 50), digits=1),
    Figure("start_s", "s", digits=2),
    # Both readers are measured together with the engine that feeds them.
    Figure("http1_cpu_us_per_chunk", "µs", digits=1),
    Figure("httpx_cpu_us_per_chunk", "µs", digits=1),
    Figure("http1_over_httpx", target=Target("<=", 0.7), digits=2),
)


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with TOKENS events, PERIOD_S apart, and a usage event."""
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


async def _stream(port: int) -> int:
    """Read one stream through the gateway; returns its events without [DONE]."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "prompt": "x" * 400, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head += f"content-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    data = await reader.read(-1)
    writer.close()
    if b"[DONE]" not in data:
        raise RuntimeError(f"the gateway ended a stream early: {data[-300:]!r}")
    return data.count(b"data: ") - 1


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def _until_open(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                return
            except OSError:
                await asyncio.sleep(0.02)


async def _measure_gateway(figures: Figures, engine_port: int) -> None:
    port = _free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        pod = {"name": "e", "role": "colocated", "ip": "127.0.0.1", "port": engine_port}
        json.dump([pod], file)
        file.flush()
        command = (
            f"gateway run --fleet f --namespace n --served-name m --host 127.0.0.1 --port {port} "
            f"--admin-port {_free_port()} --endpoints {file.name} --drain-lag-s 0"
        )
        began = time.monotonic()
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "argosy", *command.split()
        )
        try:
            await _until_open(port)
            figures.put("start_s", time.monotonic() - began)
            await asyncio.gather(*(_stream(port) for _ in range(2)))  # all is imported now
            before, began = _cpu_s(gateway.pid), time.monotonic()
            tokens = sum(await asyncio.gather(*(_stream(port) for _ in range(STREAMS))))
            figures.put("tokens_per_s", tokens / (time.monotonic() - began))
            figures.put("cpu_us_per_token", (_cpu_s(gateway.pid) - before) / tokens * 1e6)
            figures.put("rss_mib", _rss_mib(gateway.pid))
        finally:
            gateway.terminate()
            status = await gateway.wait()
    if status:
        raise RuntimeError(f"the gateway ended with exit status {status} after SIGTERM")


async def _read_by_http1(port: int) -> int:
    chunks = 0
    exchange = await http1.call(
        "127.0.0.1", port, method="POST", target="/", body=b"{}", connect_s=5
    )
    while await exchange.read():
        chunks += 1
    return chunks


async def _cpu_us_per_chunk(read: Callable[[], Awaitable[int]]) -> float:
    before = _own_cpu_s()
    chunks = sum(await asyncio.gather(*(read() for _ in range(STREAMS))))
    return (_own_cpu_s() - before) / chunks * 1e6


async def _measure_readers(figures: Figures, port: int) -> None:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:

        async def read_by_httpx() -> int:
            url, chunks = f"http://127.0.0.1:{port}/", 0
            async with client.stream("POST", url, content=b"{}") as response:
                async for _ in response.aiter_raw():
                    chunks += 1
            return chunks

        ours, theirs = [], []
        for _ in range(_READER_RUNS):
            ours.append(await _cpu_us_per_chunk(lambda: _read_by_http1(port)))
            theirs.append(await _cpu_us_per_chunk(read_by_httpx))
    figures.put("http1_cpu_us_per_chunk", min(ours))
    figures.put("httpx_cpu_us_per_chunk", min(theirs))
    figures.put("http1_over_httpx", min(ours) / min(theirs))


async def measure(figures: Figures) -> None:
    """Put every figure; takes about 40 s."""
    engine = await asyncio.start_server(_engine, "127.0.0.1", 0, backlog=256)
    port = engine.sockets[0].getsockname()[1]
    await _measure_gateway(figures, port)
    await _measure_readers(figures, port)
    engine.close()


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-gateway", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(FIGURES, "make bench-gateway")
    asyncio.run(measure(figures))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
