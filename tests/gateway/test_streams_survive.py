"""Streams of real engine processes whose engine dies: each goes on elsewhere, with its own text."""

import asyncio
import json
import signal

import httpx
import pytest

from argosy_gateway.config import Limits
from argosy_gateway.pods.endpoints import State
from tests.engine.processes import SimEngine, sim_engines
from tests.gateway.engines import Front, endpoint_of, front

pytestmark = pytest.mark.slow

TOKENS = 120
"""At about 20 ms each."""
SENT = 'argosy_kv_transfer_seconds_count{side="send"}'
ROLES = {"together": ("colocated",) * 2, "apart": ("prefill", "decode", "decode")}


@pytest.fixture(params=ROLES)
def engines(request):
    with sim_engines(*ROLES[request.param]) as started:
        yield started


def ask(number: int, *, chat: bool = False, tokens: int = TOKENS) -> tuple[str, dict]:
    words = f"prompt {number} has some words"
    options = {"model": "m", "max_tokens": tokens, "stream": True}
    if chat:
        messages = [{"role": "user", "content": words}]
        return "/v1/chat/completions", {**options, "messages": messages}
    return "/v1/completions", {**options, "prompt": words}


class Reader:
    """One client's stream."""

    def __init__(self, f: Front, number: int, **options) -> None:
        self._url = f.url
        self.path, self.body = ask(number, chat=number % 2 == 1, **options)
        self.body["stream_options"] = {"include_usage": True}
        self.chunks: list[dict] = []
        self.pod = ""
        """The pod that decodes; the first one, if the stream goes on elsewhere."""
        self.done = False
        self.lines: list[str] = []

    async def read(self) -> None:
        async with (
            httpx.AsyncClient(timeout=60, verify=False) as web,
            web.stream("POST", self._url + self.path, json=self.body) as answer,
        ):
            assert answer.status_code == 200
            names = (answer.headers.get(f"x-argosy-{what}") for what in ("decode-pod", "pod"))
            self.pod = next(name for name in names if name)
            async for line in answer.aiter_lines():
                if line:
                    self.lines.append(line)
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self.chunks.append(json.loads(line.removeprefix("data: ")))

    @property
    def text(self) -> str:
        choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)

    def check_whole(self, text: str) -> None:
        """The stream is one, and has that text."""
        assert self.done
        assert [line for line in self.lines if not line.startswith("data: ")] == []
        assert self.text == text
        assert len({(c["id"], c["created"]) for c in self.chunks}) == 1
        reasons = [c["choices"][0]["finish_reason"] for c in self.chunks if c["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]
        roles = [c for c in self.chunks if c["choices"] and "role" in str(c["choices"][0])]
        assert len(roles) == ("chat" in self.path)
        usage = self.chunks[-1]["usage"]
        assert usage["completion_tokens"] == self.body["max_tokens"]


async def until_some_run(f: Front, readers: list[Reader], engine: SimEngine, chunks: int) -> None:
    """A stream of this engine has so many chunks, and goes on."""

    def run() -> bool:
        mine = [reader for reader in readers if reader.pod == engine.name and not reader.done]
        return any(len(reader.chunks) > chunks for reader in mine)

    await f.until(run, timeout_s=60)


async def whole_texts(f: Front, count: int, **options) -> list[str]:
    """The texts of undisturbed streams."""
    readers = [Reader(f, number, **options) for number in range(count)]
    await asyncio.gather(*(reader.read() for reader in readers))
    for reader in readers:
        assert reader.done
    return [reader.text for reader in readers]


def kill(engine: SimEngine) -> None:
    engine.process.send_signal(signal.SIGKILL)
    engine.process.wait()


async def test_no_stream_ends_with_the_engine_that_is_killed(engines):
    count = 20
    heads = [e for e in engines if e.role != "prefill"]
    async with front() as f:
        f.state.directory.replace(map(endpoint_of, engines))
        texts = await whole_texts(f, count)
        readers = [Reader(f, number) for number in range(count)]
        reading = asyncio.gather(*(reader.read() for reader in readers))
        await until_some_run(f, readers, heads[0], 20)
        kill(heads[0])
        await reading
        for reader, text in zip(readers, texts, strict=True):
            reader.check_whole(text)
        await f.settled()
        resumed = f.count("argosy_gateway_resumed_total", reason="closed")
        assert 0 < resumed < count
        assert f.count("argosy_requests_completed_total", result="failed") == 0


async def test_no_stream_and_no_request_waits_for_an_engine_that_is_stopped(engines):
    """SIGSTOP: its kernel still takes connections and bytes. Six requests are unstreamed."""
    count, tokens = 12, 2 * TOKENS
    heads = [e for e in engines if e.role != "prefill"]
    async with front(limits=Limits(wait_s=1.0, silent_s=2.0)) as f:
        f.state.directory.replace(map(endpoint_of, engines))
        texts = await whole_texts(f, count, tokens=tokens)
        readers = [Reader(f, number, tokens=tokens) for number in range(count)]
        reading = asyncio.gather(*(reader.read() for reader in readers))
        await until_some_run(f, readers, heads[0], 5)
        path, body = ask(0, tokens=tokens)
        async with httpx.AsyncClient(base_url=f.url, timeout=60, verify=False) as web:
            heads[0].process.send_signal(signal.SIGSTOP)
            try:
                asked = [web.post(path, json={**body, "stream": False}) for _ in range(6)]
                answers = await asyncio.gather(*asked)
                await reading
            finally:
                heads[0].process.send_signal(signal.SIGCONT)
        assert {answer.json()["choices"][0]["text"] for answer in answers} == {texts[0]}
        for reader, text in zip(readers, texts, strict=True):
            reader.check_whole(text)
        await f.settled()
        assert f.count("argosy_gateway_resumed_total", reason="silent") > 0
        assert f.count("argosy_gateway_retries_total", reason="silent") > 0
        await f.until(lambda: not f.state.probes.is_silent(heads[0].name), timeout_s=60)


async def test_pods_that_drain_in_turn_lose_no_stream(engines):
    """Mode migrate: each drain empties its pod while the streams go on."""
    heads = [e for e in engines if e.role != "prefill"]
    others = [e for e in engines if e.role == "prefill"]
    async with front(drain_mode="migrate") as f:
        f.state.directory.replace(map(endpoint_of, engines))
        texts = await whole_texts(f, 10)
        readers = [Reader(f, number) for number in range(10)]
        reading = asyncio.gather(*(reader.read() for reader in readers))
        for turn in range(4):
            await f.until(
                lambda turn=turn: f.state.id_budget.held > 60 * turn or reading.done(), timeout_s=60
            )
            if reading.done():  # on a busy machine a move takes as long as the rest of a stream
                break
            leaving, staying = heads[turn % 2], heads[(turn + 1) % 2]
            f.state.directory.replace(
                [endpoint_of(leaving, State.DRAINING), *map(endpoint_of, [staying, *others])]
            )
            await f.until(
                lambda leaving=leaving: leaving.name not in f.state.in_flight.loads, timeout_s=60
            )
            assert leaving.page("/drain").json()["draining"] is False  # no order: it just emptied
        await reading
        for reader, text in zip(readers, texts, strict=True):
            reader.check_whole(text)
        await f.settled()
        assert f.count("argosy_gateway_resumed_total", reason="draining") > 0
        assert f.count("argosy_gateway_resumed_total", reason="closed") == 0
        if others:  # decode pods hand their streams to each other with the KV
            assert sum(head.metric(SENT) for head in heads) > 0
            assert [head.page("/drain").json()["leases"] for head in heads] == [0, 0]


async def test_a_decode_engine_that_dies_while_its_streams_leave_it_breaks_none():
    count = 12
    with sim_engines("prefill", "decode", "decode") as engines:
        prefill, leaving, staying = engines
        async with front(drain_mode="migrate") as f:
            f.state.directory.replace(map(endpoint_of, engines))
            texts = await whole_texts(f, count)
            readers = [Reader(f, number) for number in range(count)]
            reading = asyncio.gather(*(reader.read() for reader in readers))
            await until_some_run(f, readers, leaving, 20)
            drains = [endpoint_of(leaving, State.DRAINING), *map(endpoint_of, (prefill, staying))]
            f.state.directory.replace(drains)
            f.state.sweep()
            await f.until(lambda: f.count("argosy_gateway_resumed_total"), timeout_s=60)
            kill(leaving)
            await reading
            for reader, text in zip(readers, texts, strict=True):
                reader.check_whole(text)
            await f.settled()
            assert f.count("argosy_requests_completed_total", result="failed") == 0
            assert staying.page("/drain").json()["running"] == 0


@pytest.mark.long
async def test_an_engine_whose_drain_runs_out_of_time_hands_its_streams_over():
    with sim_engines("colocated", "colocated", options=("--drain-timeout-s", "0.2")) as engines:
        async with front() as f:
            f.state.directory.replace(map(endpoint_of, engines))
            texts = await whole_texts(f, 6)
            readers = [Reader(f, number) for number in range(6)]
            reading = asyncio.gather(*(reader.read() for reader in readers))
            await until_some_run(f, readers, engines[0], 10)
            engines[0].process.send_signal(signal.SIGTERM)
            await reading
            for reader, text in zip(readers, texts, strict=True):
                reader.check_whole(text)
            await f.settled()
            assert f.count("argosy_gateway_resumed_total", reason="draining") > 0
