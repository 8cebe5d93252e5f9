"""Requests that are pulled, computed here, preempted and left at random: both pools are empty."""

import asyncio
import random
from collections import Counter
from itertools import count

import pytest

from tests.kv.nodes import BLOCK, node

SHOWN = {"pulling", "running"}
"""States in which somebody has left before the crowd ends: what the test is about."""
FEWEST, MOST = 300, 6000
"""Requests of a crowd. A machine with other work may take hundreds until one leaves in a pull."""


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True], ids=["one by one", "launched ahead"])
async def test_hundreds_of_pulls_that_are_left_in_any_state_leave_nothing(ahead):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # to draw the same ones again
    draw, left_in = random.Random(seed), Counter[str]()
    options = {"kv_cache_tokens": 40 * BLOCK, "evicts": True, "host_slots": 20, "ahead": ahead}
    with node("prefill") as prefill, node("decode", **options) as decode:
        outstanding: list[str] = []
        for number in count():
            if number >= (FEWEST if left_in.keys() >= SHOWN else MOST):
                break
            name = f"r{number}"
            prompt = [5 + draw.randrange(3)] * (BLOCK * draw.choice([1, 4, 9]) + draw.randrange(9))
            peers = [prefill.address] if draw.random() < 0.7 else []
            decode.ask(prompt, *peers, name=name, max_tokens=draw.choice([9, 60, 400]))
            outstanding.append(name)
            for _ in range(draw.choice([0, 0, 0, 0, 10])):
                await asyncio.sleep(0.0002)  # threads of both engines go on
            while len(outstanding) > draw.randrange(4, 24):
                leaver = outstanding.pop(draw.randrange(len(outstanding)))
                sequence = decode.scheduler.sequences.get(leaver)
                left_in["over" if sequence is None else sequence.state.value] += 1
                decode.loop.abort(leaver)
        for name in outstanding:
            decode.loop.abort(name)
        decode.assert_empty()
        prefill.assert_empty()
        assert decode.loop.alive
        assert prefill.loop.alive
        assert left_in.keys() >= SHOWN, left_in
        for engine in (prefill, decode):
            assert engine.metric("argosy_loop_errors_total") == 0
        assert decode.scheduler.preemption.host.used_share == 0
