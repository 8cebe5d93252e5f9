"""Serve with both engines, ask them in turn, and put the figures of `table`.

All servers run at the same time and only one is asked. Which of them is asked first changes with
every round; a figure is the median over the rounds.
"""

import asyncio
import contextlib
import os
import signal
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import torch
from rich.console import Console

from argosy_bench.figures import Figure, Figures
from argosy_bench.peer.client import Send, connected
from argosy_bench.peer.install import program
from argosy_bench.peer.loads import PROMPTS, TOKENS, attained, expected_knee, knee, run_one
from argosy_bench.peer.products import measure_floor
from argosy_bench.peer.servers import INT8, MODEL_NAME, OURS, VLLM, Server, ours, vllm
from argosy_bench.peer.steps import steps_s
from argosy_bench.peer.table import figures_beside, put_floor, put_served
from argosy_engine.config import Compute, EngineConfig
from argosy_engine.model.native.choose import choose
from argosy_engine.model.native_trunk import NativeTrunk
from argosy_engine.model.spec import read_spec
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.runner import TorchRunner, load

__all__ = ["LOADS", "Beside"]

LOADS = ("burst", "c1", "c8", "prefill512", "prefill1536", "full", "open", "4k", "8k")
_OURS_ALONE = ("full", "open")
_INT8_ALONE = ("burst",)
_POSITIONS = {"4k": 4129, "8k": 8161}
"""What the model must know for a load."""
_STARTS = 3


@dataclass(slots=True)
class _Run:
    """What was measured so far."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By name and server."""
    rows: list[dict[str, object]] = field(default_factory=list)
    """The same in the order of measuring, with the load average."""

    def put(self, server: str, measured: dict[str, float]) -> None:
        """Keep the values of one run of one server, and say them."""
        said = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        Console(stderr=True, highlight=False).print(f"{server}: {said}")
        for name, value in measured.items():
            self.values.setdefault(name, {}).setdefault(server, []).append(value)
            average = round(os.getloadavg()[0], 2)
            row = {"server": server, "value": name, "measured": value, "load_average": average}
            self.rows.append(row)

    def of(self, server: str) -> dict[str, list[float]]:
        """Measured values of one server, by name."""
        return {name: by[server] for name, by in self.values.items() if server in by}


@dataclass(frozen=True, slots=True)
class Beside:
    """The comparison of one model."""

    model: Path
    """Its folder; both serve it as bfloat16."""
    peer: Path | None
    """Environment with vLLM's CPU build; None, or one without vLLM: ours and the floor alone."""
    rounds: int
    """Runs of each load by each server; 0: nothing is compared."""

    def rows(self) -> tuple[Figure, ...]:
        """Rows that `measure` will put."""
        if self._why_not():
            return ()
        return figures_beside(self._loads(), peer=self._program() is not None)

    def measure(self, figures: Figures) -> None:
        """Put every one of them; notes say what is absent, and why."""
        if why := self._why_not():
            figures.notes["served"] = f"not measured: {why}"
            return
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end, too
        run, command = _Run(), self._program()
        if command is None:
            figures.notes[VLLM] = f"absent: no vLLM in {self.peer.name if self.peer else '--peer'}"
        plain, native = _loaded(self.model, "torch"), _loaded(self.model, "native")
        for _ in range(_STARTS - 1):
            with ours(self.model) as server:
                run.put(OURS, {"start": server.start_s})
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(ours(self.model))]
            servers.append(stack.enter_context(ours(self.model, INT8)))
            if command is not None:
                servers.append(stack.enter_context(vllm(command, self.model)))
            for server in servers:
                if server.name != INT8:
                    run.put(server.name, {"start": server.start_s})
                figures.notes[f"{server.name}_isa"] = server.isa or "its own choice"
            asyncio.run(_rounds(run, servers, native, [self._loads()] * self.rounds))
        _conclude(figures, run, plain, native)
        figures.notes["rounds"] = self.rounds
        for load_name in set(LOADS) - set(self._loads()):
            figures.notes[load_name] = "not measured: the model's context is shorter"

    def _loads(self) -> list[str]:
        """Those whose prompts the model's context holds."""
        positions = read_spec(self.model).max_positions
        return [load for load in LOADS if _POSITIONS.get(load, 0) <= positions]

    def _program(self) -> Path | None:
        return program(self.peer) if self.peer else None

    def _why_not(self) -> str:
        if torch.cuda.is_available():
            return "a GPU computes here"
        if choose() is None:
            return "no native library works here"
        return "" if self.rounds else "--rounds 0"


def _conclude(figures: Figures, run: _Run, plain: TorchRunner, native: TorchRunner) -> None:
    """Measure the floor and put every figure."""
    assert isinstance(plain.trunk, Trunk)
    assert isinstance(native.trunk, NativeTrunk)
    floor = measure_floor(plain.trunk, native.trunk)
    native.close()
    put_served(figures, run.values)
    put_floor(figures, run.values, floor)
    averages = [float(str(row["load_average"])) for row in run.rows]
    figures.notes["load_average"] = round(median(averages), 2)
    figures.lists["runs"] = run.rows
    figures.lists["products"] = floor.products


async def _rounds(
    run: _Run, servers: list[Server], runner: TorchRunner, rounds: list[list[str]]
) -> None:
    """Ask for the loads of each round; the second round asks the second server first."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        senders = {server: connected(client, server.url) for server in servers}
        for send in senders.values():  # what is first computed after the start is slower
            await run_one("full", send, f"warm {os.getpid()}")
        for turn, loads in enumerate(rounds):
            in_turn = servers if turn % 2 == 0 else servers[::-1]
            for load_name in loads:
                seed = f"{os.getpid()} {load_name} {turn}"
                for server in in_turn:
                    if _takes(server, load_name):
                        run.put(server.name, await _one(server, senders[server], load_name, seed))
            run.put(OURS, {f"bench_{kind}": took for kind, took in asdict(steps_s(runner)).items()})
            for server in (one for one in in_turn if one.name != INT8):
                ask = partial(attained, senders[server], seed=f"{os.getpid()} {turn}")
                run.put(server.name, {"knee": await knee(ask, expected_knee(run.of(server.name)))})


def _takes(server: Server, load_name: str) -> bool:
    """Whether the server is asked for the load."""
    if server.name == INT8:
        return load_name in _INT8_ALONE
    return server.name == OURS or load_name not in _OURS_ALONE


async def _one(server: Server, send: Send, load_name: str, seed: str) -> dict[str, float]:
    """One run of a load; of `burst` also the CPU time of HTTP a token."""
    before_s = server.http_cpu_s()
    values = await run_one(load_name, send, seed)
    if load_name == "burst":
        values["http_us"] = (server.http_cpu_s() - before_s) / (PROMPTS * TOKENS) * 1e6
    return values


def _loaded(model: Path, compute: Compute) -> TorchRunner:
    config = EngineConfig(
        model=str(model),
        served_name=MODEL_NAME,
        dtype="bfloat16",
        compute=compute,
        kv_cache_tokens=8192,
    )
    runner, _ = load(config)
    runner.warm_up()
    return runner
