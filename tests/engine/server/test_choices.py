"""Answers of several choices and prompts, with their prompt, probabilities and token ids."""

import json
from dataclasses import replace

import pytest

from argosy_engine.config import EngineConfig
from tests.engine.server.spelling import Engine, SpellingRunner, likely
from tests.kv.nodes import BLOCK

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAID = "so it goes, so it goes"


def ask(**more) -> dict:
    return {"model": "m", "seed": 1, "max_tokens": 9, "prompt": SAID, **more}


def chat(**more) -> dict:
    body = ask(messages=[{"role": "user", "content": SAID}], **more)
    del body["prompt"]
    return body


async def answer(body: dict, path: str = COMPLETIONS, engine: Engine | None = None) -> dict:
    response = await (engine or Engine()).post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(body: dict, path: str = COMPLETIONS) -> list[dict]:
    response = await Engine().post(path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    parts = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def streamed(events: list[dict]) -> dict[int, tuple[str, str, object]]:
    """Text, finish reason and stop reason by the index of the choice."""
    texts: dict[int, str] = {}
    ends: dict[int, tuple[str, object]] = {}
    for event in events:
        for choice in event["choices"]:
            text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            if choice["finish_reason"]:
                assert choice["index"] not in ends
                ends[choice["index"]] = (choice["finish_reason"], choice["stop_reason"])
    assert texts.keys() == ends.keys()
    return {index: (text, *ends[index]) for index, text in texts.items()}


def whole(body: dict) -> dict[int, tuple[str, str, object]]:
    return {
        choice["index"]: (
            choice["message"]["content"] if "message" in choice else choice["text"],
            choice["finish_reason"],
            choice["stop_reason"],
        )
        for choice in body["choices"]
    }


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, ask), (CHAT, chat)])
async def test_t45_each_choice_reads_like_a_request_with_the_next_seed(path, body):
    found = await answer(body(n=3), path)
    alone = [whole(await answer(body(seed=1 + i), path))[0] for i in range(3)]
    assert whole(found) == dict(enumerate(alone))
    assert streamed(await chunks(body(n=3), path)) == whole(found)


async def test_choices_of_one_prompt_compute_it_once():
    engine = Engine()
    found = await answer(ask(n=4), engine=engine)
    beyond = len(SAID) % BLOCK or BLOCK  # what no full block holds is computed by each
    assert engine.runner.prompt_tokens == len(SAID) + 3 * beyond
    assert engine.loop.scheduler.pool.used == 0
    usage = found["usage"]
    assert usage["prompt_tokens"] == len(SAID)
    assert 4 <= usage["completion_tokens"] <= 4 * 9


async def test_several_prompts_are_answered_in_their_order():
    prompts = ["a b", SAID, [97, 98]]
    found = await answer(ask(prompt=prompts, n=2))
    alone = [
        whole(await answer(ask(prompt=prompt, seed=seed)))[0]
        for prompt in prompts
        for seed in (1, 2)
    ]
    assert whole(found) == dict(enumerate(alone))
    assert found["usage"]["prompt_tokens"] == 3 + len(SAID) + 2
    assert streamed(await chunks(ask(prompt=prompts, n=2))) == whole(found)


async def test_an_echo_stands_before_the_text():
    plain = whole(await answer(ask()))[0]
    found = await answer(ask(echo=True))
    assert whole(found)[0] == (SAID + plain[0], *plain[1:])
    assert streamed(await chunks(ask(echo=True))) == whole(found)
    ids = await answer(ask(prompt=list(SAID.encode()), echo=True))
    assert whole(ids) == whole(found)


async def test_a_loglikelihood_is_the_prompts_own():
    """What lm-eval asks: echo, logprobs, and one token or none."""
    found = (await answer(ask(echo=True, logprobs=1, max_tokens=0)))["choices"][0]
    assert found["text"] == SAID
    told = found["logprobs"]
    assert told["tokens"] == list(SAID)
    assert told["token_logprobs"] == [None, *(-ord(letter) / 8 for letter in SAID[1:])]
    assert told["top_logprobs"][0] is None
    assert told["top_logprobs"][1] == {"a": 0.0, "o": -ord("o") / 8}
    assert told["text_offset"] == list(range(len(SAID)))
    more = (await answer(ask(echo=True, logprobs=1, max_tokens=1)))["choices"][0]
    assert more["logprobs"]["token_logprobs"][: len(SAID)] == told["token_logprobs"]
    assert len(more["logprobs"]["tokens"]) == len(SAID) + 1


async def test_t45_a_chat_tells_the_probabilities_of_each_token():
    body = chat(logprobs=True, top_logprobs=2, ignore_eos=True)
    found = (await answer(body, CHAT))["choices"][0]["logprobs"]["content"]
    assert len(found) == 9
    token = found[0]["token"].encode()[0] if len(found[0]["token"].encode()) == 1 else None
    if token is not None:
        assert found[0]["logprob"] == -token / 8
    assert found[0]["bytes"] == list(found[0]["token"].encode())
    assert [top["token"] for top in found[0]["top_logprobs"]] == ["a", "b"]
    pieces = [
        entry
        for event in await chunks(body, CHAT)
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert pieces == found


async def test_t45_completions_stream_the_offsets_of_the_whole_answer():
    body = ask(logprobs=0, ignore_eos=True, echo=True)
    found = (await answer(body))["choices"][0]["logprobs"]
    told = [
        c["logprobs"] for event in await chunks(body) for c in event["choices"] if c["logprobs"]
    ]
    for name in found:
        assert [value for part in told for value in part[name]] == found[name]


async def test_token_ids_are_returned():
    body = ask(return_token_ids=True, ignore_eos=True)
    found = (await answer(body))["choices"][0]
    assert found["prompt_token_ids"] == list(SAID.encode())
    assert len(found["token_ids"]) == 9
    assert bytes(found["token_ids"]).decode(errors="replace") == found["text"]
    events = await chunks(body)
    assert [i for e in events for c in e["choices"] for i in c["token_ids"]] == found["token_ids"]
    talk = chat(return_token_ids=True, ignore_eos=True)
    assert (await answer(talk, CHAT))["prompt_token_ids"][:3] == list(b"use")
    assert (await chunks(talk, CHAT))[0]["prompt_token_ids"][:3] == list(b"use")


async def test_usage_comes_with_each_chunk_if_it_is_asked_for():
    options = {"include_usage": True, "continuous_usage_stats": True}
    for body, path in ((ask(n=2), COMPLETIONS), (chat(n=2), CHAT)):
        events = await chunks({**body, "stream_options": options, "ignore_eos": True}, path)
        *told, whole_answer = [event["usage"] for event in events]
        prompt = whole_answer["prompt_tokens"]
        assert whole_answer["completion_tokens"] == 18
        for index in (0, 1):
            mine = [
                u for e, u in zip(events, told, strict=False) if e["choices"][0]["index"] == index
            ]
            counts = [usage["completion_tokens"] for usage in mine]
            assert counts == sorted(counts)
            assert (counts[0] == 0) == (path == CHAT)  # the chunk that names the role
            assert counts[-1] == 9
            assert {u["total_tokens"] - u["completion_tokens"] for u in mine} == {prompt}


async def test_the_stop_is_named():
    text = whole(await answer(ask(ignore_eos=True)))[0][0]
    found = await answer(ask(ignore_eos=True, stop=["nowhere", text[3], text[2]]))
    assert whole(found)[0] == (text[: text.index(text[2])], "stop", text[2])
    ids = (await answer(ask(ignore_eos=True, return_token_ids=True)))["choices"][0]["token_ids"]
    found = await answer(ask(ignore_eos=True, stop_token_ids=[ids[0]]))
    assert whole(found)[0] == ("", "stop", ids[0])
    assert whole(await answer(ask(ignore_eos=True)))[0][1:] == ("length", None)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 10_000}, "n"),
        ({"n": 0}, "n"),
        ({"n": 65, "prompt": ["a", "b"]}, "n"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"best_of": 10_000}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 160}, "truncate_prompt_tokens"),
        ({"stop": ["x"] * 100}, "stop"),
    ],
)
async def test_what_is_too_much_or_does_not_go_together_is_refused(more, param):
    engine = Engine()
    response = await engine.post(COMPLETIONS, ask(**more))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert engine.loop.scheduler.pool.used == 0
    assert not engine.loop.scheduler.sequences


async def test_an_engine_that_only_simulates_says_so():
    engine = Engine()
    engine.runner.knows_likely = False
    for more in ({"logprobs": 1}, {"prompt_logprobs": 1}, {"best_of": 2}):
        response = await engine.post(COMPLETIONS, ask(**more))
        assert response.status_code == 400
        assert "simulates" in response.json()["error"]["message"]


async def test_when_one_choice_fails_the_others_end_with_it():
    class Failing(SpellingRunner):
        steps = 0

        def execute(self, plan):
            self.steps += 1
            if self.steps == 4:
                raise RuntimeError("broken")
            return super().execute(plan)

    engine = Engine()
    engine.loop.runner = Failing(EngineConfig(model="x", served_name="m", block_size=BLOCK))
    response = await engine.post(COMPLETIONS, ask(n=3, ignore_eos=True))
    assert response.status_code == 500
    engine.loop._take_in(wait=False)
    assert not engine.loop.scheduler.sequences
    assert engine.loop.scheduler.pool.used == 0
    assert likely(97, 0) == ((97, -97 / 8, 7),)


async def test_beyond_what_may_wait_clients_are_told_when_to_come_again():
    engine = Engine()
    engine.loop.scheduler.limits = replace(engine.loop.scheduler.limits, max_queue=0)
    response = await engine.post(COMPLETIONS, ask())
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["code"] == "queue_full"


async def test_blocks_are_shared_by_requests_of_one_salt_alone():
    engine = Engine()

    async def cached(**more) -> int:
        usage = (await answer(ask(max_tokens=1, **more), engine=engine))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert await cached() == 0
    assert await cached(cache_salt="a") == 0
    shared = (len(SAID) - 1) // BLOCK * BLOCK
    assert shared > 0
    assert await cached() == shared
    assert await cached(cache_salt="a") == shared
    assert await cached(cache_salt="b") == 0
    assert await cached(cache_salt="a", n=2) == shared
