"""The port to Prometheus: `protocols.Metrics`, from one round of queries per interval and server.

A fleet asks for its measurements when its law is due (`shell/gather.py`). Fleets of one server and
of equal `Spans` share their rounds, so the number of queries does not grow with the number of
fleets; fleets that set other windows in their spec have rounds of their own. Each server has
threads of its own: a server that hangs delays only its own fleets. A failure is returned as
`Unknown` with a reason; nothing raises, and no fleet waits longer than `longest_s`.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from argosy.urls import hide_credentials
from argosy_law.canary import BIN_S
from argosy_law.observe import unknown_metrics
from argosy_operator.adapters.prometheus.allowlist import NOTHING_ELSE, Allowlist
from argosy_operator.adapters.prometheus.collect import (
    Collected,
    Fleets,
    Question,
    ask_verdicts,
    collect,
    take,
)
from argosy_operator.adapters.prometheus.queries import Spans
from argosy_operator.adapters.prometheus.rounds import SharedRounds
from argosy_operator.adapters.prometheus.server import NoAnswerError, Server, ServerAccess
from argosy_operator.adapters.protocols import FleetPods, Measurement
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.core.snapshot.snapshot import VerdictsRead
from argosy_operator.core.steps.goals import goals_of

log = logging.getLogger("argosy.prometheus")

SERVERS = 32
UNUSED_S = 600.0
QUERIES = 4
"""Of a round that is not split."""
LONGEST_SHARE = 2 / 3
"""Of the interval: how long a fleet waits for its round at most. The rest is for its own round."""
WHOLE_AGAIN_S = 600.0
"""After this time a round that had to be split is asked for as a whole again."""

NO_PROMETHEUS = (
    "NoPrometheus: set prometheus.url in the values of the operator's chart, or "
    "spec.metrics.prometheus.url where the chart allows it"
)
NOT_ALLOWED = (
    "PrometheusNotAllowed: spec.metrics.prometheus.url is not in the operator's allow-list; leave "
    "it out, or have its host:port added to prometheus.allowed in the values of the operator's "
    "chart"
)
NO_ROOM = (
    "PrometheusBusy: as many addresses of Prometheus as the operator asks at once are being asked; "
    "let fleets share one"
)
NO_METRICS = (
    "PrometheusAway: spec.metrics.prometheus.url gives no metrics; the operator's log has the cause"
)


class PrometheusMetrics:
    """Fulfils `protocols.Metrics`. `url` is the server that the operator was installed with;
    `access` is for that server alone and never goes to an address out of a user's object."""

    def __init__(
        self,
        url: str | None,
        *,
        allowed: Allowlist = NOTHING_ELSE,
        timeout_s: float = 5.0,
        access: ServerAccess | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: seconds since the epoch."""
        self.url, self.allowed, self.timeout_s = url, allowed, timeout_s
        self._access, self._clock = access, clock
        self._servers: dict[str, Server] = {}
        self._groups: dict[tuple[str, Spans], _Group] = {}

    async def measure(self, fleet: ServingDeployment, pods: FleetPods) -> Measurement:
        url = fleet.spec.metrics.prometheus.url or self.url
        key = (fleet.namespace, fleet.name)
        windows = goals_of(fleet.spec).windows
        return await self.ask(url, Question(key, windows, pods, fleet.metadata.uid))

    async def verdicts(self, fleet: ServingDeployment, since: float) -> VerdictsRead:
        url = fleet.spec.metrics.prometheus.url or self.url
        if not url:
            return VerdictsRead(problem=NO_PROMETHEUS)
        if url != self.url and not self.allowed.permits(url):
            return VerdictsRead(problem=NOT_ALLOWED)
        server = self._server(url)
        if server is None:
            return VerdictsRead(problem=NO_ROOM)
        key = (fleet.namespace, fleet.name)
        windows, now = goals_of(fleet.spec).windows, self._clock()
        step_s = max(BIN_S, windows.scrape_s)
        work = server.submit(
            lambda asked: ask_verdicts(asked, key, since=since, step_s=step_s, now=now)
        )
        try:
            async with asyncio.timeout(self.longest_s(windows.interval_s)):
                return VerdictsRead(await asyncio.wrap_future(work))
        except TimeoutError:
            cause = f"PrometheusTimeout: {hide_credentials(url)} did not answer in time"
        except NoAnswerError as error:
            cause = error.reason
        return VerdictsRead(problem=self._group(url, Spans.of(windows)).for_user(cause))

    async def ask(self, url: str | None, question: Question) -> Measurement:
        """Return the fleet's share of a round that began less than an interval ago."""
        interval_s = question.windows.interval_s
        next_at = asyncio.get_running_loop().time() + interval_s
        if not url:
            return self._unknown(NO_PROMETHEUS, next_at)
        if url != self.url and not self.allowed.permits(url):
            return self._unknown(NOT_ALLOWED, next_at)
        self._touch(url)
        group = self._group(url, Spans.of(question.windows))
        longest_s = self.longest_s(interval_s)
        try:
            async with asyncio.timeout(longest_s):
                taken, next_at = await group.rounds.take(question.fleet)
                if isinstance(taken, NoAnswerError):
                    raise taken
                metrics = await asyncio.to_thread(take, taken, question)
            return Measurement(metrics, next_at)
        except TimeoutError:
            cause = f"PrometheusTimeout: {hide_credentials(url)} took over {longest_s:g} s"
        except NoAnswerError as error:
            cause = error.reason
        return self._unknown(group.for_user(cause), next_at)

    def longest_s(self, interval_s: float) -> float:
        """Return how long a fleet waits for its round, in seconds.

        Each query has `timeout_s`, so a server that hangs is given up after that. One that answers
        may take longer for all fleets together, as long as decisions keep their interval.
        """
        return max(self.timeout_s, min(QUERIES * self.timeout_s, LONGEST_SHARE * interval_s))

    def close(self) -> None:
        for group in self._groups.values():
            group.rounds.close()
        for server in self._servers.values():
            server.end()

    def _unknown(self, reason: str, next_at: float) -> Measurement:
        return Measurement(unknown_metrics(self._clock(), reason), next_at)

    def _group(self, url: str, spans: Spans) -> "_Group":
        group = self._groups.get((url, spans))
        if group is None:
            self._groups = {k: g for k, g in self._groups.items() if not g.rounds.unused}
            group = self._groups[url, spans] = _Group(self, url, spans)
        return group

    def _server(self, url: str) -> Server | None:
        """Return the server at `url`, or None if there are as many as allowed and all are being
        asked.

        Addresses come from users, so what is not used is closed: all after ten minutes, and the one
        that was used longest ago when there are too many."""
        now = time.monotonic()
        server = self._touch(url)
        if server is not None:
            del self._servers[url]  # not among the idle ones
        idle = [other for other in self._servers if not self._servers[other].busy]
        late = [other for other in idle if now - self._servers[other].used_at > UNUSED_S]
        if server is None and not late and len(self._servers) >= SERVERS:
            if not idle and url != self.url:
                return None
            late = idle[:1]
        for other in late:
            self._servers.pop(other).end()
        if server is None:
            access = self._access if url == self.url else None
            allowed = None if url == self.url else self.allowed
            server = Server(url, timeout_s=self.timeout_s, access=access, allowed=allowed)
        self._servers[url] = server
        self._touch(url)
        return server

    def _touch(self, url: str) -> Server | None:
        """Return the server at `url`, if there is one; `_servers` is in the order of last use."""
        server = self._servers.pop(url, None)
        if server is not None:
            server.used_at = time.monotonic()
            self._servers[url] = server
        return server

    async def collect(
        self, url: str, parts: tuple[Fleets, ...], spans: Spans
    ) -> Collected | NoAnswerError:
        """Ask for one round in one of the server's threads."""
        server = self._server(url)
        if server is None:
            return NoAnswerError(NO_ROOM)
        clock = self._clock
        work = server.submit(lambda asked: collect(asked, parts, spans, clock))
        return await asyncio.wrap_future(work)


class _Group:
    """Fleets of one server and of equal spans: one round of queries serves them all."""

    def __init__(self, port: PrometheusMetrics, url: str, spans: Spans) -> None:
        self._port, self._url, self._spans = port, url, spans
        self._parts: tuple[Fleets, ...] = ()
        self._split_at = float("-inf")
        self._logged = ""
        self.rounds = SharedRounds(spans.interval_s, self._ask)

    def for_user(self, cause: str) -> str:
        """Return what a user may read of a failure.

        Of an address out of a user's object only that there are no metrics: refused, silent and an
        HTTP status would map the cluster's network for that user. The operator's log has the cause,
        once until it changes."""
        if self._url == self._port.url or cause == NO_ROOM:
            return cause
        if cause != self._logged:
            self._logged = cause
            log.warning("spec.metrics.prometheus.url %s: %s", hide_credentials(self._url), cause)
        return NO_METRICS

    async def _ask(self, fleets: Fleets) -> Collected | NoAnswerError:
        """All fleets at once, unless an answer was too large lately: then in the parts that were
        small enough, with new fleets in the last one."""
        now = time.monotonic()
        parts: tuple[Fleets, ...] = (fleets,)
        if now - self._split_at < WHOLE_AGAIN_S:
            known = frozenset[FleetKey]().union(*self._parts)
            *first, last = self._parts
            parts = tuple(p & fleets for p in (*first, last | (fleets - known)) if p & fleets)
        collected = await self._port.collect(self._url, parts, self._spans)
        if isinstance(collected, Collected):
            if len(collected.parts) > max(1, len(parts)):
                self._split_at = now
            self._parts = collected.parts
        return collected
