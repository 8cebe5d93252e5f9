"""Loads of our engine and of vLLM: one server at a time, the same client for both.

The client is several processes, since one alone cannot read the tokens of 256 streams. Times are
those of the machine's monotonic clock, which all of them share.
"""

import asyncio
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from argosy_bench.engine.loads import complete, draw, poisson, tokens_per_s, tpot_s, ttft_s
from argosy_bench.engine.servers import OURS, VLLM
from argosy_bench.gpu.scale import Load, Scale
from argosy_bench.gpu.servers import Server, ours, vllm
from argosy_measure.client import Answer, open_http, play_closed, play_open
from local.figures import Figure

_UNITS = {"tokens_per_s": "tokens/s", "start_s": "s"}
_WARM = Load("warm", 32, 32, 256, 32, ())


def measure_served(model: Path, scale: Scale, program: Path | None) -> list[tuple[Figure, float]]:
    """Return our values, vLLM's where `program` is its command, and the ratios of both."""
    room = ["--kv-cache-tokens", str(scale.kv_tokens)] if scale.kv_tokens else []
    values = {}
    if program is not None:
        with vllm(program, model) as server:
            values[VLLM] = _measure(server, scale)
    with ours(model, *room) as server:
        values[OURS] = _measure(server, scale)
    return rows_of(values)


def rows_of(values: dict[str, dict[str, float]]) -> list[tuple[Figure, float]]:
    """Return the rows of the table, of values by server and name."""
    found = []
    for name, mine in values[OURS].items():
        unit = _UNITS.get(name.partition("_")[2] if name not in _UNITS else name, "ms")
        found.append((Figure(name, unit, digits=2), mine))
        if VLLM in values:
            theirs = values[VLLM][name]
            found.append((Figure(f"{name}_vllm", unit, digits=2), theirs))
            found.append((Figure(f"{name}_ratio_vs_vllm", digits=2), mine / theirs))
    return found


def _measure(server: Server, scale: Scale) -> dict[str, float]:
    """Play all loads in turn; the values by name."""
    found = {"start_s": server.start_s}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(scale.processes, mp_context=context) as pool:
        # What is first computed after the start is slower.
        _play(pool, server.url, _WARM, scale.processes)
        for load in scale.loads:
            answers = _play(pool, server.url, load, scale.processes)
            found |= {f"{load.name}_{name}": values_of(answers)[name] for name in load.shows}
    return found


def values_of(answers: Sequence[Answer]) -> dict[str, float]:
    """Return what a load may show: medians, and the ninth decile of TTFT."""
    first = [ttft_s(answer) * 1e3 for answer in answers]
    found = {
        "tokens_per_s": tokens_per_s(answers),
        "ttft_ms": median(first),
        "ttft_p90_ms": quantiles(first, n=10, method="inclusive")[-1],
    }
    if all(answer.tokens > 1 for answer in answers):
        found["tpot_ms"] = median(tpot_s(answer) * 1e3 for answer in answers)
    return found


def _play(pool: ProcessPoolExecutor, url: str, load: Load, processes: int) -> list[Answer]:
    """Divide the load among the processes; the answers of all."""
    parts = divide(load, processes)
    seeds = [f"{load.name} {part}" for part in range(len(parts))]
    answers = pool.map(_play_part, [url] * len(parts), parts, seeds)
    return [answer for part in answers for answer in part]


def divide(load: Load, processes: int) -> list[Load]:
    """Return equal parts of a load, no more than it has clients."""
    count = min(processes, load.clients or load.requests)
    return [
        replace(
            load,
            requests=load.requests // count + (part < load.requests % count),
            clients=load.clients // count + (part < load.clients % count),
            per_s=load.per_s / count,
        )
        for part in range(count)
    ]


def _play_part(url: str, load: Load, seed: str) -> list[Answer]:
    return asyncio.run(_play_here(url, load, seed))


async def _play_here(url: str, load: Load, seed: str) -> list[Answer]:
    at_s = poisson(load.requests, load.per_s, seed) if load.per_s else None
    requests = draw(load.requests, load.prompt, load.tokens, seed, at_s)
    async with open_http() as http:
        send = partial(complete, http, url)
        if load.clients:
            return await play_closed(send, requests, load.clients)
        return await play_open(send, requests)
