"""How much of the prompts engines find in their prefix caches, by the gateway's strategy.

Six simulated engines hold 14,000 tokens each; 48 prefixes of 1,000 tokens are asked about in
random order by eight clients. All prefixes fit into the six caches together, and not into one. The
share is that of the engines' own `cached_tokens`, after the first requests.
"""

import asyncio
import random
import statistics
import time

import httpx

from argosy_bench.figures import Figure, Figures, Target
from argosy_bench.routing.fleets import Pod, gateway, sim_engines
from argosy_bench.routing.picks import fleet_of, pick_us
from argosy_gateway.wire.openai import prefixes_of

__all__ = ["FIGURES", "measure"]

STRATEGIES = {
    "leastLoad": "prefix_hit_leastload",
    "prefixHash": "prefix_hit_prefixhash",
    "kvAware": "prefix_hit_kvaware",
}
ENGINES, PREFIXES, PREFIX_WORDS, TAIL_WORDS = 6, 48, 1000, 40
CLIENTS, REQUESTS, WARM_UP = 8, 600, 150
KV_TOKENS = 14_000

FIGURES = (
    *(Figure(name) for name in STRATEGIES.values()),
    Figure("prefix_hash_ratio_over_leastload", digits=2),
    # Of kvAware.
    Figure("prefix_hit_ratio_over_leastload", target=Target(">=", 2), digits=2),
    Figure("pick_us_kvaware_1000_pods", "µs", Target("<=", 100, of_the_machine=True), digits=1),
    Figure("prefix_us_4_kib", "µs", digits=1),
)


def _prompts(seed: int) -> list[str]:
    """Prompts in the order in which they are sent."""
    rng = random.Random(seed)  # noqa: S311
    prefixes = [
        " ".join(f"w{rng.randrange(10**6)}" for _ in range(PREFIX_WORDS)) for _ in range(PREFIXES)
    ]
    return [
        " ".join([rng.choice(prefixes), *(f"t{rng.randrange(10**6)}" for _ in range(TAIL_WORDS))])
        for _ in range(REQUESTS)
    ]


async def _hit_share(pods: list[Pod], strategy: str, seed: int, requests: int) -> float:
    """Cached prompt tokens over all prompt tokens, after the first quarter of the requests."""
    left = iter(list(enumerate(_prompts(seed)))[:requests])
    seen: list[tuple[int, int]] = []

    async def ask(client: httpx.AsyncClient) -> None:
        for number, prompt in left:
            body = {"model": "m", "prompt": prompt, "max_tokens": 4}
            answer = await client.post("/v1/completions", json=body)
            usage = answer.raise_for_status().json()["usage"]
            if number >= requests * WARM_UP / REQUESTS:
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                seen.append((cached, usage["prompt_tokens"]))

    async with (
        gateway(pods, "--strategy", strategy) as front,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{front.port}", timeout=120, trust_env=False
        ) as client,
    ):
        await asyncio.gather(*(ask(client) for _ in range(CLIENTS)))
    return sum(cached for cached, _ in seen) / sum(tokens for _, tokens in seen)


async def measure(
    figures: Figures, requests: int = REQUESTS, picks: int = 1000, engines: int = ENGINES
) -> None:
    """Put the figures of affinity; takes about a minute. Each strategy has engines of its own."""
    shares: dict[str, float] = {}
    for strategy, name in STRATEGIES.items():
        async with sim_engines(engines, "--kv-cache-tokens", str(KV_TOKENS)) as pods:
            shares[strategy] = await _hit_share(pods, strategy, 1, requests)
        figures.put(name, shares[strategy])
    least = max(shares["leastLoad"], 1e-9)
    figures.put("prefix_hash_ratio_over_leastload", shares["prefixHash"] / least)
    figures.put("prefix_hit_ratio_over_leastload", shares["kvAware"] / least)
    costs = [pick_us(fleet_of(1000, "kvAware"), picks) for _ in range(3)]
    figures.put("pick_us_kvaware_1000_pods", statistics.median(costs))
    figures.put("prefix_us_4_kib", _prefix_us(picks))


def _prefix_us(times: int) -> float:
    text = b"abcdefgh" * 512
    began = time.perf_counter()
    for _ in range(times):
        prefixes_of(text)
    return (time.perf_counter() - began) / times * 1e6
