"""`/limits` and `/reset_prefix_cache` of the admin port, on an engine that serves."""

import httpx
import pytest

from argosy_engine.core.capacity import PastFuture
from argosy_engine.server.admin import Admin
from tests.kv.nodes import BLOCK, node, until


@pytest.fixture
def engine():
    with node("colocated") as started:
        yield started


async def call(engine, method, path, **more):
    admin = Admin(loop=engine and engine.loop, serving=True)
    transport = httpx.ASGITransport(admin.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://e") as client:
        return await client.request(method, path, **more)


async def test_limits_change_and_are_shown(engine):
    before = (await call(engine, "GET", "/limits")).json()
    assert before == {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "long_prefill_token_threshold": 0,
        "capacity_policy": "GUARANTEED_NO_EVICT",
        "batching": "chunked",
        "tpot_limit_ms": None,
        "step_tokens": 512,
    }
    sent = {"max_num_seqs": 3, "capacity_policy": "PAST_FUTURE", "tpot_limit_ms": 40}
    answer = await call(engine, "PUT", "/limits", json=sent)
    assert answer.status_code == 200
    assert answer.json() == {**before, **sent}
    assert (await call(engine, "GET", "/limits")).json() == answer.json()
    assert isinstance(engine.scheduler.policy, PastFuture)


async def test_they_hold_from_the_next_step_on_for_streams_that_run(engine):
    computing, go_on = engine.hold_steps()
    streams = [engine.ask([5 + i] * BLOCK, name=f"r{i}", max_tokens=40) for i in range(4)]
    await until(computing.is_set)
    changing = engine.loop.change({"max_num_seqs": 2})
    go_on.set()
    assert changing.result(20) is None
    sizes = []
    execute = engine.runner.execute
    engine.runner.execute = lambda plan: sizes.append(len(plan.chunks)) or execute(plan)
    await until(lambda: all(stream.end for stream in streams), within_s=60)
    assert [len(stream.ids) for stream in streams] == [40] * 4
    assert max(sizes) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "send a JSON object, such as"),
        (b"\xff", "send a JSON object, such as"),
        (b"[]", "send a JSON object with at least one of max_num_seqs"),
        (b'{"max_num_seqs": -1}', "max_num_seqs: write a whole number from 1 to"),
        (b'{"policy": "STATIC"}', "'policy' is no limit that can change: write one of"),
    ],
)
async def test_what_is_wrong_is_a_400_and_changes_nothing(engine, body, said):
    before = (await call(engine, "GET", "/limits")).json()
    answer = await call(engine, "PUT", "/limits", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(said)
    assert (await call(engine, "GET", "/limits")).json() == before


async def test_the_prefix_cache_is_reset_when_nothing_runs(engine):
    first = engine.ask([5] * 3 * BLOCK, name="first")
    await until(lambda: first.end)
    assert engine.scheduler.pool.cached == 3
    computing, go_on = engine.hold_steps()
    second = engine.ask([6] * BLOCK, name="second")
    await until(computing.is_set)
    asked = engine.loop.reset_prefix_cache()
    go_on.set()
    assert asked.result(20) is False
    await until(lambda: second.end)
    answer = await call(engine, "POST", "/reset_prefix_cache")
    assert (answer.status_code, answer.json()) == (200, {"reset": True})
    assert engine.scheduler.pool.cached == 0
