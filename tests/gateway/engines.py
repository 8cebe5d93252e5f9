"""Engines on loopback that fail as a test asks, and a gateway in front of them.

They write HTTP/1.1 by hand, so that a fault can happen at an exact byte. Each request has its own
connection, unless an engine is made with `keeps`. A healthy engine is tested with the real one
(`test_with_sim_engine.py`).
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from argosy_gateway.config import Config
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server.serve import running
from tests.engine.processes import SimEngine

Behaviour = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One request that reached an engine, and the means to answer it."""

    pod: tuple[str, str]
    """Name and value of the header by which the engine names its pod."""
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    keeps: bool = False
    """The connection serves another request after this one."""

    @property
    def _own(self) -> list[str]:
        """Headers of every answer."""
        return [": ".join(self.pod), *([] if self.keeps else ["connection: close"])]

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self, status: int, body: dict[str, Any], **headers: str) -> None:
        data = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
        lines += self._own
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        lines += [f"content-length: {len(data)}", "", ""]
        await self.write("\r\n".join(lines).encode() + data)

    async def begin(self, status: int = 200, *headers: str) -> None:
        """Status and headers. Without a length among them the body ends with the connection."""
        lines = [f"HTTP/1.1 {status} X", *self._own, *headers, "", ""]
        await self.write("\r\n".join(lines).encode())

    async def begin_stream(self, *headers: str) -> None:
        stream = ("content-type: text/event-stream", "transfer-encoding: chunked")
        await self.begin(200, *stream, *headers)

    async def event(self, data: bytes) -> None:
        await self.raw(b"data: " + data + b"\n\n")

    async def raw(self, data: bytes) -> None:
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def token(self, text: str, *ids: int) -> None:
        """An event with text. With `ids` it names the tokens, as engines do for a gateway."""
        chunk = {"created": 9, "choices": [{"index": 0, "delta": {"content": text}}], "usage": None}
        comment = f": argosy {','.join(map(str, ids))}\n".encode() if ids else b""
        await self.raw(comment + b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def finish(self, tokens: int) -> None:
        await self.event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
        if (self.body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
            await self.event(json.dumps({"choices": [], "usage": usage}).encode())
        await self.event(b"[DONE]")
        await self.write(b"0\r\n\r\n")

    async def gone(self) -> None:
        """Return when the gateway has closed the connection."""
        while await self.reader.read(1024):
            pass


def endpoint_of(engine: SimEngine, state: State = State.SERVING) -> Endpoint:
    """A real engine process as the gateway would know its pod."""
    return Endpoint(
        engine.name,
        engine.name,
        "127.0.0.1",
        Role(engine.role),
        "0a0a0a0a",
        state,
        port=engine.api,
        kv_port=engine.kv,
    )


async def answer(call: Call) -> None:
    """Three tokens, streamed or whole."""
    if call.body.get("stream"):
        await call.begin_stream()
        for text in ("one", " two", " three"):
            await call.token(text)
        await call.finish(3)
    else:
        await call.status(
            200,
            {
                "choices": [{"message": {"content": "one two three"}}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 3},
            },
        )


async def drain(call: Call) -> None:
    await call.status(503, {"error": {"message": "draining"}}, x_argosy_draining="1")


async def fail(call: Call) -> None:
    await call.status(500, {"error": {"message": "boom", "type": "server_error"}})


async def close_early(call: Call) -> None:
    call.writer.close()


@dataclass
class Engine:
    """A listening engine; `behaviour` may be changed at any time."""

    name: str
    behaviour: Behaviour = answer
    role: Role = Role.COLOCATED
    revision: str = "aaaaaaaa"
    port: int = 0
    uid: str = ""
    """By default the name."""
    keeps: bool = False
    stopped: bool = False
    """It takes connections, as the kernel of a stopped process does, and answers none."""
    answers_get: bool = False
    """Its behaviour answers what is got, too; otherwise that is a probe."""
    probes: int = 0
    model: str | None = None
    """The name by which it knows its model."""
    calls: list[Call] = field(default_factory=list)
    _server: asyncio.Server | None = None

    def endpoint(self, state: State = State.SERVING) -> Endpoint:
        return Endpoint(
            self.uid or self.name,
            self.name,
            "127.0.0.1",
            self.role,
            self.revision,
            state,
            port=self.port,
            model=self.model,
        )

    def pod(self) -> tuple[str, str]:
        decode = self.role is Role.DECODE
        return "x-argosy-decode-pod" if decode else "x-argosy-pod", self.name

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for call in self.calls:
            call.writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                if head[0].startswith("GET") and not self.answers_get:
                    self.probes += 1
                    call = Call(self.pod(), "GET", "/health", headers, {}, writer, reader)
                    await (call.gone() if self.stopped else call.status(200, {"status": "ok"}))
                    writer.close()
                    return
                size = int(headers.get("content-length", "0"))
                body = json.loads(await reader.readexactly(size) or b"{}")
                method, path, _ = head[0].split(" ")
                call = Call(self.pod(), method, path, headers, body, writer, reader, self.keeps)
                self.calls.append(call)
                await self.behaviour(call)
                if not self.keeps:
                    writer.close()


@dataclass
class Seen:
    """What a gateway's series and requests in flight show."""

    state: Gateway

    def count(self, name: str, **labels: str) -> float:
        """The sum of all series of that name with these labels."""
        return sum(
            sample.value
            for family in self.state.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def verdicts(self) -> dict[tuple[str, str], int]:
        """(ttft, tpot) → count, of those that are not 0."""
        found: dict[tuple[str, str], int] = {}
        for family in self.state.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "argosy_slo_requests_total" and sample.value:
                    key = (sample.labels["ttft"], sample.labels["tpot"])
                    found[key] = found.get(key, 0) + int(sample.value)
        return found

    async def until(self, condition: Callable[[], object], timeout_s: float = 5) -> None:
        """Await a state of the gateway or of an engine that has no event."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def settled(self, timeout_s: float = 5) -> None:
        """Await the end of all requests."""
        await self.until(lambda: not self.state.relays, timeout_s)


@dataclass
class Front(Seen):
    """A gateway in front of engines, both listening."""

    url: str
    admin_url: str
    stop: asyncio.Event
    guards: Callable[[], list[Any]]
    """Open connections of clients on the API port."""

    def advance(self, seconds: float) -> None:
        """Move the gateway's clock forward. Times that uvicorn and asyncio take stay real."""
        clock = self.state.clock
        self.state.clock = lambda: clock() + seconds

    def connections(self) -> int:
        return len(self.guards())


@contextlib.asynccontextmanager
async def front(*engines: Engine, **settings: Any) -> AsyncIterator[Front]:
    """Start engines and a gateway that knows them; stop both."""
    settings = {"queue_timeout_s": 3.0, "drain_lag_s": 0.0, "drain_timeout_s": 3.0, **settings}
    names = settings.pop("served_names", ("m",))
    config = Config("f", "ns", names, host="127.0.0.1", port=0, admin_port=0, **settings)
    gateway = Gateway(config, asyncio.get_running_loop().time)
    async with started(gateway, engines):
        stop = asyncio.Event()
        async with running(gateway, stop=stop) as (api, admin):
            urls = [f"http://127.0.0.1:{server.port}" for server in (api, admin)]
            yield Front(gateway, urls[0], urls[1], stop, api.guards)
            stop.set()


@contextlib.asynccontextmanager
async def started(gateway: Gateway, engines: Iterable[Engine]) -> AsyncIterator[None]:
    """Engines that listen, and that the gateway knows."""
    for engine in engines:
        await engine.start()
    gateway.directory.replace(e.endpoint() for e in engines)
    try:
        yield
    finally:
        for engine in engines:
            await engine.stop()
