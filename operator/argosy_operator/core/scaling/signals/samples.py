"""Raw samples of counters and gauges → one `FleetMetrics`.

`ports/prometheus` (range samples of the last window) and the simulator both end here, so that the
windows' arithmetic exists once, in exact counts. PromQL's `increase()` extrapolates to the window's
edges, which at a handful of scrapes and requests is an error of 20–50 %; here nothing is invented:
an increase is the difference of two samples of one series, a fall is a restart and counts from 0.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, isfinite
from operator import itemgetter

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.estimate.demand import REMEMBERED_BINS
from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import (
    Bin,
    FleetMetrics,
    Idle,
    RoleMetrics,
    Signal,
    StepDelta,
    Unknown,
    Value,
)

ROLES: tuple[RoleName, ...] = ("prefill", "decode", "colocated")

RECEIVED = "argosy_requests_received_total"
VERDICTS = "argosy_slo_requests_total"
PROMPTS = "argosy_gateway_prompt_tokens"
PROMPTS_SQUARED = "argosy_gateway_prompt_tokens_squared_total"
OUTPUTS = "argosy_gateway_output_tokens"
TRANSFERS = "argosy_kv_transfer_seconds"
TTFT = "argosy_gateway_ttft_seconds"
TPOT = "argosy_gateway_tpot_seconds"
STEP_COUNTERS = {
    "argosy_step_seconds_total": "seconds",
    "argosy_steps_total": "steps",
    "argosy_step_prefill_tokens_total": "prefill_tokens",
    "argosy_step_prefill_requests_total": "prefill_requests",
    "argosy_step_decode_sequences_total": "decode_sequences",
    "argosy_step_context_tokens_total": "context_tokens",
}
RUNNING = "vllm:num_requests_running"
OUTSTANDING = "argosy_outstanding_prompt_tokens"
KV_CAPACITY = "argosy_kv_capacity_tokens"
GAUGES = (RUNNING, OUTSTANDING, KV_CAPACITY)


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: (time, value), oldest first. Labels as Prometheus has them."""

    name: str
    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def usable(self) -> bool:
        """Counters and gauges of ours are finite and never negative; anything else is a lie."""
        return bool(self.samples) and all(isfinite(v) and v >= 0 for _, v in self.samples)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of questions brought: series of the window that ends at `at`, and which
    gateway targets exist (`targets`) and answer (`up`)."""

    at: float
    series: tuple[Series, ...]
    gateways_up: int
    gateway_targets: int
    ready_gateways: frozenset[str] = frozenset()
    """Pods that Kubernetes calls Ready: requests may arrive at each of them."""


def cumulated(samples: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """The counter since its first sample, without resets: a fall is a restart from 0."""
    total, out = 0.0, [(samples[0][0], 0.0)]
    for (_, before), (at, value) in pairwise(samples):
        total += value - before if value >= before else value
        out.append((at, total))
    return tuple(out)


def at_time(cumulative: tuple[tuple[float, float], ...], time: float) -> float:
    """Linear between samples, flat outside of them."""
    if time <= cumulative[0][0]:
        return 0.0
    after = bisect_left(cumulative, time, lo=1, key=itemgetter(0))
    if after == len(cumulative):
        return cumulative[-1][1]
    (t0, v0), (t1, v1) = cumulative[after - 1 : after + 1]
    return v0 + (v1 - v0) * (time - t0) / (t1 - t0)


def increase(series: Series, start: float) -> float:
    """Growth from `start` to the newest sample; from the first sample if that is later.

    A series that begins inside the window began from an unknown value: what it had counted before
    its first scrape is not taken (one scrape's worth is lost when a pod is new).
    """
    grown = cumulated(series.samples)
    return grown[-1][1] - at_time(grown, start)


def arrival_bins(series: list[Series], windows: Windows, until: float) -> tuple[Bin, ...]:
    """Counts per scrape interval, on a grid of whole multiples of it, up to the oldest of the
    pods' newest samples; pods that have gone quiet for longer than fresh_s do not hold it back.
    At most as many as `demand` remembers."""
    live = [s for s in series if until - s.samples[-1][0] <= windows.fresh_s]
    if not live:
        return ()
    step = windows.scrape_s
    last = floor(min(s.samples[-1][0] for s in live) / step + 1e-6)
    first = min(s.samples[0][0] for s in series)
    grown = [cumulated(s.samples) for s in series]
    bins = []
    for k in range(last, max(floor(first / step), last - REMEMBERED_BINS), -1):
        start, end = (k - 1) * step, k * step
        if start < first - 1e-6 * step:
            break
        bins.append(Bin(end, sum(at_time(g, end) - at_time(g, start) for g in grown)))
    return tuple(reversed(bins))


def assemble(taken: Round, windows: Windows, pods: frozenset[str] | None = None) -> FleetMetrics:
    """One round as signals. `pods`: names of live pods; series of others do not count as gauges
    or capacity (None: all count). Gateways' counters always count: a request that came, came."""
    by_name: dict[str, list[Series]] = {}
    broken = set()
    for s in taken.series:
        if s.usable:
            by_name.setdefault(s.name, []).append(s)
        elif s.samples:
            broken.add(s.name)
    received = [
        s for s in by_name.get(RECEIVED, []) if s.labels.get("outcome") in ("accepted", "shed")
    ]
    silent = _silent(taken, received, windows)
    bins = arrival_bins(received, windows, taken.at)
    metrics = FleetMetrics(
        at=taken.at,
        arrivals=_arrivals(taken, received, broken, windows, silent),
        bins=bins,
        prompt_tokens=_mean(by_name, PROMPTS, taken.at - windows.lengths_s),
        prompt_tokens_squared=_moment(by_name, taken.at - windows.lengths_s),
        output_tokens=_mean(by_name, OUTPUTS, taken.at - windows.lengths_s),
        kv_transfer_s=_mean(by_name, TRANSFERS, taken.at - windows.lengths_s, side="receive"),
        silent_gateways=silent,
        roles=tuple(_role(r, by_name, windows, taken.at, pods) for r in ROLES),
    )
    return _with_attainment(metrics, by_name, taken.at - windows.attainment_s)


def _silent(taken: Round, received: list[Series], windows: Windows) -> tuple[str, ...]:
    """Ready gateways without a fresh sample of arrivals: what arrives at them is unknown."""
    fresh = {
        s.labels.get("pod")
        for s in received
        if taken.at - s.samples[-1][0] <= windows.fresh_s and len(s.samples) > 1
    }
    return tuple(sorted(taken.ready_gateways - fresh))


def _arrivals(
    taken: Round,
    received: list[Series],
    broken: set[str],
    windows: Windows,
    silent: tuple[str, ...],
) -> Signal:
    """Three-state truth: Idle only when every Ready gateway answers, and its counter exists and is
    flat. A number of which some gateways are silent is a lower bound."""
    if taken.gateway_targets == 0:
        return Unknown("NoGatewayTarget: Prometheus scrapes no gateway of this fleet")
    if taken.gateways_up == 0:
        return Unknown("GatewayDown: no gateway answers Prometheus' scrapes")
    if RECEIVED in broken:
        return Unknown(f"NotANumber: {RECEIVED} is NaN, infinite or negative")
    if not received:
        return Unknown(f"NoSamples: {RECEIVED} has no samples")
    newest = max(s.samples[-1][0] for s in received)
    if taken.at - newest > windows.fresh_s:
        return Unknown(windows.stale_reason)
    if max(len(s.samples) for s in received) < 2:
        return Unknown("FirstSample: one sample of the arrivals is no rate yet")
    start = newest - windows.rate_s
    grown = sum(increase(s, start) for s in received)
    if grown <= 0 and silent:
        return Unknown(f"GatewaySilent: Prometheus has no fresh samples of {', '.join(silent)}")
    if grown <= 0:
        return Idle(newest)
    oldest = min(s.samples[0][0] for s in received)
    return Value(grown / (newest - max(start, oldest)), newest)


def _sums(series: Iterable[Series], start: float) -> tuple[float, float]:
    """(growth, time of the newest sample)."""
    some = list(series)
    if not some:
        return 0.0, 0.0
    return sum(increase(s, start) for s in some), max(s.samples[-1][0] for s in some)


def _mean(by_name: dict[str, list[Series]], name: str, start: float, **labels: str) -> Signal:
    """Σ/count of a histogram over the window; Idle when nothing was observed in it."""
    chosen: dict[str, list[Series]] = {
        part: [
            s
            for s in by_name.get(f"{name}_{part}", [])
            if all(s.labels.get(k) == v for k, v in labels.items())
        ]
        for part in ("sum", "count")
    }
    if not chosen["count"] or not chosen["sum"]:
        return Unknown("NoSamples")
    total, at = _sums(chosen["sum"], start)
    count, _ = _sums(chosen["count"], start)
    return Value(total / count, at) if count > 0 else Idle(at)


def _moment(by_name: dict[str, list[Series]], start: float) -> Signal:
    squares, counts = by_name.get(PROMPTS_SQUARED, []), by_name.get(f"{PROMPTS}_count", [])
    if not squares or not counts:
        return Unknown("NoSamples")
    total, at = _sums(squares, start)
    count, _ = _sums(counts, start)
    return Value(total / count, at) if count > 0 else Idle(at)


def _with_attainment(
    metrics: FleetMetrics, by_name: dict[str, list[Series]], start: float
) -> FleetMetrics:
    """Shares of verdicts; a request shed is a verdict of `miss` in the gateway's own counter."""
    verdicts = by_name.get(VERDICTS, [])
    if not verdicts:
        return metrics
    grown = {id(s): increase(s, start) for s in verdicts}
    scored, at = sum(grown.values()), max(s.samples[-1][0] for s in verdicts)

    def share(*names: str) -> Signal:
        met = sum(grown[id(s)] for s in verdicts if all(s.labels.get(n) == "ok" for n in names))
        return Value(min(met / scored, 1.0), at) if scored > 0 else Idle(at)

    return replace(
        metrics,
        scored=scored,
        attainment=share("ttft", "tpot"),
        ttft_attainment=share("ttft"),
        tpot_attainment=share("tpot"),
    )


def _role(
    role: RoleName,
    by_name: dict[str, list[Series]],
    windows: Windows,
    now: float,
    pods: frozenset[str] | None,
) -> RoleMetrics:
    def live(name: str) -> list[Series]:
        return [
            s
            for s in by_name.get(name, [])
            if s.labels.get("role") == role
            and now - s.samples[-1][0] <= windows.fresh_s
            and (pods is None or s.labels.get("pod") in pods)
        ]

    def total(name: str) -> Signal:
        some = live(name)
        if not some:
            return Unknown("NoSamples")
        return Value(sum(s.samples[-1][1] for s in some), max(s.samples[-1][0] for s in some))

    capacity = live(KV_CAPACITY)
    smallest = min((s.samples[-1][1] for s in capacity), default=0.0)
    return RoleMetrics(
        role=role,
        pods_reporting=len({s.labels.get("pod", "") for s in live(RUNNING)}),
        steps=_step_deltas([s for n in STEP_COUNTERS for s in live(n)], windows),
        running=total(RUNNING),
        outstanding_prompt_tokens=total(OUTSTANDING),
        kv_capacity_tokens=Value(smallest, capacity[0].samples[-1][0])
        if smallest > 0
        else Unknown("NoSamples"),
    )


def _step_deltas(series: list[Series], windows: Windows) -> tuple[StepDelta, ...]:
    """Per pod, growth over the newest interval (at least two scrapes). A new pod counts from its
    second sample on. At most 8 pods: a record stays small, and the law is linear in the sums."""
    by_pod: dict[str, list[Series]] = {}
    for s in series:
        by_pod.setdefault(s.labels.get("pod", ""), []).append(s)
    rows = []
    for pod in sorted(by_pod):
        newest = max(s.samples[-1][0] for s in by_pod[pod])
        start = newest - max(windows.interval_s, windows.scrape_s)
        sums = dict.fromkeys(STEP_COUNTERS.values(), 0.0)
        for s in by_pod[pod]:
            sums[STEP_COUNTERS[s.name]] += increase(s, start)
        if sums["steps"] > 0:
            rows.append(StepDelta(at=newest, **sums))
    return tuple(rows[:8])
