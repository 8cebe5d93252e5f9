"""When the engine's histogram counts a first token as seen."""

import asyncio
import json
import time

from argosy_engine.config import EngineConfig
from argosy_engine.runtime.sim import SimTokenizer
from argosy_engine.server.openai.routes import OpenAiApi
from tests.kv.nodes import node, until

TTFT = "vllm:time_to_first_token_seconds"


class Connection:
    """One request as ASGI gives it; bytes leave when `leaving` allows."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.leaving = asyncio.Event()
        self.has_bytes = asyncio.Event()
        self.sent: list[bytes] = []

    async def receive(self):
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("the client stays")

    async def send(self, message):
        if message.get("body"):
            self.has_bytes.set()
            await self.leaving.wait()
            self.sent.append(message["body"])


def ask(engine, *, stream: bool) -> tuple[Connection, asyncio.Task]:
    """A request for three tokens to `engine`, being answered."""
    aio = asyncio.get_running_loop()
    deliver = engine.loop._deliver
    engine.loop._deliver = lambda batch: aio.call_soon_threadsafe(deliver, batch)
    api = OpenAiApi(EngineConfig(model="x", served_name="m"), engine.loop, SimTokenizer())
    body = {"model": "m", "prompt": "one two", "max_tokens": 3, "stream": stream}
    connection = Connection(json.dumps(body).encode())
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
        "query_string": b"",
    }  # fmt: skip
    answering = asyncio.ensure_future(api.app()(scope, connection.receive, connection.send))
    return connection, answering


def seen(engine, part: str) -> float:
    labels = {"model_name": "m", "engine": "0"}
    return engine.metric(f"{TTFT}_{part}", **labels)


async def test_ttft_is_observed_when_the_first_bytes_leave_and_not_when_the_step_ends():
    with node("colocated") as engine:
        connection, answering = ask(engine, stream=True)
        await connection.has_bytes.wait()
        await until(lambda: not engine.loop.unfinished)  # every step has ended long ago
        assert seen(engine, "count") == 0
        held_from = time.monotonic()
        await until(lambda: time.monotonic() > held_from + 0.05)
        held_s = time.monotonic() - held_from
        connection.leaving.set()
        await answering
        assert seen(engine, "count") == 1
        assert seen(engine, "sum") >= held_s


async def test_ttft_of_a_whole_answer_is_that_of_its_first_token():
    with node("colocated") as engine:
        connection, answering = ask(engine, stream=False)
        await connection.has_bytes.wait()
        assert seen(engine, "count") == 1
        connection.leaving.set()
        await answering
        assert seen(engine, "count") == 1
