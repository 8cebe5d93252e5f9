"""What a scaling law observes: signals, one round of metrics, and the supply of pods.

Metrics come from `signals.samples.assemble` (from Prometheus or the simulator), supply from the
operator's snapshot; `decide` reads both. Values only: no clock, no I/O. Times are seconds since the
epoch, durations are seconds, shares are 0..1. Every value can be written with `record.to_json` and
read back with `record.from_json`.
"""

from dataclasses import dataclass
from math import isfinite

from argosy_operator.api.v1alpha1 import RoleName

LARGEST = 1e15
"""No rate, length, time or count of a fleet is larger; a larger number is not a measurement."""


@dataclass(frozen=True, slots=True)
class Value:
    """A measured number; `at` is the time of its newest sample."""

    value: float
    at: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The source is up and its counter exists, and nothing happened: a measured nothing."""

    at: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known. Never read as zero, never a ground for removing capacity."""

    reason: str


Signal = Value | Idle | Unknown

NOT_ASKED = Unknown("NotAsked")


def plausible(number: float) -> bool:
    """Can it be a measurement: finite, not negative, no larger than any fleet's?"""
    return isfinite(number) and 0 <= number <= LARGEST


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests that arrived at all gateways in the scrape interval that ended at `end`."""

    end: float
    count: float


@dataclass(frozen=True, slots=True)
class StepDelta:
    """Growth of the step counters between two scrapes of one pod, all kinds of steps together.

    Steps are linear in their features, so a sum over many steps still obeys the step's equation.
    """

    at: float
    seconds: float
    steps: float
    prefill_tokens: float = 0.0
    prefill_requests: float = 0.0
    decode_sequences: float = 0.0
    context_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class RoleMetrics:
    """Engines of one role. Sums are over the pods that report; `pods_reporting` says how many."""

    role: RoleName
    pods_reporting: int = 0
    steps: tuple[StepDelta, ...] = ()
    running: Signal = NOT_ASKED
    outstanding_prompt_tokens: Signal = NOT_ASKED
    kv_capacity_tokens: Signal = NOT_ASKED
    """Of one replica (smallest of the reporting pods)."""


@dataclass(frozen=True, slots=True)
class FleetMetrics:
    """One round of questions to the metrics' source.

    `arrivals` (per second, over the rate window) decides between Value, Idle and Unknown; `bins`
    carries the same counts exactly, oldest first, one per scrape interval. Attainments are over
    the attainment window; `scored` is the number of verdicts in it (shed requests count as misses).
    """

    at: float
    arrivals: Signal
    bins: tuple[Bin, ...] = ()
    prompt_tokens: Signal = NOT_ASKED
    prompt_tokens_squared: Signal = NOT_ASKED
    """Second moment E[L²] of the prompt's length."""
    output_tokens: Signal = NOT_ASKED
    kv_transfer_s: Signal = NOT_ASKED
    """Mean time of one KV transfer as decode sees it; charged to TPOT."""
    attainment: Signal = NOT_ASKED
    ttft_attainment: Signal = NOT_ASKED
    tpot_attainment: Signal = NOT_ASKED
    ttft_p90_s: Signal = NOT_ASKED
    tpot_p90_s: Signal = NOT_ASKED
    """What people read in status; nothing is decided by these two."""
    scored: float = 0.0
    clock_skew_s: float = 0.0
    """The operator's clock minus the clock of the samples' source, s. `at` and all other times are
    on the source's clock."""
    silent_gateways: tuple[str, ...] = ()
    """Ready gateways whose arrivals are not known: the other numbers are a part of the whole."""
    roles: tuple[RoleMetrics, ...] = ()

    def role(self, role: RoleName) -> RoleMetrics:
        return next((r for r in self.roles if r.role == role), RoleMetrics(role))


def unknown_metrics(at: float, reason: str) -> FleetMetrics:
    """The round that failed as a whole (Prometheus away, time-out, no gateway target up)."""
    return FleetMetrics(at=at, arrivals=Unknown(reason))


@dataclass(frozen=True, slots=True)
class RoleSupply:
    """Pods of one role as Kubernetes knows them. `desired` is what the operator asked for last.

    `pending` are pods that are wanted but not ready yet (unschedulable ones included);
    `cold_starts_s` are the newest measured times from "replica wanted" to "ready", newest last.
    """

    role: RoleName
    desired: int
    ready: int
    pending: int = 0
    unschedulable: int = 0
    draining: int = 0
    cold_starts_s: tuple[float, ...] = ()
    gpus_per_replica: int = 1
    rolling: bool = False
    """A rollout is in progress in this role: no scale-down."""


@dataclass(frozen=True, slots=True)
class Observations:
    metrics: FleetMetrics
    supply: tuple[RoleSupply, ...]

    def of(self, role: RoleName) -> RoleSupply:
        return next(s for s in self.supply if s.role == role)
