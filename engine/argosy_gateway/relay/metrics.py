"""Every series that the gateway exposes: a row for each, and the counters that are filled.

A row has name, type, help, labels and bucket edges. `Metrics` creates the series from the rows,
`relay` and `server` call one method of it per event, and `GET /metrics` renders them.
`docs/reference/metrics.md` is generated from the rows, and a contract test compares them with a
gateway's real output. Prometheus adds namespace, fleet, role, revision and pod when it scrapes
(designs/0001-seams.md, section 5)."""

import itertools
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

from argosy_gateway.config import DEFAULT_CLASS, Slo, SloClass, classes_of
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.verdicts import (
    STRAIGHT,
    Course,
    Ending,
    Miss,
    Outcome,
    Verdict,
    judge,
    reason_of,
    tpot_s,
    ttft_s,
)
from argosy_gateway.wire.sse import Usage

__all__ = [
    "HANDOVER_REASONS",
    "SERIES",
    "HandoverReason",
    "Metrics",
    "ResumeReason",
    "RetryReason",
    "Series",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric with all its label values."""

    name: str
    """As exposed, without a histogram's _bucket, _sum and _count. Counters end in _total."""
    type: Literal["counter", "gauge", "histogram"]
    help: str
    """One line, with the unit where the name has none."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label → its values. They exist from the start with value 0, because rate() over a series that
    appears with its first event has no result before the second."""
    edges: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without +Inf."""
    edges_by: Literal["slo_ttft_ms", "slo_tpot_ms"] | None = None
    """The option whose limit becomes one more edge, so that the share of requests that meet it is
    exact."""


class RetryReason(StrEnum):
    """Why a request is sent to another pod."""

    CONNECT = "connect"
    """The pod took no connection."""
    DRAINING = "draining"
    """The pod takes no new requests."""
    CLOSED = "closed"
    """The connection broke."""
    SILENT = "silent"
    """The pod gave no sign of life."""
    SERVER_ERROR = "server_error"
    """The engine answered 5xx."""
    BUSY = "busy"
    """The engine answered 429: its queue is full."""
    WRONG_POD = "wrong_pod"
    """Another program answered at the pod's address."""
    UNPROVEN = "unproven"
    """The pod does not take this gateway's token."""


class HandoverReason(StrEnum):
    """Why a prefill pod's KV did not get to the pod that was to decode."""

    CONNECT = "connect"
    """The prefill pod took no connection."""
    CLOSED = "closed"
    """The connection to the prefill pod broke."""
    SILENT = "silent"
    """The prefill pod gave no answer in the time that the prompts ahead of it take."""
    BUSY = "busy"
    """The prefill pod's queue was full; counted only where the gateway leads the handover."""
    REFUSED = "refused"
    """The prefill pod answered with an error, or does not fit to the decode pod."""
    WRONG_POD = "wrong_pod"
    """Another program answered at the prefill pod's address."""
    INVALID = "invalid"
    """The prefill pod's answer, or its KV, is not what was asked for."""
    LATE = "late"
    """The lease could have ended before the KV was pulled: it was left alone."""
    NO_KV = "no_kv"
    """The decode pod failed before its first token, or says nothing more."""
    HUNG = "hung"
    """The decode pod gave no first token in time: a pull may hang."""


HANDOVER_REASONS: Mapping[str, HandoverReason] = MappingProxyType(
    {
        "connect": HandoverReason.CONNECT,
        "broken": HandoverReason.CLOSED,
        "timeout": HandoverReason.SILENT,
        "corrupt": HandoverReason.INVALID,
        "wrong_pod": HandoverReason.WRONG_POD,
        "refused": HandoverReason.REFUSED,
        "failed": HandoverReason.REFUSED,
        "fingerprint": HandoverReason.REFUSED,
        "version": HandoverReason.REFUSED,
        "unauthorized": HandoverReason.REFUSED,
    }
)
"""By the words of decode engines of ours; others count as NO_KV."""


class ResumeReason(StrEnum):
    """Why a stream goes on at another engine."""

    CLOSED = "closed"
    """The connection broke."""
    SILENT = "silent"
    """The engine was silent for too long."""
    ERROR = "error"
    """The engine ended it with an error."""
    DRAINING = "draining"
    """The pod drains and does not wait for its streams."""


ROLE_MODES = ("colocated", "disaggregated")
_MET = ("ok", "miss")
# fmt: off
_TTFT_S = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0,
)
_TPOT_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0,
)
# fmt: on
_TOKENS = (*(step * 10**power for power in range(5) for step in (1, 2, 5)), 100_000)

RECEIVED = Series(
    name="argosy_requests_received_total",
    type="counter",
    help="Requests, by what was decided when they came",
    labels={"outcome": ("accepted", "shed", "invalid")},
)
BY_MODEL = Series(
    name="argosy_requests_by_model_total",
    type="counter",
    help="Accepted requests, by the name that they ask for: of the model, or of an adapter",
    labels={"model": ()},
)
COMPLETED = Series(
    name="argosy_requests_completed_total",
    type="counter",
    help="Accepted requests that ended, by how",
    labels={"result": ("ok", "failed", "client_gone")},
)
VERDICTS = Series(
    name="argosy_slo_requests_total",
    type="counter",
    help="Ended requests, by whether they met the SLO; counted only if an SLO is set",
    labels={
        "role_mode": ROLE_MODES,
        "class": (DEFAULT_CLASS,),
        "revision": (),
        "ttft": _MET,
        "tpot": _MET,
    },
)
"""`revision` is that of the engine pods that were asked last, "" where none was."""
VERDICTS_AT_ONCE = Series(
    name="argosy_slo_requests_at_once_total",
    type="counter",
    help="The same, as if no first token had been held; counted only if first tokens may be held",
    labels={"role_mode": ROLE_MODES, "class": (DEFAULT_CLASS,), "ttft": _MET, "tpot": _MET},
)
MISSES = Series(
    name="argosy_slo_misses_total",
    type="counter",
    help="Requests that missed the SLO, by what took most of their time (docs/misses.md)",
    labels={"reason": tuple(Miss)},
)
FAULTS = Series(
    name="argosy_gateway_faults_total",
    type="counter",
    help="Requests that pods of a revision failed and other pods made good, once for each revision",
    labels={"revision": ()},
)
OTHERS = Series(
    name="argosy_gateway_other_requests_total",
    type="counter",
    help="Requests for other paths below /v1 that ended, by how; no other series counts them",
    labels={"result": ("ok", "failed", "client_gone")},
)
TTFT = Series(
    name="argosy_gateway_ttft_seconds",
    type="histogram",
    help="From a request's first byte to the first byte of content",
    edges=_TTFT_S,
    edges_by="slo_ttft_ms",
)
TPOT = Series(
    name="argosy_gateway_tpot_seconds",
    type="histogram",
    help="(last content - first content) / (output tokens - 1) of a request",
    edges=_TPOT_S,
    edges_by="slo_tpot_ms",
)
PROMPT_TOKENS = Series(
    name="argosy_gateway_prompt_tokens",
    type="histogram",
    help="Prompt tokens of answered requests, as the engine counts them",
    edges=_TOKENS,
)
OUTPUT_TOKENS = Series(
    name="argosy_gateway_output_tokens",
    type="histogram",
    help="Output tokens of answered requests, as the engine counts them",
    edges=_TOKENS,
)
PROMPT_TOKENS_SQUARED = Series(
    name="argosy_gateway_prompt_tokens_squared_total",
    type="counter",
    help="Sum of squared prompt tokens: the second moment of prefill work",
)
INFLIGHT = Series(
    name="argosy_gateway_inflight_requests",
    type="gauge",
    help="Accepted requests that have not ended, waiting ones included",
)
WAITING = Series(
    name="argosy_gateway_waiting_requests",
    type="gauge",
    help="Requests that wait in the gateway's queue; they are in flight, too",
)
WAITING_TOKENS = Series(
    name="argosy_gateway_waiting_prompt_tokens",
    type="gauge",
    help="Estimated prompt tokens of the requests that wait in the gateway's queue",
)
RETRIES = Series(
    name="argosy_gateway_retries_total",
    type="counter",
    help="Requests sent to another pod before a byte was answered, by why",
    labels={"reason": tuple(RetryReason)},
)
RETRIES_REFUSED = Series(
    name="argosy_gateway_retries_refused_total",
    type="counter",
    help="Requests that failed while the retry budget was empty",
)
RESUMED = Series(
    name="argosy_gateway_resumed_total",
    type="counter",
    help="Streams that went on at another pod after their text had begun, by why",
    labels={"reason": tuple(ResumeReason)},
)
HANDOVERS_FAILED = Series(
    name="argosy_gateway_handovers_failed_total",
    type="counter",
    help="Handovers of KV that failed, one for each prefill pod asked, by why",
    labels={"reason": tuple(HandoverReason)},
)
SETTINGS = Series(
    name="argosy_gateway_settings_stale",
    type="gauge",
    help="1 while the fleet's settings object is missing or wrong, and older settings go on",
)
ENDPOINTS = Series(
    name="argosy_gateway_endpoints",
    type="gauge",
    help="Engine pods that this gateway knows",
    labels={"role": tuple(Role), "state": tuple(State)},
)

SERIES = (
    RECEIVED,
    BY_MODEL,
    COMPLETED,
    VERDICTS,
    VERDICTS_AT_ONCE,
    MISSES,
    FAULTS,
    OTHERS,
    TTFT,
    TPOT,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS_SQUARED,
    INFLIGHT,
    WAITING,
    WAITING_TOKENS,
    RETRIES,
    RETRIES_REFUSED,
    HANDOVERS_FAILED,
    RESUMED,
    SETTINGS,
    ENDPOINTS,
)


REVISION_KEPT_S = 600.0
"""How long a revision without pods keeps its series: each Prometheus has read their end by then."""

_RESULTS = {
    Ending.OK: "ok",
    Ending.INVALID: "ok",  # the engine gave a whole answer; a refused prompt is not a lost request
    Ending.SHED: "failed",
    Ending.FAILED: "failed",
    Ending.CLIENT_GONE: "client_gone",
}


class Metrics:
    """All series of one gateway process, in a registry of their own."""

    def __init__(
        self,
        slo: Slo | None,
        classes: Mapping[str, SloClass] | None = None,
        *,
        holds_first_tokens: bool = False,
    ) -> None:
        """`classes`: those of the fleet, if it has others than the default one."""
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.slo = slo
        self._classes = classes or classes_of(slo)
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self._settings = self._gauge(SETTINGS)
        self._received = self._counters(RECEIVED)
        self._by_model = self._counter(BY_MODEL)
        self._completed = self._counters(COMPLETED)
        self._revisions: dict[str, float] = {}
        """Revisions that have series, and when each had a pod last."""
        self._verdicts = self._counter(self._in_use(VERDICTS))
        self._faults = self._counter(self._in_use(FAULTS))
        self._verdicts_at_once = self._counter(self._in_use(VERDICTS_AT_ONCE))
        self._holds_first_tokens = holds_first_tokens
        self._misses = self._counters(MISSES)
        self._others = self._counters(OTHERS)
        self._ttft = self._histogram(TTFT)
        self._tpot = self._histogram(TPOT)
        self._prompt_tokens = self._histogram(PROMPT_TOKENS)
        self._output_tokens = self._histogram(OUTPUT_TOKENS)
        self._prompt_tokens_squared = self._counter(PROMPT_TOKENS_SQUARED)
        self._inflight = self._gauge(INFLIGHT)
        self._waiting = self._gauge(WAITING)
        self._waiting_tokens = self._gauge(WAITING_TOKENS)
        self._retries = self._counter(RETRIES)
        self._retries_refused = self._counter(RETRIES_REFUSED)
        self._handovers_failed = self._counter(HANDOVERS_FAILED)
        self._resumed = self._counter(RESUMED)
        self._endpoints = self._gauge(ENDPOINTS)

    def reconfigure(
        self, slo: Slo | None, classes: Mapping[str, SloClass], *, holds_first_tokens: bool
    ) -> None:
        """Go on with another SLO. Counters go on; a histogram whose edges change begins anew, as
        that of a new process does."""
        before, self.slo = self.slo, slo
        self._classes, self._holds_first_tokens = classes, holds_first_tokens
        _start_at_zero(self._verdicts, self._in_use(VERDICTS))
        _start_at_zero(self._verdicts_at_once, self._in_use(VERDICTS_AT_ONCE))
        if slo != before:
            for histogram in (self._ttft, self._tpot):
                self.registry.unregister(histogram)
            self._ttft = self._histogram(TTFT)
            self._tpot = self._histogram(TPOT)

    def expect_models(self, names: Iterable[str]) -> None:
        """Requests may ask for these names from now on."""
        for name in names:
            self._by_model.labels(name)

    def set_settings_stale(self, stale: bool) -> None:
        """Whether the settings object cannot be used, and older settings go on."""
        self._settings.set(stale)

    def _in_use(self, row: Series) -> Series:
        """Return the row with the classes and revisions that there are."""
        values = {"class": tuple(self._classes), "revision": ("", *self._revisions)}
        return replace(row, labels={name: values.get(name, of) for name, of in row.labels.items()})

    def _counter(self, row: Series) -> Counter:
        counter = Counter(row.name, row.help, tuple(row.labels), registry=self.registry)
        return _start_at_zero(counter, row)

    def _counters(self, row: Series) -> Mapping[str, Counter]:
        """Those of a row with one label, by its value; to look one up by `labels` takes longer."""
        counter, [values] = self._counter(row), row.labels.values()
        return {value: counter.labels(value) for value in values}

    def _gauge(self, row: Series) -> Gauge:
        gauge = Gauge(row.name, row.help, tuple(row.labels), registry=self.registry)
        return _start_at_zero(gauge, row)

    def _histogram(self, row: Series) -> Histogram:
        edges = _edges(row, self.slo)
        return Histogram(row.name, row.help, buckets=edges, registry=self.registry)

    def count_accepted(self, model: str) -> None:
        """A request for this name was admitted; `count_ended` must follow."""
        self._received["accepted"].inc()
        self._by_model.labels(model).inc()
        self._inflight.inc()

    def count_invalid(self) -> None:
        """A request was refused because of an error in it, before any engine was called."""
        self._received["invalid"].inc()

    def count_shed(
        self, *, role_mode: str, received_at: float, now: float, slo_class: str = DEFAULT_CLASS
    ) -> None:
        """A request was refused because of load. Times are the event loop's, in seconds."""
        self._received["shed"].inc()
        self._judge(Outcome(Ending.SHED, received_at, now), role_mode, slo_class)

    def count_other(self, result: str) -> None:
        """A request for another path ended."""
        self._others[result].inc()

    def count_retry(self, reason: RetryReason) -> None:
        """A request is sent to another pod."""
        self._retries.labels(reason).inc()

    def count_refused_retry(self) -> None:
        """A request is not sent again because the retry budget is empty."""
        self._retries_refused.inc()

    def count_failed_handover(self, reason: HandoverReason) -> None:
        """A prefill pod did not hand over to the engine that was to decode."""
        self._handovers_failed.labels(reason).inc()

    def count_resumed(self, reason: ResumeReason) -> None:
        """A stream goes on at another pod."""
        self._resumed.labels(reason).inc()

    def count_ended(
        self,
        outcome: Outcome,
        *,
        role_mode: str,
        usage: Usage | None,
        slo_class: str = DEFAULT_CLASS,
        course: Course = STRAIGHT,
        revision: str = "",
        faults: Collection[str] = (),
    ) -> None:
        """An accepted request ended; called exactly once for each. `revision` is that of the pods
        that were asked last; `faults` are revisions of pods that failed it."""
        self._inflight.dec()
        self._completed[_RESULTS[outcome.ending]].inc()
        missed = self._judge(outcome, role_mode, slo_class, course, revision)
        for failed in faults:
            if not (missed and failed == revision):  # else it counts twice
                self._faults.labels(failed).inc()
        if outcome.ending is Ending.INVALID:
            return
        if (seconds := ttft_s(outcome)) is not None:
            self._ttft.observe(seconds)
        if outcome.ending is Ending.OK and (seconds := tpot_s(outcome)) is not None:
            self._tpot.observe(seconds)
        if usage is not None:
            self._prompt_tokens.observe(usage.prompt_tokens)
            self._prompt_tokens_squared.inc(usage.prompt_tokens**2)
            self._output_tokens.observe(usage.completion_tokens)

    def _judge(
        self,
        outcome: Outcome,
        role_mode: str,
        slo_class: str,
        course: Course = STRAIGHT,
        revision: str = "",
    ) -> bool:
        """Count the verdict; whether it is a miss."""
        if slo_class not in self._classes:  # the settings have changed since it came
            slo_class = DEFAULT_CLASS
        slo = self._classes[slo_class].slo
        if slo is None:
            return False
        verdict = judge(outcome, slo)
        reason = None
        if verdict is not None and (reason := reason_of(outcome, verdict, slo, course)) is not None:
            self._misses[reason].inc()
        if verdict is not None:
            self._verdicts.labels(role_mode, slo_class, revision, *_in_words(verdict)).inc()
        if self._holds_first_tokens and (at_once := judge(outcome.at_once, slo)) is not None:
            self._verdicts_at_once.labels(role_mode, slo_class, *_in_words(at_once)).inc()
        return reason is not None

    def count_endpoints(self, endpoints: Iterable[Endpoint], now: float) -> None:
        """Set the gauge of known pods; called at each scrape, at the event loop's time."""
        endpoints = tuple(endpoints)
        self._follow_revisions({e.revision for e in endpoints if e.revision}, now)
        tally = Tally((e.role, e.state) for e in endpoints)
        for role in Role:
            for state in State:
                self._endpoints.labels(role, state).set(tally[role, state])

    def _follow_revisions(self, revisions: Collection[str], now: float) -> None:
        """Begin the series of new revisions, and end those of revisions that are gone."""
        known = self._revisions.keys()
        new = set(revisions) - known
        self._revisions |= dict.fromkeys(revisions, now)
        for gone in [
            r for r, seen_at in self._revisions.items() if now - seen_at > REVISION_KEPT_S
        ]:
            del self._revisions[gone]
            for counter, row in ((self._verdicts, VERDICTS), (self._faults, FAULTS)):
                _remove(counter, row, revision=gone)
        if new:
            _start_at_zero(self._verdicts, self._in_use(VERDICTS))
            _start_at_zero(self._faults, self._in_use(FAULTS))

    def count_waiting(self, requests: int, prompt_tokens: int) -> None:
        """Set the gauges of the queue; called at each scrape."""
        self._waiting.set(requests)
        self._waiting_tokens.set(prompt_tokens)

    def received_for_load(self) -> dict[str, float]:
        """The counters of requests that are load, by outcome: as /metrics has them."""
        read, name = self.registry.get_sample_value, RECEIVED.name
        return {
            outcome: read(name, {"outcome": outcome}) or 0.0 for outcome in ("accepted", "shed")
        }

    def answered_for_load(self) -> dict[str, float]:
        """How many answered requests were counted, and their tokens: as /metrics has them."""
        read, prompts = self.registry.get_sample_value, PROMPT_TOKENS.name
        return {
            "requests": read(f"{prompts}_count") or 0.0,
            "prompt_tokens": read(f"{prompts}_sum") or 0.0,
            "prompt_tokens_squared": read(PROMPT_TOKENS_SQUARED.name) or 0.0,
            "output_tokens": read(f"{OUTPUT_TOKENS.name}_sum") or 0.0,
        }

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


_Metric = TypeVar("_Metric", Counter, Gauge)


def _start_at_zero(metric: _Metric, row: Series) -> _Metric:
    if row.labels:
        for values in itertools.product(*row.labels.values()):
            metric.labels(*values)
    return metric


def _remove(counter: Counter, row: Series, *, revision: str) -> None:
    """End the series of a revision."""
    for family in counter.collect():
        for sample in family.samples:
            if sample.labels.get("revision") == revision:
                counter.remove(*(sample.labels[name] for name in row.labels))


def _in_words(verdict: Verdict) -> tuple[str, str]:
    """Return the labels `ttft` and `tpot`."""
    return "ok" if verdict.ttft else "miss", "ok" if verdict.tpot else "miss"


def _edges(row: Series, slo: Slo | None) -> tuple[float, ...]:
    """The bucket edges of a histogram under this SLO."""
    match row.edges_by:
        case "slo_ttft_ms" if slo:
            return tuple(sorted({*row.edges, slo.ttft_s}))
        case "slo_tpot_ms" if slo:
            return tuple(sorted({*row.edges, slo.tpot_s}))
    return row.edges
