"""KV from a prefill engine to a decode engine on one GPU, beside one engine that does both.

`handover_…_ms` is how much later the second token comes when the prompt is computed elsewhere:
median of asking for two tokens apart, less that of asking one engine alone. All three are idle.
`loaded.py` measures it under load afterwards.
"""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import httpx

from argosy_bench.gpu.loaded import kv_gb_per_s, measure_loaded
from argosy_bench.gpu.scale import Scale
from argosy_bench.gpu.servers import Server, ours, read_samples
from argosy_bench.processes import MODEL
from local.figures import Figure, Target

_TURNS = 4
_TOKENS = 32
"""Of the texts that are compared."""
_SHARES = {"prefill": 0.25, "decode": 0.35, "colocated": 0.5}
"""Of the memory that is left when each starts, in this order."""


def measure_handovers(model: Path, scale: Scale) -> list[tuple[Figure, float]]:
    """Return times and rates, and whether all texts are those of one engine."""
    found, equal = list[tuple[Figure, float]](), True
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=100))
        prefill, decode, alone = (
            stack.enter_context(ours(model, "--role", role, *_room(scale, share)))
            for role, share in _SHARES.items()
        )
        before = read_samples(decode)
        for length in scale.handovers:
            apart, together = [], []
            for turn in range(_TURNS):
                draw = random.Random(f"{length} {turn}")  # noqa: S311 - a load, no secret
                ids = [draw.randrange(1000, 30_000) for _ in range(length)]
                for tokens in (2, _TOKENS):
                    mine, text = _ask(client, decode, ids, tokens, prefill)
                    its, right = _ask(client, alone, ids, tokens)
                    equal = equal and text == right
                    if tokens == 2:
                        apart.append(mine)
                        together.append(its)
            late_s = median(apart) - median(together)
            found.append((Figure(f"handover_{length}_ms", "ms", digits=1), late_s * 1e3))
        rate = kv_gb_per_s(before, read_samples(decode))
        found.append((Figure("kv_gb_per_s", "GB/s", digits=2), rate))
        found += measure_loaded(prefill, decode, scale)
    return [*found, (Figure("handover_texts_equal", target=Target("==", 1)), float(equal))]


def _room(scale: Scale, share: float) -> list[str]:
    if scale.kv_tokens:
        return ["--kv-cache-tokens", str(scale.kv_tokens)]
    return ["--gpu-memory-utilization", str(share)]


def _ask(
    client: httpx.Client, server: Server, ids: list[int], tokens: int, prefill: Server | None = None
) -> tuple[float, str]:
    """Return the seconds until the whole answer, and its text."""
    body = {"model": MODEL, "prompt": ids, "max_tokens": tokens, "temperature": 0}
    headers = {"x-argosy-prefill": f"127.0.0.1:{prefill.kv_port}"} if prefill else {}
    began = time.perf_counter()
    answer = client.post(
        f"{server.url}/v1/completions", json=body | {"ignore_eos": True}, headers=headers
    )
    took_s = time.perf_counter() - began
    return took_s, str(answer.raise_for_status().json()["choices"][0]["text"])
