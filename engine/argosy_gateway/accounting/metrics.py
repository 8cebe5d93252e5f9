"""The gateway's metrics (designs/0001, section 5), written by `relay`, read by the admin port.

Only `argosy_*` names and the process' own; namespace, fleet, role, revision and pod are added when
Prometheus scrapes. Every label value exists from the start: a counter that appears with its first
event has no rate before the second one.
"""

from collections import Counter as Tally
from collections.abc import Iterable
from enum import StrEnum

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

from argosy_gateway.accounting.verdicts import Ending, Outcome, Slo, judge, tpot_s, ttft_s
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.wire.sse import Usage

__all__ = ["Metrics", "RetryReason"]


class RetryReason(StrEnum):
    """Why a request is sent to another pod."""

    CONNECT = "connect"
    """The pod took no connection."""
    DRAINING = "draining"
    CLOSED = "closed"
    """The connection broke, or the engine was silent for too long."""
    SERVER_ERROR = "server_error"
    """5xx."""
    BUSY = "busy"
    """429."""
    WRONG_POD = "wrong_pod"
    """Another program answered at the pod's address."""


ROLE_MODES = ("colocated", "disaggregated")
_CLASS = "default"
_RESULTS = {
    Ending.OK: "ok",
    Ending.INVALID: "ok",  # the engine answered it whole; a refused prompt is not a lost request
    Ending.SHED: "failed",
    Ending.FAILED: "failed",
    Ending.CLIENT_GONE: "client_gone",
}
_TTFT_EDGES_S = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0),
)
_TPOT_EDGES_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04),
    *(0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0),
)
_TOKEN_EDGES = (*(m * 10**e for e in range(5) for m in (1, 2, 5)), 100_000)


def _edges(edges: tuple[float, ...], limit_s: float | None) -> tuple[float, ...]:
    return tuple(sorted({*edges, *([limit_s] if limit_s else [])}))


class Metrics:
    """All series of one gateway process, in a registry of their own."""

    def __init__(self, slo: Slo | None) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.slo = slo
        self.registry = registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        self._received = Counter(
            "argosy_requests_received_total",
            "Requests by what was decided when they came.",
            ["outcome"],
            registry=registry,
        )
        self._completed = Counter(
            "argosy_requests_completed_total",
            "What became of accepted requests.",
            ["result"],
            registry=registry,
        )
        self._verdicts = Counter(
            "argosy_slo_requests_total",
            "Verdicts of ended requests; counted only when an SLO is set.",
            ["role_mode", "class", "ttft", "tpot"],
            registry=registry,
        )
        self._retries = Counter(
            "argosy_gateway_retries_total",
            "Requests sent to another pod before a byte was answered.",
            ["reason"],
            registry=registry,
        )
        self._retries_refused = Counter(
            "argosy_gateway_retries_refused_total",
            "Requests that failed before a byte and found the retry budget empty.",
            registry=registry,
        )
        self._inflight = Gauge(
            "argosy_gateway_inflight_requests",
            "Accepted and not yet ended, waiting ones included.",
            registry=registry,
        )
        self._endpoints = Gauge(
            "argosy_gateway_endpoints",
            "Engine pods that this gateway knows.",
            ["role", "state"],
            registry=registry,
        )
        self._measures(registry)
        self._start_at_zero()

    def _measures(self, registry: CollectorRegistry) -> None:
        self._ttft = Histogram(
            "argosy_gateway_ttft_seconds",
            "From a request's first byte to the first content byte.",
            buckets=_edges(_TTFT_EDGES_S, self.slo.ttft_s if self.slo else None),
            registry=registry,
        )
        self._tpot = Histogram(
            "argosy_gateway_tpot_seconds",
            "Seconds per output token after the first.",
            buckets=_edges(_TPOT_EDGES_S, self.slo.tpot_s if self.slo else None),
            registry=registry,
        )
        self._prompt_tokens = Histogram(
            "argosy_gateway_prompt_tokens",
            "Prompt tokens of answered requests.",
            buckets=_TOKEN_EDGES,
            registry=registry,
        )
        self._output_tokens = Histogram(
            "argosy_gateway_output_tokens",
            "Output tokens of answered requests.",
            buckets=_TOKEN_EDGES,
            registry=registry,
        )
        self._prompt_tokens_squared = Counter(
            "argosy_gateway_prompt_tokens_squared_total",
            "Sum of squared prompt tokens: the second moment of prefill work.",
            registry=registry,
        )

    def _start_at_zero(self) -> None:
        for outcome in ("accepted", "shed", "invalid"):
            self._received.labels(outcome)
        for result in set(_RESULTS.values()):
            self._completed.labels(result)
        for mode in ROLE_MODES:
            for ttft in ("ok", "miss"):
                for tpot in ("ok", "miss"):
                    self._verdicts.labels(mode, _CLASS, ttft, tpot)
        for reason in RetryReason:
            self._retries.labels(reason)
        self.count_endpoints(())

    def accepted(self) -> None:
        """A request was taken in; `ended` must follow."""
        self._received.labels("accepted").inc()
        self._inflight.inc()

    def invalid(self) -> None:
        """A request was refused for its own fault before any engine saw it."""
        self._received.labels("invalid").inc()

    def shed(self, *, role_mode: str, received_at: float, now: float) -> None:
        """A request was refused for load: a miss."""
        self._received.labels("shed").inc()
        self._judge(Outcome(Ending.SHED, received_at, now), role_mode)

    def retried(self, reason: RetryReason) -> None:
        """A request goes to another pod."""
        self._retries.labels(reason).inc()

    def retry_refused(self) -> None:
        """A request is not sent again because the retry budget is empty."""
        self._retries_refused.inc()

    def ended(self, outcome: Outcome, *, role_mode: str, usage: Usage | None) -> None:
        """An accepted request ended; called once for each, however it ended."""
        self._inflight.dec()
        self._completed.labels(_RESULTS[outcome.ending]).inc()
        self._judge(outcome, role_mode)
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

    def _judge(self, outcome: Outcome, role_mode: str) -> None:
        verdict = judge(outcome, self.slo) if self.slo else None
        if verdict is not None:
            ttft, tpot = ("ok" if met else "miss" for met in (verdict.ttft, verdict.tpot))
            self._verdicts.labels(role_mode, _CLASS, ttft, tpot).inc()

    def count_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the gauge of known pods."""
        tally = Tally((e.role, e.state) for e in endpoints)
        for role in Role:
            for state in State:
                self._endpoints.labels(role, state).set(tally[role, state])

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
