"""Creates the series of `table.py` and fills them; `GET /metrics` renders them.

`relay` and `server` call one method per event. `verdicts` decides whether a request met the SLO.
"""

import itertools
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

from argosy_gateway.accounting import table
from argosy_gateway.accounting.classes import DEFAULT_CLASS, SloClass, classes_of
from argosy_gateway.accounting.misses import STRAIGHT, Course, reason_of
from argosy_gateway.accounting.table import ResumeReason, RetryReason, Series
from argosy_gateway.accounting.verdicts import Ending, Outcome, Slo, judge, tpot_s, ttft_s
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.wire.sse import Usage

__all__ = ["Metrics"]

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
        self._settings = self._gauge(table.SETTINGS)
        self._received = self._counters(table.RECEIVED)
        self._completed = self._counters(table.COMPLETED)
        self._verdicts = self._counter(self._of_classes(table.VERDICTS))
        self._verdicts_at_once = self._counter(self._of_classes(table.VERDICTS_AT_ONCE))
        self._holds_first_tokens = holds_first_tokens
        self._misses = self._counters(table.MISSES)
        self._ttft = self._histogram(table.TTFT)
        self._tpot = self._histogram(table.TPOT)
        self._prompt_tokens = self._histogram(table.PROMPT_TOKENS)
        self._output_tokens = self._histogram(table.OUTPUT_TOKENS)
        self._prompt_tokens_squared = self._counter(table.PROMPT_TOKENS_SQUARED)
        self._inflight = self._gauge(table.INFLIGHT)
        self._waiting = self._gauge(table.WAITING)
        self._waiting_tokens = self._gauge(table.WAITING_TOKENS)
        self._retries = self._counter(table.RETRIES)
        self._retries_refused = self._counter(table.RETRIES_REFUSED)
        self._handovers_failed = self._counter(table.HANDOVERS_FAILED)
        self._resumed = self._counter(table.RESUMED)
        self._endpoints = self._gauge(table.ENDPOINTS)

    def take(
        self, slo: Slo | None, classes: Mapping[str, SloClass], *, holds_first_tokens: bool
    ) -> None:
        """Go on with another SLO. Counters go on; a histogram whose edges change begins anew, as
        that of a new process does."""
        before, self.slo = self.slo, slo
        self._classes, self._holds_first_tokens = classes, holds_first_tokens
        _start_at_zero(self._verdicts, self._of_classes(table.VERDICTS))
        _start_at_zero(self._verdicts_at_once, self._of_classes(table.VERDICTS_AT_ONCE))
        if slo != before:
            for histogram in (self._ttft, self._tpot):
                self.registry.unregister(histogram)
            self._ttft = self._histogram(table.TTFT)
            self._tpot = self._histogram(table.TPOT)

    def settings_are_stale(self, stale: bool) -> None:
        """Whether the settings object cannot be used, and older settings go on."""
        self._settings.set(stale)

    def _of_classes(self, row: Series) -> Series:
        return replace(row, labels={**row.labels, "class": tuple(self._classes)})

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

    def accepted(self) -> None:
        """A request was admitted; `ended` must follow."""
        self._received["accepted"].inc()
        self._inflight.inc()

    def invalid(self) -> None:
        """A request was refused because of an error in it, before any engine was called."""
        self._received["invalid"].inc()

    def shed(
        self, *, role_mode: str, received_at: float, now: float, slo_class: str = DEFAULT_CLASS
    ) -> None:
        """A request was refused because of load. Times are the event loop's, in seconds."""
        self._received["shed"].inc()
        self._judge(Outcome(Ending.SHED, received_at, now), role_mode, slo_class)

    def retried(self, reason: RetryReason) -> None:
        """A request is sent to another pod."""
        self._retries.labels(reason).inc()

    def retry_refused(self) -> None:
        """A request is not sent again because the retry budget is empty."""
        self._retries_refused.inc()

    def handovers_failed(self, number: int) -> None:
        """So many prefill pods did not hand over to the engine that answered."""
        self._handovers_failed.inc(number)

    def resumed(self, reason: ResumeReason) -> None:
        """A stream goes on at another pod."""
        self._resumed.labels(reason).inc()

    def ended(
        self,
        outcome: Outcome,
        *,
        role_mode: str,
        usage: Usage | None,
        slo_class: str = DEFAULT_CLASS,
        course: Course = STRAIGHT,
    ) -> None:
        """An accepted request ended; called exactly once for each."""
        self._inflight.dec()
        self._completed[_RESULTS[outcome.ending]].inc()
        self._judge(outcome, role_mode, slo_class, course)
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
        self, outcome: Outcome, role_mode: str, slo_class: str, course: Course = STRAIGHT
    ) -> None:
        if slo_class not in self._classes:  # the settings have changed since it came
            slo_class = DEFAULT_CLASS
        slo = self._classes[slo_class].slo
        if slo is None:
            return
        verdict = judge(outcome, slo)
        if verdict is not None and (reason := reason_of(outcome, verdict, slo, course)) is not None:
            self._misses[reason].inc()
        judged = [(self._verdicts, verdict)]
        if self._holds_first_tokens:
            judged.append((self._verdicts_at_once, judge(outcome.at_once, slo)))
        for counter, verdict in judged:
            if verdict is not None:
                ttft, tpot = ("ok" if met else "miss" for met in (verdict.ttft, verdict.tpot))
                counter.labels(role_mode, slo_class, ttft, tpot).inc()

    def count_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the gauge of known pods; called at each scrape."""
        tally = Tally((e.role, e.state) for e in endpoints)
        for role in Role:
            for state in State:
                self._endpoints.labels(role, state).set(tally[role, state])

    def count_waiting(self, requests: int, prompt_tokens: int) -> None:
        """Set the gauges of the queue; called at each scrape."""
        self._waiting.set(requests)
        self._waiting_tokens.set(prompt_tokens)

    def received_for_load(self) -> dict[str, float]:
        """The counters of requests that are load, by outcome: as /metrics has them."""
        read, name = self.registry.get_sample_value, table.RECEIVED.name
        return {
            outcome: read(name, {"outcome": outcome}) or 0.0 for outcome in ("accepted", "shed")
        }

    def answered_for_load(self) -> dict[str, float]:
        """How many answered requests were counted, and their tokens: as /metrics has them."""
        read, prompts = self.registry.get_sample_value, table.PROMPT_TOKENS.name
        return {
            "requests": read(f"{prompts}_count") or 0.0,
            "prompt_tokens": read(f"{prompts}_sum") or 0.0,
            "prompt_tokens_squared": read(table.PROMPT_TOKENS_SQUARED.name) or 0.0,
            "output_tokens": read(f"{table.OUTPUT_TOKENS.name}_sum") or 0.0,
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


def _edges(row: Series, slo: Slo | None) -> tuple[float, ...]:
    """The bucket edges of a histogram under this SLO."""
    match row.edges_by:
        case "slo_ttft_ms" if slo:
            return tuple(sorted({*row.edges, slo.ttft_s}))
        case "slo_tpot_ms" if slo:
            return tuple(sorted({*row.edges, slo.tpot_s}))
    return row.edges
