"""The header by which the gateway tells an engine whose request goes first."""

import asyncio

import httpx
import pytest

from tests.engine.processes import SimEngine, eventually, sim_engines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine():
    with sim_engines("colocated", options=("--max-num-seqs", "1")) as (started,):
        yield started


async def until(engine: SimEngine, metric: str, value: float) -> None:
    await asyncio.to_thread(eventually, lambda: engine.metric(metric) == value)


async def test_a_lower_priority_number_leaves_the_engines_queue_first(engine):
    url, ended = f"http://127.0.0.1:{engine.api}/v1/completions", []
    async with httpx.AsyncClient(timeout=60, verify=False) as web:

        async def ask(name: str, tokens: int, **headers: str) -> None:
            body = {"model": "m", "prompt": name, "max_tokens": tokens, "ignore_eos": True}
            answer = await web.post(url, json=body, headers=headers)
            assert answer.status_code == 200
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(ask("first", 200))
            await until(engine, "vllm:num_requests_running", 1)
            group.create_task(ask("usual", 3))
            await until(engine, "vllm:num_requests_waiting", 1)
            group.create_task(ask("urgent", 3, **{"x-argosy-priority": "-5"}))
            await until(engine, "vllm:num_requests_waiting", 2)
    assert ended == ["first", "urgent", "usual"]
