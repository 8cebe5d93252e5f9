"""Paths below /v1 that the gateway does not know reach colocated pods of other engines."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from argosy_gateway.config import Limits
from argosy_gateway.pods.endpoints import Role
from argosy_gateway.server.admin import pod_loads
from argosy_gateway.wire.openai import form_models, rename_form_model
from tests.gateway.direct import direct
from tests.gateway.engines import Engine, front
from tests.gateway.test_adapters import Vllm

EMBED = "/v1/embeddings"
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n'
    b"Content-Type: audio/wav\r\n\r\n\x00\xff\r\n\r\nname=model\r\n"
    b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n--x--\r\n'
)
KIND = {"content-type": "multipart/form-data; boundary=x"}


async def embed(call):
    await call.status(200, {"model": call.body.get("model"), "data": [{"embedding": [0.5]}]})


@dataclass
class Raw(Vllm):
    """A pod that keeps requests as they came, and answers `answered` in these parts."""

    parts: tuple[bytes, ...] = (b"ok",)
    kind: str = "application/octet-stream"
    went: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared, the parts after the first wait."""
    heads: list[list[str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __post_init__(self):
        self.went.set()

    async def _serve(self, reader: Any, writer: Any) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        sizes = [int(line.split(": ")[1]) for line in head if line.startswith("content-length")]
        self.bodies.append(await reader.readexactly(sum(sizes)))
        self.heads.append([line for line in head if line])
        writer.write(
            b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=5\r\nx-own: 1\r\ncontent-type: "
            + self.kind.encode()
            + b"\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for part in self.parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await self.went.wait()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()


def web(f):
    return httpx.AsyncClient(base_url=f.url, trust_env=False, timeout=5)


def passing(*engines, **settings):
    return direct(*engines, adapters=("sql",), pass_other_paths=True, **settings)


@pytest.mark.parametrize(("name", "reaches"), [("m", "fleet"), ("sql", "sql")])
async def test_a_model_is_translated_both_ways_and_an_adapter_is_not(name, reaches):
    engine = Vllm("a", embed)
    async with passing(engine) as f:
        asked = await f.answered({"model": name, "input": "hi"}, EMBED)
        assert f.count("argosy_gateway_other_requests_total", result="ok") == 1
        assert f.count("argosy_requests_received_total", outcome="accepted") == 0
        assert f.state.in_flight.loads == {}
        assert f.state.relays == set()
    assert json.loads(asked.text)["model"] == name
    assert engine.calls[0].body == {"model": reaches, "input": "hi"}
    assert engine.calls[0].headers["authorization"] == "bearer a"


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (b"application/json", {"model": "other"}, 404),
        (b"application/json", {"model": "m", "kv_transfer_params": {"remote_host": "x"}}, 400),
        (b"application/json", b"[1]", 400),
        (b"application/json", b"{", 400),
        (b"text/plain", {"model": "other"}, 404),
        (b"multipart/form-data; boundary=x", {"model": "m", "bootstrap_room": 1}, 400),
        (b"multipart/form-data; boundary=x", FORM % b"other", 404),
        (b"multipart/form-data; boundary=x", FORM % b"m" + FORM % b"other", 400),
    ],
    ids=str,
)
async def test_what_a_client_must_not_write_is_refused_whatever_its_type_says(kind, body, status):
    engine = Vllm("a", embed)
    async with passing(engine) as f:
        asked = await f.answered(body, EMBED, [(b"content-type", kind)])
    assert asked.status == status
    assert engine.calls == []


async def test_method_query_form_and_answer_pass_as_they_came_but_for_what_proves_who_asks():
    engine = Raw("a", parts=(b"\x00one", b"two\xff"))
    headers = {**KIND, "authorization": "Bearer mine", "cookie": "a=b", "te": "trailers"}
    async with front(engine, pass_other_paths=True) as f, web(f) as client:
        path = "/v1/audio/transcriptions?language=de"
        answer = await client.put(path, content=FORM % b"m", headers=headers)
    assert answer.content == b"\x00onetwo\xff"
    assert (answer.headers["x-own"], answer.headers.get("keep-alive")) == ("1", None)
    assert engine.bodies == [FORM % b"fleet"]
    head = engine.heads[0]
    assert head[0] == "PUT /v1/audio/transcriptions?language=de HTTP/1.1"
    sent = {line.split(": ")[0]: line.split(": ")[1] for line in head[1:]}
    assert sent["authorization"] == "Bearer a"
    assert sent["content-type"] == KIND["content-type"]
    assert not {"cookie", "te"} & sent.keys()


async def test_an_answer_streams_to_the_client_line_by_line_with_the_name_that_it_asked_for():
    lines = b'data: {"model":"fl', b'eet"}\n\n', b'data: {"model": "fleet", "end": 1}\n\n'
    engine = Raw("a", parts=lines, kind="text/event-stream; charset=utf-8")
    async with passing(engine) as f:
        asked = await f.answered({"model": "m"}, "/v1/responses")
        assert asked.text == 'data: {"model":"m"}\n\ndata: {"model":"m", "end": 1}\n\n'
        engine.parts = lines[2:]
        engine.went.clear()
        asked = f.ask({"model": "m"}, "/v1/responses")
        await asked.reads('data: {"model":"m", "end": 1}')
        assert not asked.whole.done()
        assert pod_loads(f.state)["a"]["requests"] == 1
        assert f.state.idle_s() == 0
        await asked.leave()
        assert pod_loads(f.state)["a"]["requests"] == 0
        assert f.count("argosy_gateway_other_requests_total", result="client_gone") == 1


async def test_an_answer_that_breaks_off_is_not_whole_for_the_client():
    async def breaks(call):
        await call.begin_stream()
        await call.raw(b"one")
        call.writer.close()

    async with front(Vllm("a", breaks), pass_other_paths=True) as f, web(f) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(EMBED, json={"model": "m"})
        assert f.count("argosy_gateway_other_requests_total", result="failed") == 1


async def test_another_pod_is_asked_only_if_nothing_was_sent():
    async def closes(call):
        call.writer.close()

    gone, engine = Vllm("gone", embed), Vllm("a", closes)
    async with passing(gone, engine) as f:
        await gone.stop()
        for _ in range(6):
            assert (await f.answered({"model": "m"}, EMBED)).status == 503
    assert len(engine.calls) == 6
    assert gone.calls == []


async def test_pods_of_our_engine_and_of_pairs_are_not_asked():
    ours, decode = Engine("ours"), Vllm("d", embed, Role.DECODE)
    async with passing(ours, decode, queue_timeout_s=0.0) as f:
        assert (await f.answered({"model": "m"}, EMBED)).status == 503
    assert ours.calls == decode.calls == []


@pytest.mark.parametrize(
    "path",
    ["/v1/../metrics", "/v1/./a", "/v1//a", "/v1/a%2e", "/v2/rerank", "/v1/load_lora_adapter"],
)
async def test_other_paths_than_plain_ones_below_v1_reach_no_engine(path):
    engine = Vllm("a", embed)
    async with passing(engine) as f:
        assert (await f.answered({"model": "m"}, path)).status == 404
    assert engine.calls == []


async def test_without_the_setting_the_answer_says_which_fleets_take_other_paths():
    async with direct(Vllm("a", embed)) as f:
        asked = await f.answered({"model": "m"}, EMBED)
    assert asked.status == 404
    assert "type vllm or sglang in mode colocated" in asked.text


async def test_a_body_has_the_limits_of_any_other():
    async with passing(Vllm("a", embed), limits=Limits(body_bytes=100)) as f:
        asked = await f.answered(b"x" * 101, EMBED, [(b"content-type", b"audio/wav")])
    assert asked.status == 413


@pytest.mark.parametrize("name", [b"m", b"a model"])
def test_a_forms_model_is_found_beside_a_file_that_is_called_so(name):
    assert form_models(FORM % name, b"x") == [name.decode()]
    assert rename_form_model(FORM % name, b"x", "fleet") == FORM % b"fleet"
    assert form_models(b"no form", b"x") == []
