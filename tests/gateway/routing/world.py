"""Pods in virtual time: each computes prompts one after the other, at a pace of its own.

Several gateways share the pods; each has a queue of its own, or dispatches at once. All decisions
are the product's; only time and engines are simulated.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.dispatch import Dispatch
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import InFlight
from argosy_gateway.routing.roster import Group
from argosy_gateway.routing.strategies import FleetView, LeastLoad, RoutingRequest


@dataclass(eq=False)
class Asked:
    """One request of the load, and what became of it."""

    at: float
    tokens: int
    flow: str = ""
    priority: int = 0
    limit_s: float = 2.0
    decode_s: float = 0.0
    dispatched_at: float | None = None
    late: bool = False
    first_at: float | None = None
    ended_at: float | None = None
    waiting: Waiting | None = None

    @property
    def met(self) -> bool:
        return self.first_at is not None and self.first_at - self.at <= self.limit_s


@dataclass
class Pod:
    endpoint: Endpoint
    tokens_per_s: float
    fixed_s: float = 0.02
    free_at: float = 0.0
    idle_s: float = 0.0
    """Time without any prompt while a request waited in some gateway."""


@dataclass
class Gateway:
    queued: bool
    dispatch: Dispatch
    in_flight: InFlight = field(default_factory=InFlight)
    strategy: LeastLoad = field(default_factory=lambda: LeastLoad(random.Random(1)))


class World:
    """`play` runs a load to its end and returns its requests."""

    def __init__(
        self,
        *paces: float,
        gateways: int = 1,
        queued: bool = True,
        places: int | None = None,
        noise: float = 1.0,
        seed: int = 0,
        stalls: float = 1.0,
    ) -> None:
        """`noise`: token estimates are wrong by a factor of up to this, either way. `stalls`: a
        prompt takes up to so many times as long as the pod's pace says."""
        self.now = 0.0
        self.pods = {
            f"p{i}": Pod(Endpoint(f"p{i}", f"p{i}", "", Role.COLOCATED, "r", State.SERVING), pace)
            for i, pace in enumerate(paces)
        }
        self.groups = [Group(tuple(pod.endpoint for pod in self.pods.values()))]
        self.gateways = [Gateway(queued, Dispatch(places)) for _ in range(gateways)]
        names = [f"g{i:03d}" for i in range(gateways)]
        for name, gateway in zip(names, self.gateways, strict=True):
            gateway.dispatch.shares.count(names, name)
            gateway.strategy = LeastLoad(random.Random(name))
            gateway.in_flight.changed = gateway.dispatch.touch
        self.dice = random.Random(seed)
        self.noise = noise
        self.stalls = stalls
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.order: list[Asked] = []
        """Dispatches, in order."""
        self._by_waiting: dict[int, Asked] = {}

    def play(self, load: Iterable[Asked], until: float = float("inf")) -> list[Asked]:
        asked = list(load)
        for one in asked:
            self._at(one.at, lambda one=one: self._arrive(one))
        while self._events and self._events[0][0] <= until:
            at, _, act = heapq.heappop(self._events)
            self._count_idle(at)
            self.now = at
            act()
        return asked

    def waiting(self) -> int:
        return sum(len(g.dispatch.line) for g in self.gateways)

    def _count_idle(self, at: float) -> None:
        if self.waiting():
            for pod in self.pods.values():
                pod.idle_s += max(0.0, at - max(self.now, pod.free_at))

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), act))

    def _arrive(self, one: Asked) -> None:
        gateway = self.dice.choice(self.gateways)
        estimate = max(1, round(one.tokens * self.noise ** self.dice.uniform(-1, 1)))
        request = RoutingRequest("", "m", True, estimate, b"")
        view = FleetView(gateway.in_flight.loads)
        if not gateway.queued:
            self._send(one, gateway, gateway.strategy.choose(request, self.groups, view), estimate)
            return
        waiting = Waiting(request, one.at, one.limit_s, one.priority, one.flow)
        one.waiting = waiting
        route = gateway.dispatch.route_at_once(
            waiting,
            self.now,
            gateway.in_flight.loads,
            lambda r: gateway.strategy.choose(r, self.groups, view),
        )
        if route is not None:
            self._send(one, gateway, route, estimate)
            return
        self._by_waiting[id(waiting)] = one
        gateway.dispatch.line.add(waiting)
        self._poll(gateway)

    def _poll(self, gateway: Gateway) -> None:
        view = FleetView(gateway.in_flight.loads)
        while grant := gateway.dispatch.next(
            self.now,
            self.groups,
            gateway.in_flight.loads,
            lambda r: gateway.strategy.choose(r, self.groups, view),
        ):
            one = self._by_waiting.pop(id(grant.waiting))
            one.late = grant.waiting.late
            self._send(one, gateway, grant.route, grant.waiting.request.prompt_tokens)

    def _send(self, one: Asked, gateway: Gateway, route, estimate: int) -> None:
        pod = self.pods[route.head.uid]
        one.dispatched_at = self.now
        self.order.append(one)
        reservation = gateway.in_flight.reserve(route, estimate)
        took_s = one.tokens / pod.tokens_per_s * self.dice.uniform(1, self.stalls)
        pod.free_at = max(pod.free_at, self.now) + pod.fixed_s + took_s
        sent_at, first_at = self.now, pod.free_at

        def first() -> None:
            one.first_at = self.now
            reservation.first_token()
            gateway.dispatch.observe(
                pod.endpoint.uid,
                ahead=reservation.ahead,
                own=estimate,
                received_at=one.at,
                sent_at=sent_at,
                first_at=first_at,
                limit_s=one.limit_s,
            )
            self._at(self.now + one.decode_s, end)
            self._poll(gateway)

        def end() -> None:
            one.ended_at = self.now
            reservation.end()
            self._poll(gateway)

        self._at(first_at, first)


def poisson(
    rate: float,
    begin: float,
    end: float,
    *,
    tokens: int,
    seed: int = 1,
    spread: float = 0.25,
    **more,
) -> list[Asked]:
    dice, at, out = random.Random(seed), begin, []
    while (at := at + dice.expovariate(rate)) < end:
        out.append(Asked(at, max(1, round(tokens * dice.uniform(1 - spread, 1 + spread))), **more))
    return out


def share(asked: Iterable[Asked]) -> float:
    listed = list(asked)
    return sum(one.met for one in listed) / len(listed)
