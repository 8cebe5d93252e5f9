"""The state of one gateway process: pods, loads, limits, metrics, shared by all its requests.

`cli` makes one Gateway. `pods.watch` keeps its directory current, relays and the server read it.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from argosy import descriptors
from argosy_gateway.config import DEFAULT_CLASS, Config, SettingsRead, SloClass, classes_of
from argosy_gateway.errors import UnreachableError
from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.probes import Probes
from argosy_gateway.pods.proof import Certificates, Proof
from argosy_gateway.relay.bodies import Bodies
from argosy_gateway.relay.metrics import Metrics
from argosy_gateway.relay.resume import IdBudget
from argosy_gateway.routing.estimates import FleetPace, TokensPerChar, Transfers
from argosy_gateway.routing.load import InFlight
from argosy_gateway.routing.queue import Queue
from argosy_gateway.routing.roster import Group, Roster, Route
from argosy_gateway.routing.strategies import (
    STRATEGIES,
    FleetView,
    LearningStrategy,
    RoutingRequest,
    Strategy,
)
from argosy_gateway.wire.pool import Peer, Pool
from argosy_gateway.wire.sse import Usage

__all__ = ["Gateway", "Moves", "RetryBudget"]

_REQUESTS_PER_RETRY = 10
"""In the long run retries add at most a tenth to the engines' work."""


class RetryBudget:
    """A bucket of retries. It starts full and never has more than the reserve."""

    def __init__(self, reserve: int) -> None:
        """`reserve` is in retries; the bucket counts in requests, ten to a retry."""
        self._full = self._left = reserve * _REQUESTS_PER_RETRY

    def count_request(self) -> None:
        """A request was accepted."""
        self._left = min(self._left + 1, self._full)

    def take(self) -> bool:
        """Whether one more retry may be made; if so, it is taken from the bucket."""
        if self._left < _REQUESTS_PER_RETRY:
            return False
        self._left -= _REQUESTS_PER_RETRY
        return True


_LONGEST_MOVE_S = 5.0
"""A move that takes longer, because no pod takes the request, does not hold up the others."""


class Moves:
    """The requests that are on their way from a draining pod to another one."""

    def __init__(self, clock: Callable[[], float], most: Callable[[], int]) -> None:
        """`most`: how many may be on their way, at this moment."""
        self._clock, self._most = clock, most
        self._under_way: dict[object, float] = {}
        """Requests that have left, and when."""
        self._waiting: dict[object, Callable[[], bool]] = {}
        """What makes a request leave, in the order in which they asked."""

    def ask(self, request: object, leave: Callable[[], bool]) -> None:
        """`leave` is called when it is this request's turn, maybe at once, and says whether it has
        left. To be asked again until it has."""
        if request not in self._under_way:
            self._waiting[request] = leave
            self._let_leave()

    def end(self, request: object) -> None:
        """The request goes on elsewhere, or has ended; it may not have moved at all."""
        self._waiting.pop(request, None)
        if self._under_way.pop(request, None) is not None:
            self._let_leave()

    def _let_leave(self) -> None:
        now = self._clock()
        late = [r for r, left_at in self._under_way.items() if now - left_at >= _LONGEST_MOVE_S]
        for request in late:
            del self._under_way[request]
        while self._waiting and len(self._under_way) < self._most():
            request = next(iter(self._waiting))
            leave = self._waiting.pop(request)
            if leave():
                self._under_way[request] = now


_WHOLE = 100
"""Percent."""
_MOVES_PER_POD = 4
"""Of each pod that computes prompts. A pod needs some tenths of a second for so many, so that two
hundred streams have left in seconds, and a new prompt waits little longer than in any other batch.
"""


class _InFlight(Protocol):
    """A request in flight, as the sweeper sees it."""

    def check_time(self, now: float) -> None: ...

    def take_tpot(self) -> tuple[str, float] | None: ...


class Gateway:
    """The shared state of one gateway process."""

    settings_read = SettingsRead()
    """What came of the settings object; set by `options`."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        """`clock` is the event loop's time, in seconds. Raises CredentialsError."""
        self.config = config
        self.clock = clock
        self.named = asyncio.Event()
        """Set as soon as the model's names are known."""
        if config.served_names:
            self.named.set()
        self.classes = classes_of(config.slo, config.slo_classes)
        self.metrics = Metrics(config.slo, self.classes, holds_first_tokens=config.hold_first_token)
        self.metrics.expect_models(self.names)
        self.bodies = Bodies(config.limits)
        self.certificates = Certificates(config.tls_dir)
        self.directory = Directory(clock, speaks_tls=self.certificates.exist)
        self.probes = Probes(
            self.directory,
            self.certificates,
            silent_s=config.limits.silent_s,
            connect_s=config.limits.connect_s,
            clock=clock,
        )
        self.proof = Proof(config.token_file)
        self.connections = Pool(
            lambda: self.clock(),  # tests replace the clock
            idle_s=config.limits.kept_s,
            most_of_one=config.limits.kept_per_engine,
            most=descriptors.share(1 / 5, most=config.limits.kept_connections),
            most_body_bytes=config.limits.kept_body_bytes,
        )
        self._roster = Roster(self.directory)
        self.in_flight = InFlight()
        self.view = FleetView(self.in_flight.loads, self.directory.pairs.avoids)
        self.pace = FleetPace()
        self.computing = FleetPace()
        """Of the prompts whose handover this gateway led, without tokens that were cached."""
        self.transfers = Transfers(lambda: self.clock())
        self.tokens_per_char = TokensPerChar()
        self.strategy: Strategy
        self._learner: LearningStrategy | None
        """Asked once: to look for a protocol's methods takes 20 µs."""
        self._set_strategy(config.strategy)
        self._made: dict[bool, Queue] = {}
        """A queue for requests of the canary, and one for the others. Requests may still wait in
        them after the settings have turned them off."""
        self._due = 0
        """Percent of a request that the canary is behind its share."""
        self._set_queues(config)
        self.id_budget = IdBudget(config.limits.kept_ids_bytes)
        self.retries = RetryBudget(config.limits.retry_reserve)
        self.moves = Moves(clock, self._most_moves)
        self.relays: set[_InFlight] = set()
        """Requests in flight, waiting ones included."""
        self._running: set[asyncio.Future[None]] = set()
        """Work that no request waits for; the loop itself holds no task."""
        self._active_at = clock()
        """When the last request ended or was shed; before the first, when this process began."""
        self._has_served = False
        self._unserved_since: float | None = None
        self.without_pods_at = float("-inf")
        """When no engine pod could serve last, as `sweep` saw it."""
        self.contexts: dict[str, int] = {}
        """Revision → the context of its engines in tokens, once one has said it."""
        self.draining = False
        """SIGTERM has come; set by `server.serve`."""

    def reconfigure(self, config: Config) -> None:
        """Go on with other settings. Requests in flight keep what they were given; their class, if
        there is none of its name any more, counts as the default one."""
        before, self.config = self.config, config
        if config.served_names:
            self.named.set()
        self.classes = classes_of(config.slo, config.slo_classes)
        self.metrics.reconfigure(
            config.slo, self.classes, holds_first_tokens=config.hold_first_token
        )
        self.metrics.expect_models(self.names)
        self.bodies.limits = config.limits
        if config.strategy != before.strategy:
            self._set_strategy(config.strategy)
        self._set_queues(config)
        self.directory.notify()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients may ask for: the model's first."""
        return (*self.config.served_names, *self.config.adapters)

    def class_of(self, name: str) -> SloClass:
        """The class of a request that came when the settings had it."""
        return self.classes.get(name) or self.classes[DEFAULT_CLASS]

    def groups(
        self,
        tried: Collection[str] = (),
        *,
        only_healthy: bool = False,
        revision: str | None = None,
        adapter: str = "",
        canary: bool | None = None,
    ) -> list[Group]:
        """Groups of the pods that a request is best sent to; see `Roster.groups`."""
        return self._roster.groups(
            tried, only_healthy=only_healthy, revision=revision, adapter=adapter, canary=canary
        )

    def take_turn(self, adapter: str = "") -> bool:
        """Whether a new request is the canary's: exactly its share of them, as long as it can serve
        them. A turn that it cannot take is not made up for."""
        canary = self.config.canary
        if canary is None:
            return False
        self._due += canary.percent
        if self._due < _WHOLE:
            return False
        self._due -= _WHOLE
        return bool(self._roster.groups_of_side(adapter=adapter, of=True))

    def queue_of(self, *, canary: bool) -> Queue | None:
        """Where a request waits for its pod; None: each is dispatched at once. Requests of the
        canary wait apart: they may not be sent to pods of others."""
        return self._made[canary and canary in self._made] if self._queues else None

    @property
    def queue(self) -> Queue | None:
        """Where requests of other pods than the canary's wait."""
        return self.queue_of(canary=False)

    def queue_of_pod(self, pod: Endpoint) -> Queue | None:
        """Where the requests of this pod wait."""
        return self.queue_of(canary=pod.revision == self._roster.canary)

    def waiting(self) -> tuple[int, int]:
        """How many requests wait, and their estimated prompt tokens."""
        queues = self._made.values() if self._queues else ()
        return sum(map(len, queues)), sum(queue.prompt_tokens for queue in queues)

    def keep_running(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no request waits for."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def mark_active(self) -> None:
        """A request ended, or was refused because of load: the fleet is in use."""
        self._active_at = self.clock()

    def idle_s(self) -> float:
        """Seconds without a request; 0 while there is one."""
        return 0.0 if self.relays else self.clock() - self._active_at

    def patience_s(self) -> float:
        """How long a request that comes now waits for a pod. Longer in a fleet that starts from
        zero pods, as they take a cold start to come."""
        wake_s = self.config.wake_timeout_s
        if wake_s is None or self.groups():
            return self.config.queue_timeout_s
        return max(wake_s, self.config.queue_timeout_s)

    def report_sent(self, request: RoutingRequest, route: Route) -> None:
        """Tell the strategy, if it learns, which way a request goes."""
        if self._learner is not None:
            self._learner.remember(request, route)

    def headers_for(self, pod: Endpoint) -> list[tuple[str, str]]:
        """Headers that say which pod is meant, and that prove who calls."""
        if pod.keyed:
            return [("authorization", f"Bearer {pod.uid}")]
        return [("x-argosy-pod-uid", pod.uid), *self.proof.headers()]

    def peer_of(self, pod: Endpoint) -> Peer:
        """This pod, as it is called now. Raises UnreachableError if that needs a certificate that
        this gateway has not."""
        tls = self.certificates.context() if pod.tls else None
        return Peer(pod.uid, pod.ip, pod.port, tls)

    def _may_be_called(self, peer: Peer) -> bool:
        """Whether connections to it are kept: it serves, and would be called in the same way."""
        pod = self.directory.get(peer.uid)
        if pod is None or pod.state is not State.SERVING:
            return False
        try:
            return self.peer_of(pod) == peer
        except UnreachableError:
            return False

    def learn(self, request: RoutingRequest, route: Route, usage: Usage | None) -> None:
        """Tell the strategy, if it learns, what the engine of an answered request found cached."""
        cached = usage.cached_tokens if usage is not None else None
        if cached is not None and self._learner is not None:
            self._learner.learn(request, route, cached_tokens=cached)

    def unserved_s(self) -> float:
        """Seconds for which engine pods exist, and have served, but none can serve; else 0.

        Counted from when this, or `sweep`, first saw it. A fleet without engine pods, or with none
        but draining ones, is one that waits for its first request.
        """
        now, directory = self.clock(), self.directory
        if self.groups():
            self._has_served, self._unserved_since = True, None
            return 0.0
        self.without_pods_at = now
        if all(pod.state is State.DRAINING for pod in directory.all()):
            self._has_served, self._unserved_since = False, None
        elif self._has_served and self._unserved_since is None:
            self._unserved_since = now
        return 0.0 if self._unserved_since is None else now - self._unserved_since

    def _most_moves(self) -> int:
        """Prompts of moving requests that may be computed at once."""
        serving = self.directory.serving()
        computing = [pod for pod in serving if pod.role is not Role.DECODE] or serving
        return max(1, _MOVES_PER_POD * len(computing))

    def _set_strategy(self, strategy: str) -> None:
        self.strategy = STRATEGIES[strategy](random.Random())  # noqa: S311
        self._learner = self.strategy if isinstance(self.strategy, LearningStrategy) else None

    def _set_queues(self, config: Config) -> None:
        """Have the canary and the queues that the settings ask for. Queues that were made stay for
        what waits in them."""
        self._roster.canary = config.canary.revision if config.canary is not None else ""
        self._queues = config.queue == "deadline"
        tpot_limit_s = config.slo.tpot_s if config.slo is not None else None
        for queue in self._made.values():
            queue.reconfigure(self.strategy, config.engine_places, tpot_limit_s)
        for canary in (False, True) if config.canary is not None else (False,):
            if self._queues and canary not in self._made:
                self._made[canary] = self._new_queue(tpot_limit_s, canary=canary)

    def _new_queue(self, tpot_limit_s: float | None, *, canary: bool) -> Queue:
        return Queue(
            groups=lambda: self.groups(canary=canary),
            directory=self.directory,
            in_flight=self.in_flight,
            view=self.view,
            strategy=self.strategy,
            clock=self.clock,
            places=self.config.engine_places,
            tpot_limit_s=tpot_limit_s,
            name=self.config.pod_name,
        )

    def role_mode(self) -> str:
        """Value of the label `role_mode` for requests that reached no pod."""
        apart = self.directory.has(Role.PREFILL) or self.directory.has(Role.DECODE)
        return "disaggregated" if apart else "colocated"

    def sweep(self) -> None:
        """Leave engines that are silent for too long, and close connections to engines that are not
        used. Called about once a second."""
        self.unserved_s()
        self.connections.sweep(self._may_be_called)
        now = self.clock()
        for relay in tuple(self.relays):
            relay.check_time(now)
        if self._made:
            tpots = self._tpots()
            for queue in self._made.values():
                queue.observe_streams(tpots)

    def _tpots(self) -> dict[str, list[float]]:
        """What `Queue.observe_streams` takes."""
        by_pod: dict[str, list[float]] = {}
        for relay in self.relays:
            if (took := relay.take_tpot()) is not None:
                by_pod.setdefault(took[0], []).append(took[1])
        return by_pod
