"""What the gateway asks an engine for without a step: it counts no request and reserves nothing."""

import asyncio
import json

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Role
from tests.gateway.direct import direct
from tests.gateway.engines import Call, Engine, close_early, drain, fail

ASK = {"model": "m", "prompt": "hi"}
SLO = Slo(ttft_s=500.0, tpot_s=50.0)


async def tokens(call: Call) -> None:
    await call.status(200, {"tokens": [1, 2], "count": 2, "max_model_len": 9})


async def too_long(call: Call) -> None:
    await call.status(400, {"error": {"message": "too long", "code": None}})


async def busy(call: Call) -> None:
    await call.status(429, {"error": {"message": "full"}}, retry_after="1")


def counted(f) -> list[str]:
    """Series of requests that are not 0."""
    return [
        sample.name
        for family in f.state.metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith(("argosy_requests", "argosy_slo", "argosy_gateway_ttft"))
        and sample.name.endswith(("_total", "_count"))
        and sample.value
    ]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("role", list(Role))
async def test_an_engine_of_any_role_is_asked_and_nothing_is_counted(path, role):
    engine = Engine("a", tokens, role)
    async with direct(engine, slo=SLO) as f:
        answer = await f.answered(ASK, path)
        assert answer.status == 200
        assert json.loads(answer.text)["tokens"] == [1, 2]
        assert answer.headers["x-request-id"] == engine.calls[0].headers["x-request-id"]
        assert [(call.path, call.body) for call in engine.calls] == [(path, ASK)]
        assert counted(f) == []
        assert f.verdicts() == {}
        assert not f.state.relays
        assert all(load.prompt_tokens == 0 for load in f.state.in_flight.loads.values())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**ASK, "model": "other"}, 404, "model_not_found"),
        ({"model": 5, "prompt": "hi"}, 400, None),
        (b"[1]", 400, None),
        (b"{", 400, None),
        (b'{"a":' * 100_000, 400, None),
    ],
)
async def test_a_wrong_question_reaches_no_engine(body, status, code):
    engine = Engine("a", tokens)
    async with direct(engine) as f:
        answer = await f.answered(body, "/tokenize")
        assert (answer.status, json.loads(answer.text)["error"]["code"]) == (status, code)
        assert engine.calls == []
        assert counted(f) == []


@pytest.mark.parametrize(("behaviour", "status"), [(too_long, 400), (busy, 429)])
async def test_an_engines_refusal_is_passed_on(behaviour, status):
    async with direct(Engine("a", behaviour)) as f:
        answer = await f.answered(ASK, "/tokenize")
        assert answer.status == status
        assert answer.headers.get("retry-after") == ("1" if status == 429 else None)


@pytest.mark.parametrize("broken", [fail, drain, close_early])
async def test_another_engine_is_asked_when_one_fails(broken):
    engines = [Engine("a", broken), Engine("b", tokens)]
    async with direct(*engines) as f:
        for _ in range(8):
            assert (await f.answered(ASK, "/tokenize")).status == 200
        assert len(engines[1].calls) == 8


@pytest.mark.parametrize("engines", [[], [Engine("a", fail)]])
async def test_without_an_engine_the_client_is_told_to_come_again(engines):
    async with direct(*engines) as f:
        answer = await f.answered(ASK, "/detokenize")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json.loads(answer.text)["error"]["code"] == "no_engine_ready"


async def test_a_client_that_leaves_ends_the_engines_call():
    asked, ended = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> None:
        asked.set()
        await call.gone()
        ended.set()

    engine = Engine("a", slow)
    async with direct(engine, Engine("b", slow)) as f:
        client = f.ask(ASK, "/tokenize")
        async with asyncio.timeout(5):
            await asked.wait()
            await client.leave()
            await ended.wait()
        assert client.status == 0
        assert len(engine.calls) <= 1


def says_its_context(length):
    async def behaviour(call: Call) -> None:
        models = {"data": [{"id": "own", "max_model_len": length}]}
        await call.status(200, models if call.path == "/v1/models" else {"tokens": []})

    return behaviour


async def models_of(f, path="/v1/models"):
    return json.loads((await f.answered({}, path, method="GET")).text)


async def test_the_list_of_models_has_the_context_that_an_engine_says_and_asks_for_it_once():
    engine = Engine("a", says_its_context(4096), answers_get=True)
    async with direct(engine) as f:
        for _ in range(2):
            (model,) = (await models_of(f))["data"]
            assert (model["id"], model["max_model_len"]) == ("m", 4096)
            assert model["created"] > 1_700_000_000
        assert (await models_of(f, "/v1/models/m"))["max_model_len"] == 4096
        assert [(call.method, call.path) for call in engine.calls] == [("GET", "/v1/models")]


async def test_a_new_revision_is_asked_anew():
    old = Engine("a", says_its_context(4096), answers_get=True)
    new = Engine("b", says_its_context(8192), revision="bbbbbbbb", answers_get=True)
    async with direct(old, new) as f:
        for engine, length in ((old, 4096), (new, 8192)):
            f.state.directory.replace([engine.endpoint()])
            assert (await models_of(f))["data"][0]["max_model_len"] == length
