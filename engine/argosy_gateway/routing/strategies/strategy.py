"""The seam for strategies: what one is given, and what it returns.

`relay` calls `choose` once per attempt. A strategy is registered by a row in `registry`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.load import Load

__all__ = ["PREFILL_CANDIDATES", "FleetView", "LearningStrategy", "RoutingRequest", "Strategy"]

PREFILL_CANDIDATES = 3
"""Most prefill pods of one route: the head asks the next one when one refuses."""

_IDLE = Load()


class RoutingRequest(NamedTuple):
    """What a strategy may know about a request. The same for every attempt of it."""

    request_id: str
    """The client's `x-request-id`, or one that the gateway made."""
    model: str
    """The served name that the client asked for."""
    stream: bool
    prompt_tokens: int
    """Length of the prompt, estimated from its characters; at least 1."""
    prompt_start: bytes
    """The first 1,024 characters of the prompt in UTF-8. Messages are joined by a space; token ids
    are written in decimal. Requests with a common start can share KV cache."""
    cache_key: str | None = None
    """OpenAI's `prompt_cache_key`: requests of one session or application. None if not given."""
    prefixes: tuple[int, ...] = ()
    """Chained hashes of the prompt's text, one for each 256 bytes (`wire.prefixes`). Empty for
    strategies without affinity, and for prompts that are shorter."""
    prompt_chars: int = 0
    """Length of the prompt's text."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """What a strategy may know about the pods besides their groups. Read only."""

    loads: Mapping[str, Load]
    """What this gateway has in flight, by pod uid. An idle pod has no row."""

    avoids: Callable[[str, str], bool] = lambda _prefill, _decode: False
    """Whether a prefill pod (uid) is to be named after the others for a decode pod (uid), because
    their handovers fail; see `pods.pairs`."""

    def load(self, pod: Endpoint) -> Load:
        """The load of one pod, zero if it is idle."""
        return self.loads.get(pod.uid, _IDLE)


class Strategy(Protocol):
    """Chooses the pods of one attempt."""

    def choose(
        self, request: RoutingRequest, groups: Sequence[Group], view: FleetView
    ) -> Route | None:
        """A route through one of the groups; None only when there is no group."""
        ...


@runtime_checkable
class LearningStrategy(Strategy, Protocol):
    """A strategy that is told what its choices led to."""

    def sent(self, request: RoutingRequest, route: Route) -> None:
        """The request is sent this way, which need not be the way that was chosen last: with a
        queue, a choice may be asked for again, or be replaced."""
        ...

    def learn(self, request: RoutingRequest, route: Route, *, cached_tokens: int) -> None:
        """The route's request was answered; its engine found so many prompt tokens in its cache."""
        ...
