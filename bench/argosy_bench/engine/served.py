"""Serve with both engines, ask them in turn, and put the figures of `table`.

All servers run at the same time and only one is asked. Which of them is asked first changes with
every round; a figure is the median over the rounds.
"""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from argosy_bench.engine.floor import measure_floor
from argosy_bench.engine.install import program
from argosy_bench.engine.loads import (
    PROMPT,
    SEQUENCES,
    TOKENS,
    attained,
    complete,
    expected_knee,
    knee,
    run_one,
)
from argosy_bench.engine.servers import INT8, OURS, VLLM, Server, ours, vllm
from argosy_bench.engine.steps import alternate_s, decodes_of, load_runner
from argosy_bench.engine.table import figures_beside, put_floor, put_served
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.model.native.choose import choose
from argosy_engine.model.native_trunk import NativeTrunk
from argosy_engine.model.spec import read_spec
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.runner import TorchRunner
from argosy_measure.client import Send, open_http
from local.figures import Figures

LOADS = ("burst", "c1", "c8", "prefill512", "prefill1536", "full", "4k", "8k")
_OURS_ALONE = ("full",)
_INT8_ALONE = ("burst",)
_POSITIONS = {"4k": 4129, "8k": 8161}
"""What the model must know for a load."""
_STARTS, _REPEATS = 3, 15


@dataclass(slots=True)
class _Run:
    """What was measured so far."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By name and server."""
    rows: list[dict[str, object]] = field(default_factory=list)
    """The same in the order of measuring."""

    def put(self, server: str, measured: dict[str, float]) -> None:
        """Keep the values of one run of one server, and print them."""
        said = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        Console(stderr=True, highlight=False).print(f"{server}: {said}")
        for name, value in measured.items():
            self.values.setdefault(name, {}).setdefault(server, []).append(value)
            self.rows.append({"server": server, "value": name, "measured": value})

    def of(self, server: str) -> dict[str, list[float]]:
        """Measured values of one server, by name."""
        return {name: by[server] for name, by in self.values.items() if server in by}


def measure(figures: Figures, model: Path, peer: Path | None, rounds: int) -> None:
    """Put the figures of both servers; notes say what is absent, and why.

    `peer` is the environment with vLLM's CPU build; None, or one without vLLM: only our engine and
    the floor are measured. Each load is run `rounds` times by each server.
    """
    if why := _why_not(rounds):
        figures.notes["served"] = f"not measured: {why}"
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end, too
    run, command = _Run(), program(peer) if peer else None
    if command is None:
        figures.notes[VLLM] = f"absent: no vLLM in {peer.name if peer else '--peer'}"
    positions = read_spec(model).max_positions
    loads = [load for load in LOADS if _POSITIONS.get(load, 0) <= positions]
    figures.declare(figures_beside(loads, peer=command is not None))
    (plain, _), (native, _) = (
        load_runner(str(model), "bfloat16", compute) for compute in ("torch", "native")
    )
    for _ in range(_STARTS - 1):
        with ours(model) as server:
            run.put(OURS, {"start": server.start_s})
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ours(model)), stack.enter_context(ours(model, INT8))]
        if command is not None:
            servers.append(stack.enter_context(vllm(command, model)))
        for server in servers:
            if server.name != INT8:
                run.put(server.name, {"start": server.start_s})
            figures.notes[f"{server.name}_isa"] = server.isa or "its own choice"
        asyncio.run(_rounds(run, servers, native, [loads] * rounds))
    assert isinstance(plain.trunk, Trunk)
    assert isinstance(native.trunk, NativeTrunk)
    floor = measure_floor(plain.trunk, native.trunk)
    native.close()
    put_served(figures, run.values)
    put_floor(figures, run.values, floor)
    figures.lists["runs"], figures.lists["products"] = run.rows, floor.products
    figures.notes["rounds"] = rounds
    for load_name in set(LOADS) - set(loads):
        figures.notes[load_name] = "not measured: the model's context is shorter"


def _why_not(rounds: int) -> str:
    if torch.cuda.is_available():
        return "a GPU computes here"
    if choose() is None:
        return "no native library works here"
    return "" if rounds else "--rounds 0"


async def _rounds(
    run: _Run, servers: list[Server], runner: TorchRunner, rounds: list[list[str]]
) -> None:
    """Ask for the loads of each round; the second round asks the second server first."""
    async with open_http() as http:
        senders: dict[Server, Send] = {
            server: partial(complete, http, server.url) for server in servers
        }
        for send in senders.values():  # what is first computed after the start is slower
            await run_one("full", send, f"warm {os.getpid()}")
        for turn, loads in enumerate(rounds):
            in_turn = servers if turn % 2 == 0 else servers[::-1]
            for load_name in loads:
                seed = f"{os.getpid()} {load_name} {turn}"
                for server in in_turn:
                    if _takes(server, load_name):
                        run.put(server.name, await run_one(load_name, senders[server], seed))
            run.put(OURS, _steps_s(runner))
            for server in (one for one in in_turn if one.name != INT8):
                ask = partial(attained, senders[server], seed=f"{os.getpid()} {turn}")
                run.put(server.name, {"knee": await knee(ask, expected_knee(run.of(server.name)))})


def _takes(server: Server, load_name: str) -> bool:
    """Whether the server is asked for the load."""
    if server.name == INT8:
        return load_name in _INT8_ALONE
    return server.name == OURS or load_name not in _OURS_ALONE


def _steps_s(runner: TorchRunner) -> dict[str, float]:
    """Time steps without a server, which the served ones are compared with."""
    context = PROMPT + TOKENS // 2
    sampled = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.95, seed=7)
    plans = {
        "one": decodes_of(1, context),
        "full": decodes_of(SEQUENCES, context),
        "sampled": decodes_of(SEQUENCES, context, sampled),
    }
    took = alternate_s({"": runner}, plans, _REPEATS)
    return {f"bench_{step}": seconds for (_, step), seconds in took.items()}
