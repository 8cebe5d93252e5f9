"""Every series that the gateway exposes, as rows: name, type, help, labels, bucket edges.

`metrics.py` creates the series from these rows and fills them. `docs/metrics.md` is generated from
the rows, and a contract test compares them with a gateway's real output. Prometheus adds namespace,
fleet, role, revision and pod when it scrapes (designs/0001-seams.md, section 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from argosy_gateway.accounting.classes import DEFAULT_CLASS
from argosy_gateway.accounting.misses import Miss
from argosy_gateway.pods.endpoints import Role, State

__all__ = ["SERIES", "ResumeReason", "RetryReason", "Series"]


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
    labels={"role_mode": ROLE_MODES, "class": (DEFAULT_CLASS,), "ttft": _MET, "tpot": _MET},
)
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
    help="Handovers of KV that decode engines reported as failed, one for each prefill pod asked",
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
    COMPLETED,
    VERDICTS,
    VERDICTS_AT_ONCE,
    MISSES,
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
