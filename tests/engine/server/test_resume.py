"""A stream that is cut anywhere and goes on at another engine reads as if nothing had happened."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.server.spelling import Engine, Event, events_of

IDS = {"x_argosy_token_ids": "1", "x_request_id": "r-1"}
PATHS = ("/v1/completions", "/v1/chat/completions")


def ask(path: str, **more) -> dict:
    prompt = {"prompt": "so it goes"}
    if path.endswith("chat/completions"):
        prompt = {"messages": [{"role": "user", "content": "so it goes"}]}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return {"model": "m", "seed": 1, **prompt, **options, **more}


async def begun(path: str, body: dict) -> list[Event]:
    """The events of an undisturbed stream."""
    response = await Engine().post(path, body, **IDS)
    assert response.status_code == 200, response.text
    assert "x-argosy-resumed" not in response.headers
    return events_of(response.text)


def sent_of(events: list[Event]) -> dict:
    """What a gateway knows of these events."""
    ids = [i for event in events for i in event.ids or ()]
    created = events[0].chunk["created"] if events else 1
    return {"token_ids": ids, "closed": any(e.closing for e in events), "created": created}


async def gone_on(path: str, body: dict, events: list[Event]) -> list[Event]:
    """The events with which another engine goes on."""
    sent = sent_of(events)
    body = {**body, "argosy_resume": sent}
    response = await Engine().post(path, body, x_argosy_resume="1", **IDS)
    assert response.status_code == 200, response.text
    assert response.headers["x-argosy-resumed"] == str(len(sent["token_ids"]))
    return events_of(response.text)


def read(events: list[Event]) -> tuple:
    """All that a client makes of a stream."""
    return (
        "".join(event.text for event in events),
        [event.reason for event in events if event.reason],
        [e.chunk["usage"] for e in events if e.data != "[DONE]" and e.chunk["usage"]],
        {(e.chunk["id"], e.chunk["created"]) for e in events if e.data != "[DONE]"},
        [event.data for event in events].count("[DONE]"),
        sum("role" in event.data for event in events),
    )


def without_cached(seen: tuple) -> tuple:
    """A prompt with sent tokens finds other blocks in the cache."""
    usages = [{k: v for k, v in usage.items() if k != "prompt_tokens_details"} for usage in seen[2]]
    return *seen[:2], usages, *seen[3:]


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 31),
    max_tokens=st.integers(1, 60),
    least=st.floats(0, 1),
    stops=st.lists(st.sampled_from(["ab", "é🙂", " a", "aaa", "\ufffd", "b a"]), max_size=3),
    stop_ids=st.lists(st.sampled_from([ord("b"), 0xC3]), max_size=1),
    ignore_eos=st.booleans(),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
@example(1, 8, 0.0, [], [], True, [0.9])
def test_a_cut_stream_reads_like_a_whole_one(
    path, seed, max_tokens, least, stops, stop_ids, ignore_eos, cuts
):
    body = ask(
        path, seed=seed, max_tokens=max_tokens, min_tokens=int(least * max_tokens), stop=stops,
        stop_token_ids=stop_ids, ignore_eos=ignore_eos,
    )  # fmt: skip

    async def run():
        whole = await begun(path, body)
        have: list[Event] = []
        rest = whole
        for cut in cuts:
            have += rest[: int(cut * (len(rest) - 2))]  # after usage only [DONE] is missing
            if not have:
                return
            rest = await gone_on(path, body, have)
        assert without_cached(read(have + rest)) == without_cached(read(whole))
        assert [i for e in have + rest for i in e.ids or ()] == [
            i for e in whole for i in e.ids or ()
        ]

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("in_each_chunk", [False, True], ids=["usage of the end", "of each chunk"])
async def test_every_cut_of_one_stream_is_mended_and_its_usage_goes_on(path, in_each_chunk):
    options = {"include_usage": True, "continuous_usage_stats": in_each_chunk}
    body = ask(path, max_tokens=40, stop=["b a"], ignore_eos=True, stream_options=options)
    whole = await begun(path, body)
    for cut in range(1, len(whole) - 1):
        rest = await gone_on(path, body, whole[:cut])
        assert without_cached(read(whole[:cut] + rest)) == without_cached(read(whole))


async def test_usage_counts_each_token_once_and_never_more_cached_than_prompt_tokens():
    body = ask(PATHS[0], max_tokens=12, ignore_eos=True)
    engine = Engine()
    first = events_of((await engine.post(PATHS[0], body, **IDS)).text)
    sent = {**body, "argosy_resume": sent_of(first[:8])}
    rest = await engine.post(PATHS[0], sent, x_argosy_resume="1", **IDS)
    usage = events_of(rest.text)[-2].chunk["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 12)
    assert usage["prompt_tokens_details"]["cached_tokens"] <= 10


async def test_nobody_sees_token_ids_who_did_not_ask_for_them():
    body = ask(PATHS[0], max_tokens=5)
    response = await Engine().post(PATHS[0], body)
    assert "argosy" not in response.text


async def test_a_client_that_writes_the_gateways_part_is_told_to_leave_it_out():
    body = ask(PATHS[0], argosy_resume={"token_ids": [1], "created": 1})
    response = await Engine().post(PATHS[0], body)
    assert response.status_code == 400
    assert "leave it out" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (None, "must be an object"),
        ([1], "must be an object"),
        ({"created": 1}, "token_ids must be a list of ids from 0 to 255"),
        ({"token_ids": [256], "created": 1}, "token_ids must be a list of ids from 0 to 255"),
        ({"token_ids": [-1], "created": 1}, "token_ids must be a list of ids from 0 to 255"),
        ({"token_ids": [True], "created": 1}, "token_ids must be a list of ids from 0 to 255"),
        ({"token_ids": [97]}, "created must be a time in whole seconds"),
        ({"token_ids": [97], "created": -1}, "created must be a time in whole seconds"),
        ({"token_ids": [3, 97], "created": 1}, "token_ids go on after the end of the answer"),
        ({"token_ids": [97] * 6, "created": 1}, "token_ids go on after the end of the answer"),
    ],
)
async def test_a_wrong_account_of_what_was_sent_is_refused(sent, says):
    body = ask(PATHS[0], max_tokens=5, argosy_resume=sent)
    response = await Engine().post(PATHS[0], body, x_argosy_resume="1")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "argosy_resume"
    assert error["message"].removeprefix("argosy_resume: ").startswith(says)
