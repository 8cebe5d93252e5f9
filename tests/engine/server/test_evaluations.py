"""What guidellm 0.8.1, lm-eval 0.4.13 and vLLM 0.32's bench send, and what they read of it.

docs/explanation/engine.md says how the programs themselves were run.
"""

import json

import pytest

from tests.engine.server.spelling import Engine, events_of

GUIDELLM = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "ignore_eos": True,
}
TEXT = [{"type": "text", "text": "1 0 m0 Finish medical want"}]
LM_EVAL = {"model": "m", "temperature": 0, "seed": 1234}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (
            "/v1/chat/completions",
            {"max_completion_tokens": 3, "messages": [{"role": "user", "content": TEXT}]},
        ),
        ("/v1/completions", {"max_tokens": 3, "prompt": "1 0 m0 Finish medical want"}),
    ],
)
async def test_t48_guidellm_gets_as_many_tokens_as_it_asked_for(path, more):
    answer = await Engine().post(path, {**GUIDELLM, **more})
    assert answer.status_code == 200, answer.text
    *events, done = events_of(answer.text)
    assert done.data == "[DONE]"
    usages = [event.chunk["usage"] for event in events if event.chunk["usage"]]
    assert len(usages) > 1
    assert all(usage["prompt_tokens"] > 0 for usage in usages)
    assert usages[-1]["completion_tokens"] == 3
    assert events[-1].chunk["choices"] == []


VLLM = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (
            "/v1/completions",
            {"prompt": "wind ol", "repetition_penalty": 1.0, "max_tokens": 5, "logprobs": None},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": TEXT}], "max_completion_tokens": 5},
        ),
    ],
)
async def test_t48_vllm_bench_serve_counts_the_tokens_that_it_asked_for(path, more):
    """TTFT is the time of the first chunk with a choice: none may come before the first token."""
    engine = Engine()
    body = {**VLLM, **more, "ignore_eos": True}
    answer = await engine.post(path, body, x_request_id="bench-c11d3dc4-0")
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "bench-c11d3dc4-0")
    *events, done = events_of(answer.text)
    assert done.data == "[DONE]"
    *tokens, last = [event.chunk for event in events]
    assert all(chunk["choices"] for chunk in tokens)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens"] > 0


async def test_t48_lm_evals_remote_tokenizer_gets_its_ids_back_without_naming_a_model():
    engine = Engine()
    asked = {"prompt": "Paris", "add_special_tokens": False}
    ids = (await engine.post("/tokenize", asked)).json()["tokens"]
    assert ids == list(b"Paris")
    assert (await engine.post("/detokenize", {"tokens": ids})).json() == {"prompt": "Paris"}


async def test_t48_lm_eval_reads_the_loglikelihood_of_a_continuation():
    ids = [[ord(c) for c in "The capital of France is Paris"]]
    asked = {**LM_EVAL, "prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True}
    answer = await Engine().post("/v1/completions", asked)
    (choice,) = answer.json()["choices"]
    told, context = choice["logprobs"], len("The capital of France is")
    values, tops = told["token_logprobs"], told["top_logprobs"]
    assert len(values) == len(tops) == len(ids[0]) + 1  # its last one is generated
    assert values[0] is None
    continuation = values[context:-1]
    assert all(value < 0 for value in continuation)
    greedy = [
        value == max(top.values())
        for value, top in zip(continuation, tops[context:-1], strict=True)
    ]
    assert len(greedy) == len(" Paris")


async def test_t48_lm_eval_reads_a_text_up_to_its_stop():
    asked = {**LM_EVAL, "max_tokens": 12, "stop": ["\n", ".", "<|im_end|>"]}
    prompt = [[ord(c) for c in "The capital of France is"]]
    answer = await Engine().post("/v1/completions", {"prompt": prompt, **asked})
    (choice,) = answer.json()["choices"]
    assert isinstance(choice["text"], str)
    assert json.loads(answer.text)["choices"][0]["index"] == 0
