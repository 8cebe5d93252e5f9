"""Clients that leave at any time, read slowly, and limits that change meanwhile: nothing is left.

One task drives the engine step by step, so that a test draws when each client leaves.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("llguidance")

from argosy_engine.core.batching import BATCHING
from argosy_engine.core.blocks import BlockPool, HostPool
from argosy_engine.core.capacity import POLICIES, MaxUtilization
from argosy_engine.core.request import State
from tests.engine.server.spelling import Engine
from tests.kv.nodes import BLOCK

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BLOCKS, SLOTS = 20, 30
ALONE = {"model": "m", "prompt": "so it goes", "max_tokens": 30, "temperature": 0, "seed": 1}
SCHEMA = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 20}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def small_engine() -> Engine:
    """Blocks for two or three of the requests below; preempted ones are swapped."""
    engine = Engine()
    scheduler = engine.loop.scheduler
    scheduler.pool = BlockPool(num_blocks=BLOCKS, block_size=BLOCK)
    scheduler.blocks.__init__(scheduler.pool, scheduler.max_model_len)
    scheduler.pulls.__init__(scheduler.pool, scheduler.short_prompts.observe_handover)
    scheduler.policy = MaxUtilization()
    scheduler.preemption.mode, scheduler.preemption.host = "swap", HostPool(SLOTS)
    scheduler.limits = replace(scheduler.limits, max_queue=64)
    return engine


def any_request(draw: random.Random) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": draw.choice([1, 6, 30, 90]),
        "stream": draw.random() < 0.7,
        "n": draw.choice([1, 1, 2, 4]),
        "seed": draw.randrange(100),
    }
    text = draw.choice(["so it goes ", "and on "]) * draw.choice([1, 3, 5])
    if draw.random() < 0.3:
        body["stop"] = ["a🙂", "zz"]
    if draw.random() < 0.2:
        body["cache_salt"] = draw.choice("st")
    if draw.random() < 0.5:
        prompts = draw.choice([1, 1, 3])
        body |= {"prompt": [text + str(draw.randrange(3)) for _ in range(prompts)]}
        body["logprobs"] = draw.choice([None, 2])
        if draw.random() < 0.3:
            body["structured_outputs"] = {"regex": "(ab|ba)*c"}
        elif draw.random() < 0.3 and not body["stream"]:
            body["best_of"] = body["n"] + 1
        return COMPLETIONS, body
    body["messages"] = [{"role": "user", "content": text}]
    if draw.random() < 0.3:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    elif draw.random() < 0.2:
        body |= {"tools": [TOOL], "tool_choice": "required"}
    return CHAT, body


def any_limits(draw: random.Random) -> dict[str, Any]:
    sent = {
        "max_num_seqs": draw.choice([1, 2, 8]),
        "max_num_batched_tokens": draw.choice([1, 16, 64, "auto"]),
        "capacity_policy": draw.choice(sorted(POLICIES)),
        "batching": draw.choice(sorted(BATCHING)),
        "tpot_limit_ms": draw.choice([None, 0.1, 50]),
    }
    return dict(draw.sample(sorted(sent.items()), draw.randrange(1, 4)))


class Crowd:
    """Requests on one engine, each with a turn at which its client leaves."""

    def __init__(self, engine: Engine, draw: random.Random) -> None:
        self.engine, self.draw, self.turn = engine, draw, 0
        self.left_in: Counter[str] = Counter()
        self.left = 0
        self.bodies: list[bytes] = []
        self.statuses: Counter[int] = Counter()

    async def client(self, name: str, stays: int | None) -> None:
        path, body = any_request(self.draw)
        sent, over, answer = False, asyncio.Event(), []

        async def receive():
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": json.dumps(body).encode()}
            while not over.is_set() and (stays is None or self.turn < stays):  # noqa: ASYNC110
                await asyncio.sleep(0)
            if not over.is_set():
                self._note(name, body)
            return {"type": "http.disconnect"}

        async def send(message):
            for _ in range(self.draw.choice([0, 0, 5])):  # a client that reads slowly
                await asyncio.sleep(0)
            if message["type"] == "http.response.start":
                self.statuses[message["status"]] += 1
            else:
                answer.append(message["body"])

        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"x-request-id", name.encode())],
            "asgi": {"version": "3.0"}, "http_version": "1.1", "root_path": "", "scheme": "http",
            "server": ("engine", 80), "client": ("here", 1),
        }  # fmt: skip
        await self.engine.app(scope, receive, send)
        over.set()
        if stays is None:
            self.bodies.append(b"".join(answer))

    def _note(self, name: str, body: dict[str, Any]) -> None:
        """In which states its sequences are left."""
        self.left += 1
        for sequence in self.engine.loop.scheduler.sequences.values():
            if not sequence.request_id.startswith(name + "."):
                continue
            state = sequence.state.value
            if sequence.state is State.RUNNING:
                state = "decode" if sequence.decoding else "prefill"
            self.left_in["swapped" if sequence.swapped else state] += 1
            self.left_in["structured"] += bool(sequence.sampling.grammar)
            self.left_in["several"] += body["n"] > 1

    async def run(self, count: int, *, limits: bool) -> None:
        """Clients, at most twelve at a time, until so many left; every tenth stays.

        How many leave before their answer is whole depends on the machine's load.
        """
        names = itertools.count()
        running: set[asyncio.Task[None]] = set()
        loop = self.engine.loop
        while self.left < count or running:
            while self.left < count and len(running) < 12:
                stays = self.turn + self.draw.randrange(60)
                whole = (name := next(names)) % 10 == 0
                made = self.client(f"r{name}", None if whole else stays)
                running.add(asyncio.create_task(made))
            if limits and self.turn % 7 == 0:
                loop.change(any_limits(self.draw))
            loop._take_in(wait=False)
            loop._turn()
            loop._flush()
            self.turn += 1
            await asyncio.sleep(0)
            for task in [task for task in running if task.done()]:
                running.remove(task)
                task.result()
        loop._take_in(wait=False)
        loop._turn()
        loop._flush()


def assert_nothing_is_left(engine: Engine) -> None:
    scheduler = engine.loop.scheduler
    assert not scheduler.sequences
    assert not scheduler.running + scheduler.waiting + scheduler.arrived
    assert scheduler.pool.used == 0
    assert scheduler.preemption.host.free == SLOTS
    assert not engine.loop._sinks
    assert engine.loop.metrics.registry.get_sample_value("argosy_loop_errors_total") == 0


@pytest.mark.parametrize("limits", [False, True], ids=["", "limits change"])
@pytest.mark.parametrize("count", [140, pytest.param(1000, marks=pytest.mark.slow)])
async def test_clients_that_leave_in_any_state_leave_nothing(count, limits):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # to draw the same clients again
    before = (await Engine().post(COMPLETIONS, ALONE)).json()["choices"]
    engine = small_engine()
    crowd = Crowd(engine, random.Random(seed))
    await crowd.run(count, limits=limits)
    assert_nothing_is_left(engine)
    states = {"queued", "decode", "structured", "several"}
    if count == 1000 and not limits:
        states |= {"prefill", "swapped"}
    assert states - {state for state, times in crowd.left_in.items() if times} == set()
    # Under other limits a prompt may be longer than a step.
    assert set(crowd.statuses) <= ({200, 400} if limits else {200})
    if not limits:
        assert not any(b'"error"' in body for body in crowd.bodies)
    engine.loop.scheduler.limits = Engine().loop.scheduler.limits
    assert (await engine.post(COMPLETIONS, ALONE)).json()["choices"] == before
