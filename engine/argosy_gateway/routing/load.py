"""What this gateway has in flight on each pod. Pure.

An attempt reserves its share on a route when it starts and gives it back when it ends; strategies
and admission read the loads. Other replicas of the gateway have loads of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from argosy_gateway.routing.roster import Route

__all__ = ["IDLE", "Hold", "InFlight", "PodLoad", "Reservation"]


@dataclass(slots=True)
class PodLoad:
    """What this gateway has in flight on one pod."""

    sequences: int = 0
    """Requests on the pod; on a prefill pod only until their first token."""
    prompt_tokens: int = 0
    """Estimated prompt tokens of the requests without a first token yet."""
    prompts: int = 0
    """Requests without a first token yet whose prompt this pod computes."""


IDLE = PodLoad()
"""Of a pod without a row; never written."""


class InFlight:
    """Loads by pod uid. Idle pods have no row, so pods that are gone leave none."""

    def __init__(self) -> None:
        self.loads: dict[str, PodLoad] = {}
        self.holding: dict[str, int] = {}
        """Prefill pods by uid → the handovers that the gateway leads from there and that are not
        over. Idle ones have no row."""
        self.decoding = 0
        """Requests that have their first token, or are predicted to, and have not ended."""
        self.released: Callable[[], None] = lambda: None
        """Called whenever a pod's load falls."""
        self.changed: Callable[[str], None] = lambda _uid: None
        """Called with the uid of each pod whose load changes."""

    def reserve(self, route: Route, prompt_tokens: int) -> "Reservation":
        """Add a request to the loads of a route; the reservation's `end` must follow. Tokens that
        the route expects in the cache are not computed."""
        return Reservation(self, route, max(1, prompt_tokens - route.cached_tokens))

    def hold(self, uid: str) -> "Hold":
        """Count a handover from this prefill pod; the hold's `end` must follow."""
        return Hold(self.holding, uid)


class Hold:
    """A prefill pod is busy with a handover: it computes a prompt, or keeps its KV to be pulled."""

    __slots__ = ("_holding", "_uid")

    def __init__(self, holding: dict[str, int], uid: str) -> None:
        self._holding, self._uid = holding, uid
        holding[uid] = holding.get(uid, 0) + 1

    def end(self) -> None:
        """The pod may go, as far as this handover is concerned. May be called twice."""
        if not self._uid:
            return
        self._holding[self._uid] -= 1
        if not self._holding[self._uid]:
            del self._holding[self._uid]
        self._uid = ""


class Reservation:
    """One request's share of the loads; every method may be called twice."""

    __slots__ = ("_decoding", "_in_flight", "_open", "_prefilling", "_prompt_tokens", "ahead")

    def __init__(self, in_flight: InFlight, route: Route, prompt_tokens: int) -> None:
        self._in_flight = in_flight
        self._decoding = route.head.uid
        self._prefilling: str | None = route.prefiller.uid
        self._prompt_tokens = prompt_tokens
        self._open = True
        if route.prefills:
            self._add(self._decoding, sequences=1)
        load = self._add(self._prefilling, sequences=1, prompt_tokens=prompt_tokens, prompts=1)
        self.ahead = load.prompt_tokens
        """Prompt tokens outstanding on the pod that computes the prompt when this began, its own
        included."""

    def first_token(self) -> None:
        """The prompt is computed, or predicted to be: its tokens leave the load."""
        if self._prefilling is None:
            return
        self._in_flight.decoding += 1
        self._add(self._prefilling, prompt_tokens=-self._prompt_tokens, prompts=-1)
        if self._prefilling != self._decoding:
            self._add(self._prefilling, sequences=-1)
        self._prefilling = None

    def end(self) -> None:
        """The attempt has ended: all of it leaves the load."""
        self.first_token()
        if self._open:
            self._open = False
            self._in_flight.decoding -= 1
            self._add(self._decoding, sequences=-1)

    def _add(
        self, uid: str, *, sequences: int = 0, prompt_tokens: int = 0, prompts: int = 0
    ) -> PodLoad:
        loads = self._in_flight.loads
        if (load := loads.get(uid)) is None:
            load = loads[uid] = PodLoad()
        load.sequences += sequences
        load.prompt_tokens += prompt_tokens
        load.prompts += prompts
        if load.sequences == 0 and load.prompts == 0:
            del loads[uid]
        self._in_flight.changed(uid)
        if prompts < 0 or sequences < 0:
            self._in_flight.released()
        return load
