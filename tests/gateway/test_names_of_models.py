"""A fleet with several names for its model, in front of engines that know one of their own."""

import json
from dataclasses import replace

import httpx
import pytest

from argosy_gateway.pods.endpoints import Role, State, endpoint_of_pod
from tests.gateway.engines import Engine, front
from tests.gateway.pods.test_watch import pod

COMMANDS = [
    (["argosy"], ["engine", "serve", "--served-name", "chat", "--role", "decode"], "chat"),
    (["argosy"], ["engine", "serve", "--served-name", "a", "b", "--role", "decode"], "a"),
    (["vllm"], ["serve", "/models", "--served-model-name", "chat", "other"], "chat"),
    (["python"], ["-m", "sglang.launch_server", "--served-model-name=org/chat"], "org/chat"),
    (["own-engine"], ["--port", "8000"], None),
    (["argosy"], ["engine", "serve", "--served-name"], None),
    (None, None, None),
]


@pytest.mark.parametrize(("command", "args", "name"), COMMANDS)
def test_a_pods_command_line_says_by_which_name_its_engine_knows_the_model(command, args, name):
    made = pod("a")
    made["spec"] = {"containers": [{"name": "engine", "command": command, "args": args}]}
    found = endpoint_of_pod(made)
    assert found is not None
    assert (found.model, found.role, found.state) == (name, Role.COLOCATED, State.SERVING)


async def knows_one_name(call):
    """As an engine that knows its model as `own` alone: each event has that name."""
    if call.body["model"] != "own":
        await call.status(404, {"error": {"message": "no", "code": "model_not_found"}})
    elif call.body.get("stream"):
        await call.begin_stream()
        for text in ("one", ' "model":"own"'):
            chunk = {"model": "own", "created": 9, "choices": [{"delta": {"content": text}}]}
            await call.event(json.dumps(chunk).encode())
        await call.event(b'{"model": "own", "choices": [], "usage": null}')
        await call.finish(2)
    else:
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        choice = {"message": {"content": "one two three"}}
        await call.status(200, {"model": "own", "choices": [choice], "usage": usage})


def client(f):
    return httpx.AsyncClient(base_url=f.url, trust_env=False)


def ask(name, **more):
    return {"model": name, "prompt": "hi", **more}


@pytest.mark.parametrize("name", ["m", "org/m:2", "own"])
async def test_engines_serve_every_name_and_answers_have_the_one_that_was_asked_for(name):
    engine = Engine("a", knows_one_name, model="own")
    async with front(engine, served_names=("m", "org/m:2", "own")) as f:
        async with client(f) as web:
            whole = await web.post("/v1/completions", json=ask(name))
            assert (whole.status_code, whole.json()["model"]) == (200, name)
            stream = await web.post("/v1/completions", json=ask(name, stream=True))
        chunks = [line[6:] for line in stream.text.split("\n\n") if line.startswith("data: {")]
        named = [json.loads(chunk) for chunk in chunks if '"model"' in chunk]
        assert len(named) >= 3
        assert {chunk.get("model") for chunk in named} == {name}
        assert named[1]["choices"][0]["delta"]["content"] == ' "model":"own"'


async def test_a_rename_under_traffic_has_no_404():
    """Engines of before and of after know different names, and clients use both the fleet's."""
    old, new = Engine("old", knows_one_name, model="own"), Engine("new", model=None)
    async with front(old, new, served_names=("before",)) as f, client(f) as web:
        for names in (("before",), ("before", "after"), ("after",)):
            f.state.reconfigure(replace(f.state.config, served_names=names))
            for name in names * 16:  # of which each engine gets some, as good as always
                assert (await web.post("/v1/completions", json=ask(name))).status_code == 200
        gone = await web.post("/v1/completions", json=ask("before"))
    assert gone.status_code == 404
    assert "this fleet serves 'after'" in gone.json()["error"]["message"]
    assert {call.body["model"] for call in old.calls} == {"own"}
    assert {call.body["model"] for call in new.calls} == {"before", "after"}
