"""What a scaling law observes: signals, one round of metrics, and the supply of pods.

Metrics come from `signals.samples.assemble` (from Prometheus or the simulator), supply from the
operator's snapshot; `decide` reads both. Values only: no clock, no I/O. Times are seconds since the
epoch, durations are seconds, shares are 0..1. Every value can be written with `record.to_json` and
read back with `record.from_json`.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from argosy_law.slo import Verdicts

Mode = Literal["colocated", "disaggregated"]
RoleName = Literal["prefill", "decode", "colocated"]

LARGEST = 1e15
"""Upper bound of any plausible signal; larger values are treated as corrupt."""


@dataclass(frozen=True, slots=True)
class Value:
    """A measured number."""

    value: float
    at: float
    """Time of its newest sample."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The source is up and its counter exists, but nothing happened, or too little to measure.

    For arrivals that means no requests. Of a mean the last value counts.
    """

    at: float
    """Time of the newest sample."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known. It never counts as zero and never removes capacity."""

    reason: str
    """One word for machines; in most cases also a colon and a sentence for users."""


Signal = Value | Idle | Unknown

Buckets = tuple[tuple[float, float], ...]
"""Requests of a histogram: (upper edge in tokens, requests) by edge, without empty buckets."""

NOT_ASKED = Unknown("NotAsked")


def plausible(number: float) -> bool:
    """Whether it can be a measurement: finite, not negative, at most `LARGEST`."""
    return isfinite(number) and 0 <= number <= LARGEST


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests that arrived at all gateways in one scrape interval."""

    end: float
    """End of the interval."""
    count: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests that were answered in one scrape interval, and their tokens."""

    end: float
    """End of the interval."""
    requests: float
    prompts: float
    """Tokens of their prompts."""
    answers: float
    """Tokens of their answers."""


@dataclass(frozen=True, slots=True)
class StepDelta:
    """Growth of the step counters between two scrapes of one pod, all kinds of steps together.

    Steps are linear in their features, so a sum over many steps still obeys the step's equation.
    """

    at: float
    """Time of the newer scrape."""
    seconds: float
    """Time in steps."""
    steps: float
    prefill_tokens: float = 0.0
    """Prompt tokens prefilled."""
    prefill_requests: float = 0.0
    """Prompts finished."""
    decode_sequences: float = 0.0
    """Sequences, summed over the steps."""
    context_tokens: float = 0.0
    """Tokens of context of those sequences, summed over the steps."""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class RoleMetrics:
    """Engines of one role. Gauges are sums over the pods that report."""

    role: RoleName
    pods_reporting: int = 0
    """Pods with a fresh sample."""
    steps: tuple[StepDelta, ...] = ()
    running: Signal = NOT_ASKED
    """Sequences in flight."""
    outstanding_prompt_tokens: Signal = NOT_ASKED
    """Prompt tokens that are queued, in engines or gateways, or being prefilled."""
    kv_capacity_tokens: Signal = NOT_ASKED
    """KV tokens of one replica: the smallest of the reporting pods."""


@dataclass(frozen=True, slots=True)
class FleetMetrics:
    """One round of queries to the metrics' source, for one fleet."""

    at: float
    """When the source evaluated them, on its own clock, as are all other times here."""
    arrivals: Signal
    """Requests per second over the rate window, at all gateways."""
    bins: tuple[Bin, ...] = ()
    """The same requests in exact counts, oldest first, one per scrape interval."""
    answered: tuple[Answered, ...] = ()
    """What was answered in each scrape interval, oldest first."""
    prompt_tokens: Signal = NOT_ASKED
    """Mean length of a prompt, E[L]."""
    prompt_tokens_squared: Signal = NOT_ASKED
    """Second moment E[L²] of the prompt's length."""
    output_tokens: Signal = NOT_ASKED
    """Mean length of an answer."""
    cached_share: Signal = NOT_ASKED
    """Share of the prompts' tokens that engines found in their prefix caches, 0..1."""
    prompts: Buckets = ()
    """Answered requests by the length of their prompts; empty: not counted."""
    answers: Buckets = ()
    """The same by the length of their answers."""
    kv_transfer_s: Signal = NOT_ASKED
    """Mean time of one KV transfer as decode sees it; charged to TPOT, or to TTFT where decode
    draws the first token."""
    attainment: Signal = NOT_ASKED
    """Share of requests within both limits of the SLO, over the attainment window."""
    ttft_attainment: Signal = NOT_ASKED
    tpot_attainment: Signal = NOT_ASKED
    ttft_p90_s: Signal = NOT_ASKED
    """For status only; no rule reads it."""
    tpot_p90_s: Signal = NOT_ASKED
    """For status only; no rule reads it."""
    verdicts: tuple[Verdicts, ...] = ()
    """Judged requests by scrape interval, oldest first. For the error budget alone."""
    misses: tuple[tuple[str, float], ...] = ()
    """Why requests missed the SLO in the attainment window, with their number. For status alone."""
    scored: float = 0.0
    """Verdicts in the attainment window; a shed request is a miss."""
    clock_skew_s: float = 0.0
    """The operator's clock minus the clock of the metrics' source."""
    scraped_twice: tuple[str, ...] = ()
    """Jobs of Prometheus that scrape the same pods; the samples of one are used."""
    silent_gateways: tuple[str, ...] = ()
    """Ready gateways without fresh samples: the other numbers are a part of the whole."""
    gateways_alone: str = ""
    """Why Prometheus has no arrivals, where these metrics are what gateways said when the operator
    asked them; empty where they are Prometheus'."""
    roles: tuple[RoleMetrics, ...] = ()

    def role(self, role: RoleName) -> RoleMetrics:
        """The role's engines; empty if none was asked about."""
        return next((r for r in self.roles if r.role == role), RoleMetrics(role))


def unknown_metrics(at: float, reason: str) -> FleetMetrics:
    """A round that failed as a whole, because Prometheus or all gateways are away."""
    return FleetMetrics(at=at, arrivals=Unknown(reason))


@dataclass(frozen=True, slots=True)
class RoleSupply:
    """Pods of one role as Kubernetes knows them."""

    role: RoleName
    desired: int
    """Replicas that the operator asked for last."""
    ready: int
    pending: int = 0
    """Pods that are wanted but not ready yet, unschedulable ones included."""
    unschedulable: int = 0
    draining: int = 0
    cold_starts_s: tuple[float, ...] = ()
    """Newest measured times from "replica wanted" to "ready", newest last."""
    gpus_per_replica: int = 1
    rolling: bool = False
    """Whether a rollout of this role is in progress."""
    mixed: bool = False
    """Whether sets of two revisions serve, or of one that has just come. Until then a rollout
    changes nothing that the law knows."""
    revision: str = ""
    """The revision that is learnt: that of the spec once a set of it serves, and until then the one
    that serves. Empty while none does: what is known stays."""
    old_pods: tuple[str, ...] = ()
    """Names of the pods of other revisions: what they measure is not this one's."""


@dataclass(frozen=True, slots=True)
class Front:
    """What a fleet's gateways say of themselves, without Prometheus between. Only a fleet that may
    go to zero has them asked."""

    in_flight: int = 0
    """Requests at the gateways that answer, those that wait for a pod included."""
    idle_s: float | None = None
    """Seconds since any gateway had a request. None: unknown, because a gateway that runs does not
    answer, or none is ready."""
    unheard_s: float = 0.0
    """For how long a Ready gateway has not answered: requests may wait there."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What a law observes in one round."""

    metrics: FleetMetrics
    supply: tuple[RoleSupply, ...]
    front: Front = Front()

    def of(self, role: RoleName) -> RoleSupply:
        """Raises StopIteration for a role that the fleet does not have."""
        return next(supply for supply in self.supply if supply.role == role)
