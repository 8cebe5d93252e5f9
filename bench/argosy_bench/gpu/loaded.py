"""KV from a prefill engine to a decode engine while other clients keep both busy.

`handover_…_loaded_ms` is the time from first to second token of prompts that are handed over, less
that of prompts that the decode engine computes itself under the same load: medians. The first token
comes as soon as prefill has it, so this is the part of the transfer that a client waits for.
"""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from statistics import median

from argosy_bench.engine.loads import complete, draw, tpot_s
from argosy_bench.gpu.scale import Load, Scale
from argosy_bench.gpu.servers import Server, read_samples
from argosy_measure.client import Request, open_http, play_closed
from local.figures import Figure

_TURNS = 12


def measure_loaded(prefill: Server, decode: Server, scale: Scale) -> list[tuple[Figure, float]]:
    """Return the time of each length, also in decode steps, and the rate of KV."""
    found = list[tuple[Figure, float]]()
    away = {"x-argosy-prefill": f"127.0.0.1:{prefill.kv_port}"}
    with _busy(decode, scale.streams, {}), _busy(decode, scale.others, away):
        before = read_samples(decode)
        for length in scale.handovers:
            apart, alone = [], []
            requests = iter(draw(2 * _TURNS, length, 2, f"loaded {length}"))
            for handed, own in zip(requests, requests, strict=True):
                apart.append(asyncio.run(_second_token_s(decode, handed, away)))
                alone.append(asyncio.run(_second_token_s(decode, own, {})))
            step_s, late_s = median(alone), median(apart) - median(alone)
            found.append((Figure(f"handover_{length}_loaded_ms", "ms", digits=1), late_s * 1e3))
            found.append((Figure(f"handover_{length}_loaded_steps", digits=2), late_s / step_s))
        after = read_samples(decode)
    fallback = "argosy_local_prefill_fallback_total"
    if after[fallback] != before[fallback]:
        raise RuntimeError("a pull failed under load, and the decode engine computed the prompt")
    return [*found, (Figure("kv_loaded_gb_per_s", "GB/s", digits=2), kv_gb_per_s(before, after))]


def kv_gb_per_s(before: dict[str, float], after: dict[str, float]) -> float:
    """Return the KV between two readings of a decode engine over its transfers' time, in GB/s."""
    moved, took_s = "argosy_kv_transfer_bytes_total", "argosy_kv_transfer_seconds_sum"
    return (after[moved] - before[moved]) / (after[took_s] - before[took_s]) / 1e9


async def _second_token_s(server: Server, request: Request, headers: dict[str, str]) -> float:
    """Return the seconds between the two tokens of an answer."""
    async with open_http(headers=headers) as http:
        return tpot_s(await complete(http, server.url, request))


@contextmanager
def _busy(server: Server, load: Load, headers: dict[str, str]) -> Iterator[None]:
    """Play a load in a process of its own meanwhile; wait first until each client has a token."""
    prompts = "vllm:prompt_tokens_total"  # of requests with a first token
    due = read_samples(server)[prompts] + load.clients * load.prompt
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_play, args=(server.url, load, headers))
    child.start()
    try:
        while child.is_alive() and read_samples(server)[prompts] < due:
            child.join(0.05)
        yield
        if not child.is_alive():
            raise RuntimeError(f"the load {load.name} ended early: its error stands above")
    finally:
        child.terminate()
        child.join()


def _play(url: str, load: Load, headers: dict[str, str]) -> None:
    """Send requests without end."""
    turns = (draw(load.clients, load.prompt, load.tokens, f"{load.name} {n}") for n in count())

    async def play() -> None:
        async with open_http(headers=headers) as http:
            send = partial(complete, http, url)
            await play_closed(send, chain.from_iterable(turns), load.clients)

    asyncio.run(play())
