"""What a choice of pods costs the gateway, part of `make bench-gateway`. No sockets are involved.

Each run sends a thousand requests through the groups, the strategy and the loads, with up to eight
in flight a pod. Every hundredth changes what is known of a pod's health, as in a fleet of which
some pods are busy.
"""

import random
import statistics
import time
from collections import deque

from argosy_bench.figures import Figure, Figures, Target
from argosy_gateway.config import Config
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.routing.dispatch import Dispatch
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import Reservation
from argosy_gateway.routing.strategies import RoutingRequest

__all__ = ["FIGURES", "dispatch_us", "measure"]

PICKS, RUNS = 1000, 5

FIGURES = (
    Figure("pick_us_10_pods", "µs", digits=1),
    Figure("pick_us_1000_pods", "µs", Target("<=", 100, of_the_machine=True), digits=1),
    Figure("dispatch_us_1000_pods", "µs", Target("<=", 100, of_the_machine=True), digits=1),
)


def gateway_of(pods: int, strategy: str = "leastLoad") -> Gateway:
    """A gateway that knows so many pods: half prefill, half decode."""
    gateway = Gateway(Config("f", "n", ("m",), strategy=strategy), time.monotonic)
    roles = (Role.PREFILL, Role.DECODE)
    gateway.directory.replace(
        Endpoint(f"uid-{i}", f"pod-{i}", "10.0.0.1", roles[i % 2], "r", State.SERVING)
        for i in range(pods)
    )
    return gateway


def pick_us(gateway: Gateway, picks: int) -> float:
    """CPU time of one pick in microseconds, mean of many: groups, choice, place in the loads."""
    pods = len(gateway.directory.all())
    rng = random.Random(1)  # noqa: S311
    open_: deque[Reservation] = deque()
    request = RoutingRequest("id", "m", stream=True, prompt_tokens=100, prompt_start=b"x" * 400)
    took_s = 0.0
    for number in range(picks):
        if number % 100 == 0:
            gateway.directory.health.busy(f"uid-{rng.randrange(pods)}")
        if len(open_) >= 8 * pods:
            open_.popleft().end()
        began = time.thread_time()
        route = gateway.strategy.choose(request, gateway.groups(), gateway.view)
        assert route is not None
        open_.append(gateway.in_flight.reserve(route, request.prompt_tokens))
        took_s += time.thread_time() - began
    return took_s / picks * 1e6


def dispatch_us(gateway: Gateway, dispatches: int) -> float:
    """CPU time of one dispatch from the queue in microseconds, mean of many.

    Every pod is busy and more requests wait than may go; each prompt that ends lets one go.
    """
    dispatch, rng = Dispatch(avoids=gateway.view.avoids), random.Random(1)  # noqa: S311
    gateway.in_flight.changed = dispatch.touch
    loads, request = gateway.in_flight.loads, RoutingRequest("id", "m", True, 2000, b"x" * 400)
    for group in gateway.groups():
        for pod in group.prefills:
            for _ in range(4):
                dispatch.pace.observe(pod.uid, ahead=4000, own=2000, seconds=0.4)
    open_: list[Reservation] = []

    def let_go() -> None:
        while grant := dispatch.next(
            0.0,
            gateway.groups(),
            loads,
            lambda r: gateway.strategy.choose(r, gateway.groups(), gateway.view),
        ):
            open_.append(gateway.in_flight.reserve(grant.route, request.prompt_tokens))

    for _ in range(dispatches + 4 * len(gateway.directory.all())):
        waiting = Waiting(request, 0.0, 2.5)
        dispatch.at_once(waiting, 0.0, loads, lambda _: None)
        dispatch.line.add(waiting)
    let_go()
    assert len(dispatch.line) >= dispatches
    began = time.thread_time()
    for _ in range(dispatches):
        open_.pop(rng.randrange(len(open_))).end()
        let_go()
    return (time.thread_time() - began) / dispatches * 1e6


async def measure(figures: Figures, picks: int = PICKS, runs: int = RUNS) -> None:
    """Put every figure of `FIGURES`; medians of alternating runs."""
    few, many, queued = [], [], []
    for _ in range(runs):
        few.append(pick_us(gateway_of(10), picks))
        many.append(pick_us(gateway_of(1000), picks))
        queued.append(dispatch_us(gateway_of(1000), picks))
    figures.put("pick_us_10_pods", statistics.median(few))
    figures.put("pick_us_1000_pods", statistics.median(many))
    figures.put("dispatch_us_1000_pods", statistics.median(queued))
