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


@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": ""}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_without_a_model_is_answered_by_the_first_name(given, stream):
    engine = Engine(other_names=("org/other",))
    body = {"prompt": "hi", "max_tokens": 2, "stream": stream, **given}
    answer = await engine.post("/v1/completions", body)
    assert answer.status_code == 200
    assert '"model": "m"' in answer.text or '"model":"m"' in answer.text


@pytest.mark.parametrize("given", [7, False, ["m"]])
async def test_a_model_that_is_no_text_is_refused(given):
    answer = await Engine().post("/v1/completions", {"model": given, "prompt": "hi"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("name", ["m", "org/other"])
async def test_a_model_is_found_by_its_name_and_looks_as_in_the_list(name):
    engine = Engine(other_names=("org/other",))
    found = await engine.get(f"/v1/models/{name}")
    listed = {model["id"]: model for model in (await engine.get("/v1/models")).json()["data"]}
    assert listed.keys() == {"m", "org/other"}
    assert (found.status_code, found.json()) == (200, listed[name])
    assert found.json()["max_model_len"] == 160


@pytest.mark.parametrize("name", ["third", "org", "m/x"])
async def test_a_model_that_is_not_there_is_a_404_in_the_form_of_openai(name):
    answer = await Engine(other_names=("org/other",)).get(f"/v1/models/{name}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["type"] == "invalid_request_error"
