"""The engine's answers and errors, read by the client library that users have."""

import openai
import pytest

from tests.engine.processes import eventually, sim_engines

CHAT = [{"role": "user", "content": "say something"}]


@pytest.fixture(scope="module")
def engine():
    with sim_engines("colocated") as (started,):
        yield started


@pytest.fixture(scope="module")
def client(engine):
    base = f"http://127.0.0.1:{engine.api}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=20) as made:
        yield made


def test_t46_a_whole_chat_answer_has_text_reason_and_usage(client):
    answer = client.chat.completions.create(model="m", messages=CHAT, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].message.content.split()) == 3
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3


def test_t46_a_streamed_chat_equals_the_whole_one_and_ends_with_usage(client):
    whole = client.chat.completions.create(model="m", messages=CHAT, max_tokens=4)
    stream = client.chat.completions.create(
        model="m", messages=CHAT, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.completion_tokens) == ([], 4)


def test_t46_errors_arrive_as_the_librarys_own_types(client):
    with pytest.raises(openai.NotFoundError) as absent:
        client.chat.completions.create(model="other", messages=CHAT)
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="m", prompt=[5] * 3000, max_tokens=1)
    assert too_long.value.code == "context_length_exceeded"
    assert "shorten it" in too_long.value.body["message"]
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="m", messages=CHAT, temperature="hot")
    assert wrong.value.param == "temperature"


def test_t46_closing_a_stream_ends_its_request(client, engine):
    stream = client.completions.create(model="m", prompt="a", max_tokens=1500, stream=True)
    next(iter(stream))
    assert engine.page("/drain").json()["running"] == 1
    stream.close()
    eventually(lambda: engine.page("/drain").json()["running"] == 0, within_s=3)


@pytest.mark.parametrize(
    ("param", "asked"),
    [
        ("max_completion_tokens", {"max_completion_tokens": 100_000}),
        ("top_p", {"top_p": 0}),
        ("seed", {"seed": 2**63}),
        ("allowed_token_ids", {"extra_body": {"allowed_token_ids": []}}),
        ("stop_token_ids", {"extra_body": {"stop_token_ids": [10**6]}}),
        ("logit_bias", {"logit_bias": {"1000000": 1}}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
        ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": 1}}),
    ],
)
def test_the_package_is_told_the_parameter_that_it_wrote(client, param, asked):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "m", "messages": CHAT, **asked})
    assert refused.value.param == param
