"""OpenAI's Python package, as it is, against the engine's own HTTP side."""

import asyncio
import json

import httpx
import openai
import pytest

pytest.importorskip("llguidance")

from tests.engine.server.spelling import Engine

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bonn", "Rom"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
HI = [{"role": "user", "content": "hi"}]


def served(ask, **options):
    """What `ask(client)` returns, while the engine takes its steps."""

    async def run():
        engine = Engine(**options)
        transport = httpx.ASGITransport(engine.app)
        async with (
            httpx.AsyncClient(transport=transport) as http,
            openai.AsyncOpenAI(
                base_url="http://engine/v1", api_key="x", http_client=http
            ) as client,
        ):
            asking = asyncio.ensure_future(ask(client))
            while not asking.done():
                engine.loop._take_in(wait=False)
                engine.loop._turn()
                engine.loop._flush()
                await asyncio.sleep(0)
            assert not engine.loop.scheduler.sequences
            return asking.result()

    return asyncio.run(run())


def test_t46_choices_and_probabilities():
    async def ask(client):
        return await client.chat.completions.create(
            model="m", messages=HI, n=2, max_tokens=5, seed=1, logprobs=True, top_logprobs=2,
            presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"5": 1},
        )  # fmt: skip

    found = served(ask)
    assert [choice.index for choice in found.choices] == [0, 1]
    told = found.choices[0].logprobs.content
    assert "".join(one.token for one in told if "\ufffd" not in one.token)
    assert [top.token for top in told[0].top_logprobs] == ["a", "b"]
    assert found.usage.completion_tokens >= 2


def test_t46_a_stream_of_choices_with_usage():
    async def ask(client):
        stream = await client.chat.completions.create(
            model="m", messages=HI, n=2, max_tokens=5, seed=1, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        return [chunk async for chunk in stream]

    chunks = served(ask)
    ends = [c.index for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert sorted(ends) == [0, 1]
    assert chunks[-1].usage.total_tokens > 0


def test_t46_a_schema_is_parsed():
    schema = TOOL["function"]["parameters"]

    async def ask(client):
        return await client.chat.completions.create(
            model="m", messages=HI, max_tokens=60, seed=1,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )  # fmt: skip

    assert json.loads(served(ask).choices[0].message.content)["city"] in ("Bonn", "Rom")


def test_t46_tools_are_called_whole_and_in_a_stream():
    async def ask(client):
        more = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "seed": 1}
        more |= {"model": "m", "max_tokens": 120, "parallel_tool_calls": False}
        whole = await client.chat.completions.create(**more)
        stream = await client.chat.completions.create(**more, stream=True)
        return whole, [chunk async for chunk in stream]

    whole, chunks = served(ask)
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Bonn", "Rom")
    parts = [d for chunk in chunks for c in chunk.choices for d in c.delta.tool_calls or ()]
    assert parts[0].function.name == "weather"
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_t46_a_call_that_the_model_decides_on_and_its_reasoning():
    arguments = '{"city": "Bonn"}'
    call = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'

    async def ask(client):
        more = {"model": "m", "messages": HI, "tools": [TOOL], "max_tokens": 120}
        whole = await client.chat.completions.create(**more)
        stream = await client.chat.completions.create(**more, stream=True)
        return whole, [chunk async for chunk in stream]

    said = {"says": f"<think>Rain?</think>So: {call}"}
    whole, chunks = served(ask, tool_call_parser="hermes", reasoning_parser="think", **said)
    message = whole.choices[0].message
    assert (message.reasoning, message.content) == ("Rain?", "So: ")
    assert [one.function.name for one in message.tool_calls] == ["weather"]
    assert message.tool_calls[0].function.arguments == arguments
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "Rain?"
    assert "".join(delta.content or "" for delta in deltas) == "So: "
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert parts[0].function.name == "weather"
    assert "".join(part.function.arguments for part in parts) == arguments
    ends = [one.finish_reason for chunk in chunks for one in chunk.choices if one.finish_reason]
    assert [whole.choices[0].finish_reason, *ends] == ["tool_calls", "tool_calls"]
