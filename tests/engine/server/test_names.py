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
