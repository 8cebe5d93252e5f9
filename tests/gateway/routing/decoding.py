"""Pairs of pods in virtual time: prefill computes prompts one after the other, decode pods run
their sequences step by step. All decisions are the product's."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.dispatch import Dispatch
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import InFlight, Reservation
from argosy_gateway.routing.roster import Group
from argosy_gateway.routing.strategies import FleetView, LeastLoad, RoutingRequest

_REPORT_S = 1.0


@dataclass(eq=False)
class Chat:
    """One request, and what became of it."""

    at: float
    prompt: int
    output: int
    ttft_limit_s: float = 2.0
    dispatched_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    tokens: int = 0
    reservation: Reservation | None = None

    @property
    def tpot_s(self) -> float:
        return (self.last_at - self.first_at) / max(1, self.output - 1)


@dataclass
class Decode:
    endpoint: Endpoint
    base_s: float
    each_s: float
    running: list[Chat] = field(default_factory=list)
    stepping: bool = False
    reported: tuple[float, int] = (0.0, 0)
    """Seconds in steps, and steps, since the last report."""
    most: int = 0


@dataclass
class Prefill:
    endpoint: Endpoint
    tokens_per_s: float
    free_at: float = 0.0


class Pairs:
    """`play` runs a load and returns its requests."""

    def __init__(
        self,
        *,
        decodes: int = 2,
        prefills: int = 2,
        base_s: float = 0.010,
        each_s: float = 0.001,
        tpot_limit_s: float | None = 0.050,
        places: int = 256,
        gateways: int = 1,
    ) -> None:
        def pods(role: Role, number: int) -> list[Endpoint]:
            names = [f"{role[0]}{i}" for i in range(number)]
            return [Endpoint(name, name, "", role, "r", State.SERVING) for name in names]

        heads, prompts = pods(Role.DECODE, decodes), pods(Role.PREFILL, prefills)
        self.now = 0.0
        self.decodes = {pod.uid: Decode(pod, base_s, each_s) for pod in heads}
        self.prefills = {pod.uid: Prefill(pod, 20_000.0) for pod in prompts}
        self.groups = [Group(tuple(heads), tuple(prompts))]
        self.dispatches = [Dispatch(places, tpot_limit_s=tpot_limit_s) for _ in range(gateways)]
        self.in_flight = [InFlight() for _ in range(gateways)]
        self.strategies = [LeastLoad(random.Random(n)) for n in range(gateways)]
        names = [f"g{n}" for n in range(gateways)]
        for name, dispatch, loads in zip(names, self.dispatches, self.in_flight, strict=True):
            dispatch.shares.count(names, name)
            loads.changed = dispatch.touch
        self._dice = random.Random(7)
        self._asked: dict[int, Chat] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def play(self, load: Iterable[Chat], until: float) -> list[Chat]:
        asked = list(load)
        for one in asked:
            self._at(one.at, lambda one=one: self._arrive(one))
        self._at(_REPORT_S, self._report)
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return asked

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), act))

    def _choose(self, gateway: int, request: RoutingRequest):
        view = FleetView(self.in_flight[gateway].loads)
        return self.strategies[gateway].choose(request, self.groups, view)

    def _arrive(self, one: Chat) -> None:
        gateway = self._dice.randrange(len(self.dispatches))
        request = RoutingRequest("", "m", True, one.prompt, b"")
        waiting = Waiting(request, one.at, one.ttft_limit_s)
        dispatch, loads = self.dispatches[gateway], self.in_flight[gateway].loads
        route = dispatch.route_at_once(waiting, self.now, loads, lambda r: self._choose(gateway, r))
        if route is not None:
            self._send(gateway, one, route)
            return
        self._asked[id(waiting)] = one
        dispatch.line.add(waiting)
        self._poll(gateway)

    def _poll(self, gateway: int) -> None:
        dispatch, loads = self.dispatches[gateway], self.in_flight[gateway].loads
        while grant := dispatch.next(
            self.now, self.groups, loads, lambda r: self._choose(gateway, r)
        ):
            self._send(gateway, self._asked.pop(id(grant.waiting)), grant.route)

    def _send(self, gateway: int, one: Chat, route) -> None:
        prefill, decode = self.prefills[route.prefiller.uid], self.decodes[route.head.uid]
        one.dispatched_at = sent_at = self.now
        one.reservation = reservation = self.in_flight[gateway].reserve(route, one.prompt)
        prefill.free_at = max(prefill.free_at, self.now) + one.prompt / prefill.tokens_per_s

        def first() -> None:
            one.first_at = one.last_at = self.now
            reservation.first_token()
            self.dispatches[gateway].observe(
                prefill.endpoint.uid,
                ahead=reservation.ahead,
                own=one.prompt,
                received_at=one.at,
                sent_at=sent_at,
                first_at=self.now,
                limit_s=one.ttft_limit_s,
            )
            one.tokens = 1
            decode.running.append(one)
            decode.most = max(decode.most, len(decode.running))
            if not decode.stepping:
                self._step(decode)
            self._poll(gateway)

        self._at(prefill.free_at, first)

    def _step(self, pod: Decode) -> None:
        pod.stepping = bool(pod.running)
        if not pod.stepping:
            return
        took_s = pod.base_s + pod.each_s * len(pod.running)
        batch = list(pod.running)

        def end() -> None:
            seconds, steps = pod.reported
            pod.reported = seconds + took_s, steps + 1
            for one in batch:
                one.tokens += 1
                one.last_at = self.now
                if one.tokens == one.output:
                    pod.running.remove(one)
                    one.reservation.end()
            self._step(pod)
            for gateway in range(len(self.dispatches)):
                self._poll(gateway)

        self._at(self.now + took_s, end)

    def _report(self) -> None:
        for uid, pod in self.decodes.items():
            seconds, steps = pod.reported
            pod.reported = 0.0, 0
            if steps:
                for dispatch, loads in zip(self.dispatches, self.in_flight, strict=True):
                    dispatch.observe_tpot(uid, seconds / steps, loads.loads, self.now)
        for gateway in range(len(self.dispatches)):
            self._poll(gateway)
        self._at(self.now + _REPORT_S, self._report)


def chats(rate: float, end: float, *, prompt: int, output: int, seed: int = 1) -> list[Chat]:
    """Requests at random times, with answers of half to one and a half of the length."""
    dice, at, out = random.Random(seed), 0.0, []
    while (at := at + dice.expovariate(rate)) < end:
        out.append(Chat(at, prompt, max(2, round(output * dice.uniform(0.5, 1.5)))))
    return out
