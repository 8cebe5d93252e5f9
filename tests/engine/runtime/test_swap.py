"""Preempted requests on a running engine: their KV waits on the host, and their text goes on."""

import asyncio
import logging

import pytest

from argosy_engine.cli import parse
from argosy_engine.runtime.sim import load
from argosy_engine.server.serve import _host_slots, _scheduler
from tests.kv.nodes import BLOCK, node, until

PROMPTS = [[100 + i] * (3 * BLOCK) for i in range(3)]


async def answers(engine):
    """Texts of requests that came together; they do not fit into 9 blocks together."""
    computing, go_on = engine.hold_steps()
    clients = [
        engine.ask(prompt, name=f"r{i}", max_tokens=4 * BLOCK) for i, prompt in enumerate(PROMPTS)
    ]
    await until(computing.is_set)
    go_on.set()
    await until(lambda: all(client.end for client in clients), within_s=60)
    assert [client.end for client in clients] == ["length"] * 3
    return [client.ids for client in clients]


@pytest.fixture
async def undisturbed():
    with node("colocated") as engine:
        yield await answers(engine)


@pytest.mark.parametrize("ahead", [False, True], ids=["one by one", "launched ahead"])
@pytest.mark.parametrize(("slots", "mode"), [(40, "swap"), (0, "recompute"), (1, "recompute")])
async def test_the_text_is_that_of_an_undisturbed_request(undisturbed, slots, mode, ahead):
    other = {"swap": "recompute", "recompute": "swap"}[mode]
    tight = {"kv_cache_tokens": 9 * BLOCK, "evicts": True, "host_slots": slots}
    with node("colocated", **tight, ahead=ahead) as engine:
        assert await answers(engine) == undisturbed
        assert engine.metric("argosy_preemptions_total", mode=mode) >= 1
        assert engine.metric("argosy_preempted_tokens_total", mode=mode) >= 3 * BLOCK
        assert engine.metric("argosy_preemptions_total", mode=other) == 0
        assert engine.scheduler.preemption.host.used_share == 0


async def test_a_swap_is_counted_and_logged(caplog):
    caplog.set_level(logging.INFO)
    with node("colocated", kv_cache_tokens=9 * BLOCK, evicts=True, host_slots=40) as engine:
        engine.metrics._block_bytes = 100
        await answers(engine)
        preempted = engine.metric("argosy_preemptions_total", mode="swap")
        out = engine.metric("argosy_kv_swap_bytes_total", direction="out")
        back = engine.metric("argosy_kv_swap_bytes_total", direction="in")
        assert out >= back >= 100
        assert engine.metric("argosy_kv_swap_seconds_total", direction="out") > 0
    lines = [r.getMessage() for r in caplog.records if "preempted" in r.getMessage()]
    assert len(lines) == preempted
    assert "mode=SWAP, time 1): not enough KV cache space" in lines[0]
    assert "raise --kv-cache-tokens" in lines[0]
    assert lines[-1].endswith(f"total_cumulative_preemption_cnt={preempted:.0f}")


@pytest.mark.parametrize("broken", ["to_host", "from_host"])
async def test_a_copy_that_fails_ends_its_requests_and_not_the_engine(broken):
    def fail(copies):
        raise MemoryError("no room")

    with node("colocated", kv_cache_tokens=9 * BLOCK, evicts=True, host_slots=40) as engine:
        setattr(engine.runner, broken, fail)
        clients = [
            engine.ask(prompt, name=f"r{i}", max_tokens=4 * BLOCK)
            for i, prompt in enumerate(PROMPTS)
        ]
        await until(lambda: all(client.end for client in clients), within_s=60)
        failed = [client for client in clients if client.end == "error"]
        assert failed
        assert all("could not be moved: no room" in client.message for client in failed)
        later = engine.ask([5] * BLOCK, name="later")
        await until(lambda: later.end)
        assert later.end == "length"


async def test_t40_a_pulled_request_is_swapped_and_keeps_its_text():
    """T40, with a host pool."""
    options = {"kv_cache_tokens": 8 * BLOCK, "evicts": True, "host_slots": 40}
    with node("prefill") as prefill, node("decode", **options) as decode, node("decode") as calm:
        texts = []
        for engine in (decode, calm):
            clients = [
                engine.ask(prompt, prefill.address, name=f"r{i}", max_tokens=40)
                for i, prompt in enumerate(PROMPTS[:2])
            ]
            await until(lambda those=clients: all(c.end for c in those), within_s=60)
            texts.append([client.ids for client in clients])
        assert decode.metric("argosy_preemptions_total", mode="swap") >= 1
        await asyncio.to_thread(prefill.assert_empty)
    assert texts[0] == texts[1]


ALWAYS = ["--model", "sim:opt-13b-a100", "--served-name", "m"]


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ([], 0),
        (["--swap-space", "1"], 40),  # a block of OPT-13B has 25 MiB
        (["--swap-space", "1", "--preemption-mode", "swap"], 40),
        (["--swap-space", "1", "--preemption-mode", "recompute"], 0),
    ],
)
def test_the_host_pool_has_as_many_blocks_as_its_memory_holds(options, slots):
    config = parse([*ALWAYS, *options])
    runner, _ = load(config)
    assert _host_slots(config, runner) == slots
    scheduler = _scheduler(config, runner)
    assert scheduler.preemption.host.total == slots
    assert scheduler.preemption.mode == config.preemption_mode
