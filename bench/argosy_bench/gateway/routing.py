"""What a choice of pods costs the gateway, and what affinity is worth.

Picks: a thousand requests go through the groups, the strategy and the loads, with up to eight in
flight a pod; no sockets are involved. Affinity: six simulated engines hold 14,000 tokens each; 48
prefixes of 1,000 tokens are asked about in random order by eight clients. All prefixes fit into the
six caches together, and not into one.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable

import httpx

from argosy_bench.processes import MODEL, Server, engine, gateway
from argosy_gateway.config import Config
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.routing.dispatch import Dispatch
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import Reservation
from argosy_gateway.routing.strategies import RoutingRequest
from argosy_gateway.wire.openai import prefixes_of
from local.figures import Figure, Figures, Target

PICKS, RUNS = 1000, 5

PICK_FIGURES = (
    Figure("pick_us_10_pods", "µs", digits=1),
    Figure("pick_us_1000_pods", "µs", digits=1),
    Figure("pick_1000_over_10_pods", target=Target("<=", 8), digits=2),
    Figure("dispatch_us_1000_pods", "µs", digits=1),
)


def gateway_of(pods: int, strategy: str = "leastLoad") -> Gateway:
    """Return a gateway that knows this many pods: half prefill, half decode."""
    front = Gateway(Config("f", "n", ("m",), strategy=strategy), time.monotonic)
    roles = (Role.PREFILL, Role.DECODE)
    front.directory.replace(
        Endpoint(f"uid-{i}", f"pod-{i}", "10.0.0.1", roles[i % 2], "r", State.SERVING)
        for i in range(pods)
    )
    return front


def pick_us(front: Gateway, picks: int) -> float:
    """Return the mean CPU time of a pick in microseconds: groups, choice, place in the loads.

    Every hundredth changes what is known of a pod's health, as in a fleet with busy pods.
    """
    pods = len(front.directory.all())
    rng = random.Random(1)  # noqa: S311
    open_: deque[Reservation] = deque()
    request = RoutingRequest("id", "m", stream=True, prompt_tokens=100, prompt_start=b"x" * 400)
    took_s = 0.0
    for number in range(picks):
        if number % 100 == 0:
            front.directory.health.mark_busy(f"uid-{rng.randrange(pods)}")
        if len(open_) >= 8 * pods:
            open_.popleft().end()
        began = time.thread_time()
        route = front.strategy.choose(request, front.groups(), front.view)
        assert route is not None
        open_.append(front.in_flight.reserve(route, request.prompt_tokens))
        took_s += time.thread_time() - began
    return took_s / picks * 1e6


def dispatch_us(front: Gateway, dispatches: int) -> float:
    """Return the mean CPU time of a dispatch from the queue in microseconds.

    Every pod is busy and more requests wait than may go; each prompt that ends lets one go.
    """
    dispatch, rng = Dispatch(avoids=front.view.avoids), random.Random(1)  # noqa: S311
    front.in_flight.changed = dispatch.touch
    loads, request = front.in_flight.loads, RoutingRequest("id", "m", True, 2000, b"x" * 400)
    for group in front.groups():
        for pod in group.prefills:
            for _ in range(4):
                dispatch.pace.observe(pod.uid, ahead=4000, own=2000, seconds=0.4)
    open_: list[Reservation] = []

    def let_go() -> None:
        while grant := dispatch.next(
            0.0,
            front.groups(),
            loads,
            lambda r: front.strategy.choose(r, front.groups(), front.view),
        ):
            open_.append(front.in_flight.reserve(grant.route, request.prompt_tokens))

    for _ in range(dispatches + 4 * len(front.directory.all())):
        waiting = Waiting(request, 0.0, 2.5)
        dispatch.route_at_once(waiting, 0.0, loads, lambda _: None)
        dispatch.line.add(waiting)
    let_go()
    assert len(dispatch.line) >= dispatches
    began = time.thread_time()
    for _ in range(dispatches):
        open_.pop(rng.randrange(len(open_))).end()
        let_go()
    return (time.thread_time() - began) / dispatches * 1e6


async def measure_picks(figures: Figures, picks: int = PICKS, runs: int = RUNS) -> None:
    """Put the figures of picks; medians of alternating runs."""
    figures.declare(PICK_FIGURES)
    few, many, queued = [], [], []
    for _ in range(runs):
        few.append(pick_us(gateway_of(10), picks))
        many.append(pick_us(gateway_of(1000), picks))
        queued.append(dispatch_us(gateway_of(1000), picks))
    figures.put("pick_us_10_pods", statistics.median(few))
    figures.put("pick_1000_over_10_pods", statistics.median(many) / statistics.median(few))
    figures.put("pick_us_1000_pods", statistics.median(many))
    figures.put("dispatch_us_1000_pods", statistics.median(queued))


@contextlib.asynccontextmanager
async def _engines(number: int, *options: str) -> AsyncIterator[list[Server]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(engine(f"engine-{index}", *options))
            for index in range(number)
        ]


STRATEGIES = {
    "leastLoad": "prefix_hit_leastload",
    "prefixHash": "prefix_hit_prefixhash",
    "kvAware": "prefix_hit_kvaware",
}
ENGINES, PREFIXES, PREFIX_WORDS, TAIL_WORDS = 6, 48, 1000, 40
CLIENTS, REQUESTS, WARM_UP = 8, 600, 150
KV_TOKENS = 14_000

AFFINITY_FIGURES = (
    *(Figure(name) for name in STRATEGIES.values()),
    Figure("prefix_hash_ratio_over_leastload", digits=2),
    # Of kvAware.
    Figure("prefix_hit_ratio_over_leastload", target=Target(">=", 2), digits=2),
    Figure("pick_us_kvaware_1000_pods", "µs", digits=1),
    Figure("prefix_us_4_kib", "µs", digits=1),
)


def _prompts(seed: int) -> list[str]:
    """Return prompts in the order in which they are sent."""
    rng = random.Random(seed)  # noqa: S311
    prefixes = [
        " ".join(f"w{rng.randrange(10**6)}" for _ in range(PREFIX_WORDS)) for _ in range(PREFIXES)
    ]
    return [
        " ".join([rng.choice(prefixes), *(f"t{rng.randrange(10**6)}" for _ in range(TAIL_WORDS))])
        for _ in range(REQUESTS)
    ]


async def _hit_share(pods: Iterable[Server], strategy: str, seed: int, requests: int) -> float:
    """Return cached over all prompt tokens, after the first quarter of the requests."""
    left = iter(list(enumerate(_prompts(seed)))[:requests])
    seen: list[tuple[int, int]] = []

    async def ask(client: httpx.AsyncClient) -> None:
        for number, prompt in left:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
            answer = await client.post("/v1/completions", json=body)
            usage = answer.raise_for_status().json()["usage"]
            if number >= requests * WARM_UP / REQUESTS:
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                seen.append((cached, usage["prompt_tokens"]))

    async with (
        gateway([pod.endpoint() for pod in pods], "--strategy", strategy) as front,
        httpx.AsyncClient(base_url=front.url, timeout=120, trust_env=False) as client,
    ):
        await asyncio.gather(*(ask(client) for _ in range(CLIENTS)))
    return sum(cached for cached, _ in seen) / sum(tokens for _, tokens in seen)


async def measure_affinity(
    figures: Figures, requests: int = REQUESTS, picks: int = 1000, engines: int = ENGINES
) -> None:
    """Put the figures of affinity; takes about a minute. Each strategy has engines of its own."""
    figures.declare(AFFINITY_FIGURES)
    shares: dict[str, float] = {}
    for strategy, name in STRATEGIES.items():
        async with _engines(engines, "--kv-cache-tokens", str(KV_TOKENS)) as pods:
            shares[strategy] = await _hit_share(pods, strategy, 1, requests)
        figures.put(name, shares[strategy])
    least = max(shares["leastLoad"], 1e-9)
    figures.put("prefix_hash_ratio_over_leastload", shares["prefixHash"] / least)
    figures.put("prefix_hit_ratio_over_leastload", shares["kvAware"] / least)
    costs = [pick_us(gateway_of(1000, "kvAware"), picks) for _ in range(3)]
    figures.put("pick_us_kvaware_1000_pods", statistics.median(costs))
    figures.put("prefix_us_4_kib", _prefix_us(picks))


def _prefix_us(times: int) -> float:
    text = b"abcdefgh" * 512
    began = time.perf_counter()
    for _ in range(times):
        prefixes_of(text)
    return (time.perf_counter() - began) / times * 1e6
