"""Which pods serve the next request. Pure but for the random source that it is given.

`leastLoad` scans every pod: fleets have tens of pods, and the scan costs microseconds. Load is what
this gateway itself has in flight; another replica of it has its own. Ties are broken at random, so
that replicas do not all choose the same pod.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from argosy_gateway.pods.endpoints import Endpoint, Role
from argosy_gateway.pods.health import HEALTHY, Health
from argosy_gateway.routing.pair_health import Group

__all__ = [
    *(
        "STRATEGIES",
        "InFlight",
        "Reservation",
        "LeastLoad",
        "Load",
        "RoundRobin",
        "Route",
        "Strategy",
    ),
    "candidates",
]

_PREFILL_CANDIDATES = 3


@dataclass(frozen=True, slots=True)
class Route:
    """`head` gets the request; `prefills` are its candidates in order, where it has any."""

    head: Endpoint
    prefills: tuple[Endpoint, ...] = ()

    @property
    def prefiller(self) -> Endpoint:
        """The pod that is to compute the prompt."""
        return self.prefills[0] if self.prefills else self.head

    @property
    def mode(self) -> str:
        """The label `role_mode`: the head's, also where no prefill pod was ready."""
        return "colocated" if self.head.role is Role.COLOCATED else "disaggregated"


def candidates(
    serving: Iterable[Endpoint],
    health: Health,
    *,
    tried: Collection[str] = (),
    only_healthy: bool = False,
) -> list[Endpoint]:
    """The pods among which a strategy chooses: all prefill pods, and the best of the others.

    Best are pods that this request has not tried, then those with the lowest rank; for a retry,
    then those whose last request did not fail. `only_healthy`: none
    but untried ones of rank `HEALTHY`.
    """
    heads: dict[tuple[bool, int, bool], list[Endpoint]] = {}
    prefills: list[Endpoint] = []
    for pod in serving:
        if pod.role is Role.PREFILL:
            prefills.append(pod)
        elif (rank := health.rank(pod.uid)) is not None:
            failed_recently = bool(tried) and health.failed_recently(pod.uid)
            heads.setdefault((pod.uid in tried, rank, failed_recently), []).append(pod)
    best = min(heads, default=None)
    if best is None or (only_healthy and best[:2] != (False, HEALTHY)):
        return []
    return prefills + heads[best]


@dataclass(slots=True)
class Load:
    """What this gateway has in flight on one pod."""

    sequences: int = 0
    prompt_tokens: int = 0
    """Of requests without a first token yet."""


class Strategy(Protocol):
    """The seam for strategies that look at the prompt: they would get a prefix key besides."""

    def choose(self, groups: Sequence[Group], loads: Mapping[str, Load]) -> Route | None:
        """A route through one of the groups; None when there is no group."""
        ...


class LeastLoad:
    """Group by sequences per pod, prefill by outstanding prompt tokens, head by sequences."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, groups: Sequence[Group], loads: Mapping[str, Load]) -> Route | None:
        """See the class."""
        if not groups:
            return None
        rng = self._rng

        def sequences(pod: Endpoint) -> int:
            load = loads.get(pod.uid)
            return load.sequences if load else 0

        def prompt_tokens(pod: Endpoint) -> int:
            load = loads.get(pod.uid)
            return load.prompt_tokens if load else 0

        def pressure(g: Group) -> tuple[float, float]:
            # The random part is weighted: among idle groups each is chosen by its share of pods.
            return sum(map(sequences, g.heads)) / g.size, rng.random() ** (1.0 / g.size) * -1.0

        chosen = min(groups, key=pressure)
        head = min(chosen.heads, key=lambda p: (sequences(p), prompt_tokens(p), rng.random()))
        prefills = sorted(
            chosen.prefills, key=lambda p: (prompt_tokens(p), sequences(p), rng.random())
        )
        return Route(head, tuple(prefills[:_PREFILL_CANDIDATES]))


class RoundRobin:
    """Heads in turn, over all groups; prefills of the head's group in turn."""

    def __init__(self, rng: random.Random) -> None:
        self._turn = rng.randrange(1024)

    def choose(self, groups: Sequence[Group], loads: Mapping[str, Load]) -> Route | None:  # noqa: ARG002
        """See the class."""
        heads = [(g, head) for g in groups for head in g.heads]
        if not heads:
            return None
        self._turn += 1
        chosen, head = heads[self._turn % len(heads)]
        prefills = chosen.prefills
        first = self._turn % len(prefills) if prefills else 0
        return Route(head, (prefills[first:] + prefills[:first])[:_PREFILL_CANDIDATES])


STRATEGIES: dict[str, Callable[[random.Random], Strategy]] = {
    "leastLoad": LeastLoad,
    "roundRobin": RoundRobin,
}


class InFlight:
    """Loads by pod uid, kept by reservations."""

    def __init__(self) -> None:
        self.loads: dict[str, Load] = {}

    def reserve(self, route: Route, prompt_tokens: int) -> "Reservation":
        """InFlight a request on a route; the reservation's `end` must follow."""
        return Reservation(self, route, prompt_tokens)

    def outstanding_prompt_tokens(self) -> int:
        """Of all pods."""
        return sum(load.prompt_tokens for load in self.loads.values())


class Reservation:
    """One request's share of the loads; every method may be called twice."""

    __slots__ = ("_decoding", "_in_flight", "_open", "_prefilling", "_prompt_tokens")

    def __init__(self, in_flight: InFlight, route: Route, prompt_tokens: int) -> None:
        self._in_flight = in_flight
        self._decoding = route.head.uid
        self._prefilling: str | None = route.prefiller.uid
        self._prompt_tokens = prompt_tokens
        self._open = True
        self._add(self._decoding, sequences=1)
        self._add(self._prefilling, prompt_tokens=prompt_tokens)
        if route.prefills:
            self._add(self._prefilling, sequences=1)

    def first_token(self) -> None:
        """The prompt is done, or predicted to be."""
        if self._prefilling is None:
            return
        self._add(self._prefilling, prompt_tokens=-self._prompt_tokens)
        if self._prefilling != self._decoding:
            self._add(self._prefilling, sequences=-1)
        self._prefilling = None

    def end(self) -> None:
        """The request is done with."""
        self.first_token()
        if self._open:
            self._open = False
            self._add(self._decoding, sequences=-1)

    def _add(self, uid: str, *, sequences: int = 0, prompt_tokens: int = 0) -> None:
        load = self._in_flight.loads.setdefault(uid, Load())
        load.sequences += sequences
        load.prompt_tokens += prompt_tokens
        if load.sequences == 0 and load.prompt_tokens == 0:
            del self._in_flight.loads[uid]  # pods come and go: keep no row of an idle one
