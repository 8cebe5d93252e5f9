"""An engine with several names for its model."""

import pytest

from tests.engine.server.spelling import Engine


@pytest.mark.parametrize("name", ["m", "org/other"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_the_name_that_was_asked_for(name, stream):
    engine = Engine(other_names=("org/other",))
    body = {"model": name, "prompt": "hi", "max_tokens": 2, "stream": stream}
    answer = await engine.post("/v1/completions", body)
    assert answer.status_code == 200
    assert f'"model": "{name}"' in answer.text or f'"model":"{name}"' in answer.text


async def test_a_name_that_it_has_not_is_refused():
    body = {"model": "third", "prompt": "hi", "max_tokens": 2}
    assert (await Engine(other_names=("other",)).post("/v1/completions", body)).status_code == 404


@pytest.mark.parametrize("name", ["m", "org/other"])
async def test_a_model_is_found_by_its_name_and_looks_as_in_the_list(name):
    engine = Engine(other_names=("org/other",))
    found = await engine.get(f"/v1/models/{name}")
    listed = {model["id"]: model for model in (await engine.get("/v1/models")).json()["data"]}
    assert listed.keys() == {"m", "org/other"}
    assert (found.status_code, found.json()) == (200, listed[name])
    assert found.json()["max_model_len"] == 160
