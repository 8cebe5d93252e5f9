"""LoRA adapters: their names reach engines that have them, and never the model itself."""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.options import KEY, Settings
from argosy_gateway.pods.endpoints import Role, State, endpoint_of_pod
from argosy_gateway.wire.openai import read_completion
from tests.gateway.direct import direct
from tests.gateway.engines import Engine, answer, fail
from tests.gateway.pods.test_watch import pod
from tests.gateway.relay.test_led_handovers import computed
from tests.gateway.server.asked import gateway_of

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
QUEUED = {"slo": Slo(1.0, 0.05), "queue": "deadline"}


@dataclass
class Vllm(Engine):
    """A pod of vLLM, which knows the model as `fleet`, and its adapters."""

    model: str | None = "fleet"
    adapters: frozenset[str] = field(default_factory=lambda: frozenset(("sql",)))
    answers_get: bool = True

    def endpoint(self, state=State.SERVING):
        of_vllm = {"engine": "vllm", "adapters": self.adapters}
        return replace(super().endpoint(state), **of_vllm)

    def pod(self):
        return "server", "uvicorn"


def serving(*engines, **settings):
    return direct(*engines, adapters=("sql",), **settings)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_adapters_name_reaches_the_engine_and_the_models_is_translated(stream):
    engine = Vllm("a")
    async with serving(engine) as f:
        for name in ("sql", "m"):
            asked = await f.answered({**CHAT, "model": name, "stream": stream})
            assert asked.status == 200
        assert f.count("argosy_requests_by_model_total", model="sql") == 1
        assert f.count("argosy_requests_by_model_total", model="m") == 1
    assert [call.body["model"] for call in engine.calls] == ["sql", "fleet"]


@pytest.mark.parametrize("settings", [{}, QUEUED], ids=["at once", "queue"])
async def test_during_a_rollout_only_pods_that_have_the_adapter_are_asked_for_it(settings):
    old, new = Vllm("old", adapters=frozenset()), Vllm("new", revision="bbbbbbbb")
    async with serving(old, new, **settings) as f:
        for _ in range(12):
            assert (await f.answered({**CHAT, "model": "sql"})).status == 200
    assert len(new.calls) == 12


async def test_a_request_waits_for_a_pod_that_has_its_adapter():
    old = Vllm("old", adapters=frozenset())
    async with serving(old) as f:
        asked = f.ask({**CHAT, "model": "sql"})
        await f.until(lambda: f.state.relays)
        await asyncio.sleep(0)
        assert not asked.whole.done()
        f.state.directory.put(replace(old.endpoint(), adapters=frozenset(("sql",))))
        await asked.whole
    assert asked.status == 200


async def test_a_pod_that_fails_an_adapters_request_is_followed_by_another_one_that_has_it():
    engines = [Vllm(name, fail) for name in "ab"]
    engines.append(Vllm("old", adapters=frozenset()))
    async with serving(*engines) as f:
        assert (await f.answered({**CHAT, "model": "sql"})).status == 500
    assert [len(engine.calls) for engine in engines] == [1, 1, 0]


async def test_prefill_computes_the_prompt_under_the_name_that_decode_gets():
    prefill, decode = Vllm("p", computed, Role.PREFILL), Vllm("d", answer, Role.DECODE)
    async with serving(prefill, decode) as f:
        await f.answered({**CHAT, "model": "sql"})
    asked = [call.body["model"] for call in (*prefill.calls, *decode.calls)]
    assert asked == ["sql", "sql"]


async def test_the_list_of_models_has_adapters_with_the_model_that_they_belong_to():
    async with serving(Vllm("a")) as f:
        listed = json.loads((await f.answered(b"", "/v1/models", method="GET")).text)
        one = json.loads((await f.answered(b"", "/v1/models/sql", method="GET")).text)
    assert [(m["id"], m.get("parent")) for m in listed["data"]] == [("m", None), ("sql", "m")]
    assert one["id"] == "sql"


async def test_a_prompt_is_tokenised_by_a_pod_that_has_the_adapter():
    async def tokens(call):
        await call.status(200, {"tokens": [1]})

    old, new = Vllm("old", tokens, adapters=frozenset()), Vllm("new", tokens)
    async with serving(old, new) as f:
        for _ in range(8):
            await f.answered({"model": "sql", "prompt": "hi"}, "/tokenize")
    assert old.calls == []
    assert {call.body["model"] for call in new.calls} == {"sql"}


def test_adapters_follow_the_settings():
    gateway = gateway_of(served_names=(), settings_name="f-gateway")
    take = Settings(gateway)
    take({KEY: json.dumps(["--served-name", "m", "--adapter", "sql", "--adapter", "chat"])})
    assert gateway.names == ("m", "sql", "chat")
    take({KEY: json.dumps(["--served-name", "m"])})
    assert gateway.names == ("m",)


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--lora-modules", "a=/x", "b=/y=z", "--port", "8000"], {"a", "b"}),
        (["--lora-modules"], set()),
        ([], set()),
    ],
)
def test_a_pods_command_line_says_which_adapters_it_has(args, names):
    made = pod("a")
    made["spec"] = {"containers": [{"name": "engine", "command": ["vllm", "serve"], "args": args}]}
    found = endpoint_of_pod(made)
    assert found is not None
    assert found.adapters == names


def test_prompts_of_an_adapter_share_no_cache_with_those_of_the_model():
    def read(model, **more):
        body = {"model": model, "prompt": "x" * 600, **more}
        return read_completion(
            "/v1/completions",
            json.dumps(body).encode(),
            served_names=("m", "n"),
            adapters=("sql", "other"),
            prefixes=True,
        )

    def keys(asked):
        return {asked.prompt_start, asked.cache_key, *asked.prefixes}

    of_model, of_sql, of_other = (
        keys(read(name, prompt_cache_key="k")) for name in ("m", "sql", "other")
    )
    assert of_model == keys(read("n", prompt_cache_key="k"))
    assert not of_model & of_sql
    assert not of_sql & of_other
