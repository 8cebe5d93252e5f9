"""The one way to Prometheus: a round of four queries per fleet and tick → `FleetMetrics`.

Raw samples are fetched (`metric[window]` at an explicit time) and `core.scaling.samples` does the
arithmetic in exact counts; the reason stands there. Only the quantiles that people read in status
are Prometheus' own. Whatever goes wrong comes back as `Unknown` with
a reason: nothing raises, nothing waits longer than `timeout_s`. Labels namespace, fleet, role, pod
come from scrape relabelling (designs/0001-seams.md §5).
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from urllib3.util.retry import Retry

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.reconcile.targets import goals_of
from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import (
    FleetMetrics,
    Idle,
    Signal,
    Unknown,
    Value,
    unknown_metrics,
)
from argosy_operator.core.scaling.signals import samples
from argosy_operator.ports.allowlist import (
    NOTHING_ELSE,
    Allowlist,
    GuardedAdapter,
    NotAllowedError,
)

log = logging.getLogger("argosy.prometheus")

LARGEST_ANSWER = 16 * 2**20
WORKERS_PER_SERVER = 2
SERVERS = 32
UNUSED_S = 600.0
TOLD_OF_ERROR = 200
QUANTILE = 0.9

GATEWAY_SERIES = (
    samples.RECEIVED,
    samples.VERDICTS,
    f"{samples.PROMPTS}_sum",
    f"{samples.PROMPTS}_count",
    samples.PROMPTS_SQUARED,
    f"{samples.OUTPUTS}_sum",
    f"{samples.OUTPUTS}_count",
    f"{samples.TRANSFERS}_sum",
    f"{samples.TRANSFERS}_count",
)
ENGINE_SERIES = (*samples.STEP_COUNTERS, *samples.GAUGES)


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


_OF_ANOTHER_SHAPE = (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError)


class NoAnswerError(Exception):
    """Prometheus gave nothing that can be used; `reason` begins with one word for machines."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Answer:
    """`data.result` of one query."""

    result: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """Which fleet is measured, over which windows, and which gateways must report."""

    namespace: str
    fleet: str
    windows: Windows
    gateways: frozenset[str] = frozenset()
    """Names of the fleet's Ready gateway pods."""


def escape(value: str) -> str:
    """A string as the inside of a PromQL label matcher's quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def selector(names: tuple[str, ...], labels: Mapping[str, str]) -> str:
    """`{__name__=~"a|b",label="value"}`. Names are ours and hold nothing to escape."""
    matchers = [f'__name__=~"{"|".join(names)}"']
    matchers += [f'{name}="{escape(value)}"' for name, value in labels.items()]
    return "{" + ",".join(matchers) + "}"


def duration(seconds: float) -> str:
    return f"{ceil(seconds * 1000)}ms"


class TokenFile(requests.auth.AuthBase):
    """Bearer token, read anew for every request: mounted tokens rotate."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.path.read_text().strip()}"
        return request


class Server(PrometheusConnect):  # type: ignore[misc]  # the library has no types
    """prometheus-api-client with time-outs, without retries (the next tick is the retry), without
    redirects and proxies from the environment, and with a size limit."""

    def __init__(
        self, url: str, *, timeout_s: float, auth: TokenFile | None, allowed: Allowlist | None
    ) -> None:
        """`allowed`: what a user's address is checked against, None for the operator's own."""
        session = requests.Session()
        session.trust_env = False
        session.auth = auth
        super().__init__(url=url.rstrip("/"), retry=Retry(0), session=session)
        if allowed is not None:
            # For every address: requests sends to its own spelling of this one, without `/a/..`
            # and in IDNA, and would take an unguarded adapter where the prefix does not match.
            session.adapters.clear()
            for scheme in ("http://", "https://"):
                session.mount(scheme, GuardedAdapter(self.url, allowed))
        self.guarded, self.told = allowed is not None, ""
        self.timeout = (min(timeout_s, 2.0), timeout_s)
        self.workers = ThreadPoolExecutor(WORKERS_PER_SERVER, thread_name_prefix="prometheus")
        self.used_at, self._asking = 0.0, set[Future[FleetMetrics]]()

    def submit(self, asked: "Question", at: float) -> "Future[FleetMetrics]":
        """Ask in one of the server's threads. A question whose caller has given up ends by
        itself in time."""
        future = self.workers.submit(measure, self, asked, at)
        self._asking = {other for other in self._asking if not other.done()} | {future}
        return future

    @property
    def busy(self) -> bool:
        return any(not future.done() for future in self._asking)

    def end(self) -> None:
        """Close connections; threads end when the questions that they ask have ended."""
        self.workers.shutdown(wait=False, cancel_futures=True)
        self.close()

    def ask(self, query: str, at: float | None = None) -> Answer:
        """Instant query at `at`, or at the server's own time. Blocking; raises NoAnswerError."""
        when = {} if at is None else {"time": f"{at:.3f}"}
        try:
            with self._session.get(
                f"{self.url}/api/v1/query",
                params={"query": query, **when},
                timeout=self.timeout,
                allow_redirects=False,
                stream=True,
            ) as response:
                body = self._body(response)
        except requests.Timeout as error:
            raise NoAnswerError(f"PrometheusTimeout: {self.url} does not answer") from error
        except Exception as error:  # requests' own, and urllib3's while the body is read
            raise NoAnswerError(f"PrometheusAway: {self.url}: {_cause(error)}") from error
        return self._read(response.status_code, body)

    def _body(self, response: requests.Response) -> bytes:
        """At most one byte more than may be. The time-out is for the whole: requests' own begins
        anew with each piece."""
        body, deadline = bytearray(), time.monotonic() + self.timeout[1]
        while len(body) <= LARGEST_ANSWER:
            piece = response.raw.read1(LARGEST_ANSWER + 1 - len(body), decode_content=True)
            if not piece:
                break
            body += piece
            if time.monotonic() > deadline:
                raise requests.Timeout("the answer takes too long")
        return bytes(body)

    def _read(self, status: int, body: bytes) -> Answer:
        """Only what Prometheus itself says about an error is passed on: the address may come from
        a user's object, and what another server answers there is not that user's to read."""
        if len(body) > LARGEST_ANSWER:
            raise NoAnswerError(f"PrometheusAnswer: more than {LARGEST_ANSWER} bytes")
        try:
            answer = json.loads(body)
            if answer["status"] == "error":
                told = str(answer["error"])[:TOLD_OF_ERROR]
                raise NoAnswerError(f"PrometheusError: HTTP {status}: {told}")
            result = answer["data"]["result"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            word = "PrometheusAnswer" if status == 200 else "PrometheusError"
            raise NoAnswerError(f"{word}: HTTP {status}, not Prometheus' JSON") from error
        if status != 200 or not isinstance(result, list):
            raise NoAnswerError(f"PrometheusError: HTTP {status}, no list of results")
        return Answer(result)


class PrometheusMetrics:
    """Fulfils `protocols.Metrics`. `url` is the server the operator was installed with; the
    token is for that server alone and never goes to an address out of a user's object."""

    def __init__(
        self,
        url: str | None,
        *,
        allowed: Allowlist = NOTHING_ELSE,
        timeout_s: float = 5.0,
        token_file: Path | None = None,
    ) -> None:
        self.url, self.allowed, self.timeout_s = url, allowed, timeout_s
        self._auth = TokenFile(token_file) if token_file else None
        self._servers: dict[str, Server] = {}

    async def fleet(
        self, fleet: ServingDeployment, at: float, gateways: frozenset[str]
    ) -> FleetMetrics:
        """One round for one fleet at `at` (seconds since the epoch). `gateways`: the names of its
        Ready gateway pods; arrivals are whole only when all of them report."""
        url = fleet.spec.metrics.prometheus.url or self.url
        if not url:
            return unknown_metrics(at, NO_PROMETHEUS)
        name, namespace = fleet.metadata.name, fleet.metadata.namespace
        asked = Question(namespace, name, goals_of(fleet.spec).windows, gateways)
        return await self.measure(url, asked, at)

    async def measure(self, url: str, asked: Question, at: float) -> FleetMetrics:
        if url != self.url and not self.allowed.permits(url):
            return unknown_metrics(at, NOT_ALLOWED)
        server = self._server(url)
        if server is None:
            return unknown_metrics(at, NO_ROOM)
        asking = server.submit(asked, at)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.wrap_future(asking)
        except TimeoutError:
            cause = f"PrometheusTimeout: {url} took over {self.timeout_s:g} s"
        except NoAnswerError as error:
            cause = error.reason
        return unknown_metrics(at, _to_tell(server, cause))

    def _server(self, url: str) -> Server | None:
        """The server at `url`; None where there are as many as there may be and all are asked.

        Each has threads of its own: one that hangs must not make the others' fleets blind.
        Addresses come from users, so what is not used is closed: all after ten minutes, the one
        that was used longest ago when there are too many."""
        now = time.monotonic()
        server = self._servers.pop(url, None)
        idle = [kept for kept, other in self._servers.items() if not other.busy]
        late = [kept for kept in idle if now - self._servers[kept].used_at > UNUSED_S]
        if server is None and not late and len(self._servers) >= SERVERS:
            if not idle and url != self.url:
                return None
            late = idle[:1]
        for kept in late:
            self._servers.pop(kept).end()
        if server is None:
            auth = self._auth if url == self.url else None
            allowed = None if url == self.url else self.allowed
            server = Server(url, timeout_s=self.timeout_s, auth=auth, allowed=allowed)
        server.used_at = now
        self._servers[url] = server  # in the order of their last use
        return server

    def close(self) -> None:
        for server in self._servers.values():
            server.end()


def _cause(error: Exception) -> str:
    """The kind of a failure, or the sentence of the guard, which the libraries wrap in their own
    errors. The kinds inside would change from try to try."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, NotAllowedError):
        inner = inner.__context__
    return str(inner) if inner else type(error).__name__


def _to_tell(server: Server, cause: str) -> str:
    """What a user may read of a failure. Of an address out of a user's object only that there are
    no metrics: refused, silent and an HTTP status would map the cluster's network for that user.
    The operator's log has the cause, once until it changes."""
    if not server.guarded:
        return cause
    if cause != server.told:
        server.told = cause
        log.warning("spec.metrics.prometheus.url %s: %s", server.url, cause)
    return NO_METRICS


def measure(server: Server, asked: Question, at: float) -> FleetMetrics:
    """The round: which targets answer, the gateways' counters over the long windows, the engines'
    over the newest interval. Blocking; raises NoAnswerError.

    All times of the answer are on Prometheus' clock, which stamps the samples: `at`, the operator's
    own, only tells how far the two clocks are apart.
    """
    labels, windows = {"namespace": asked.namespace, "fleet": asked.fleet}, asked.windows
    targets = server.ask(f"{selector(('up',), labels)} or vector(time())")
    asked_at, at = at, _evaluated_at(targets)
    long_s = max(windows.attainment_s, windows.lengths_s) + 2 * windows.scrape_s
    short_s = max(windows.interval_s, windows.fresh_s) + 2 * windows.scrape_s
    gateway = server.ask(f"{selector(GATEWAY_SERIES, labels)}[{duration(long_s)}]", at)
    engines = server.ask(f"{selector(ENGINE_SERIES, labels)}[{duration(short_s)}]", at)
    try:
        up = [(dict(r["metric"]), r["value"][1] == "1") for r in targets.result]
        series = tuple(_series(r) for a in (gateway, engines) for r in a.result)
    except _OF_ANOTHER_SHAPE as error:
        raise NoAnswerError("PrometheusAnswer: rows that are no series of ours") from error
    gateways = [alive for labels_, alive in up if labels_.get("role") == "gateway"]
    taken = samples.Round(
        at=at,
        series=series,
        gateways_up=sum(gateways),
        gateway_targets=len(gateways),
        ready_gateways=asked.gateways,
    )
    # A deleted pod's last samples stay in the window; its target does not.
    pods = frozenset(labels_.get("pod", "") for labels_, alive in up if alive)
    metrics = samples.assemble(taken, windows, pods)
    ttft, tpot = _quantiles(server, labels, windows.attainment_s, at)
    skew_s = asked_at - at
    return replace(metrics, ttft_p90_s=ttft, tpot_p90_s=tpot, clock_skew_s=skew_s)


def _evaluated_at(answer: Answer) -> float:
    """The time at which the server evaluated an instant query; `vector(time())` in the query makes
    sure of one row at least."""
    try:
        at = float(answer.result[0]["value"][0])
    except _OF_ANOTHER_SHAPE as error:
        raise NoAnswerError("PrometheusAnswer: rows that are no series of ours") from error
    if not isfinite(at):
        raise NoAnswerError("PrometheusAnswer: a time that is no number")
    return at


def _quantiles(
    server: Server, labels: Mapping[str, str], window_s: float, at: float
) -> tuple[Signal, Signal]:
    """90th percentiles of TTFT and TPOT, s. What goes wrong here blinds nothing else."""
    query = " or ".join(
        f"label_replace(histogram_quantile({QUANTILE}, sum by (le) "
        f'(rate({selector((f"{name}_bucket",), labels)}[{duration(window_s)}]))), "of", "{of}", '
        '"", "")'
        for of, name in (("ttft", samples.TTFT), ("tpot", samples.TPOT))
    )
    try:
        rows = server.ask(query, at).result
        found = {r["metric"]["of"]: float(r["value"][1]) for r in rows}
    except NoAnswerError as error:
        return Unknown(error.reason), Unknown(error.reason)
    except _OF_ANOTHER_SHAPE:
        wrong = Unknown("PrometheusAnswer: rows that are no quantiles")
        return wrong, wrong
    ttft, tpot = (found.get(of) for of in ("ttft", "tpot"))
    return _measured(ttft, at), _measured(tpot, at)


def _measured(number: float | None, at: float) -> Signal:
    """Prometheus says NaN where nothing was observed."""
    if number is None:
        return Unknown("NoSamples")
    return Value(number, at) if isfinite(number) else Idle(at)


def _series(row: Mapping[str, Any]) -> samples.Series:
    labels = dict(row["metric"])
    values = tuple((float(t), float(v)) for t, v in row["values"])
    return samples.Series(labels.pop("__name__"), labels, values)
