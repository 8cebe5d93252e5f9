"""Raw samples of counters and gauges → one `FleetMetrics`.

`adapters.prometheus` (range samples of the last window) and the simulator both call `assemble`, so
the arithmetic of windows exists once, in exact counts. PromQL's `increase()` extrapolates to the
edges of the window, an error of 20–50 % at a handful of scrapes and requests. Here an increase is
the difference of two samples of one series, and a fall is a restart that counts from 0.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, isfinite
from operator import itemgetter

from argosy_law.estimate.demand import REMEMBERED_BINS
from argosy_law.goals import Windows
from argosy_law.observe import (
    Answered,
    Bin,
    Buckets,
    FleetMetrics,
    Idle,
    RoleMetrics,
    RoleName,
    Signal,
    StepDelta,
    Unknown,
    Value,
)
from argosy_law.signals import lengths
from argosy_law.slo import Verdicts

ROLES: tuple[RoleName, ...] = ("prefill", "decode", "colocated")
PROMPT_ROLES: tuple[RoleName, ...] = ("prefill", "colocated")
"""Those that compute prompts."""

RECEIVED = "argosy_requests_received_total"
VERDICTS = "argosy_slo_requests_total"
MISSES = "argosy_slo_misses_total"
PROMPTS = "argosy_gateway_prompt_tokens"
PROMPTS_SQUARED = "argosy_gateway_prompt_tokens_squared_total"
OUTPUTS = "argosy_gateway_output_tokens"
TRANSFERS = "argosy_kv_transfer_seconds"
ENGINE_PROMPTS = "vllm:prompt_tokens_total"
ENGINE_CACHED = "vllm:prompt_tokens_cached_total"
WAITING = "argosy_gateway_waiting_prompt_tokens"
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
SUMS = {
    "prompt_tokens": (f"{PROMPTS}_sum", f"{PROMPTS}_count"),
    "prompt_tokens_squared": (PROMPTS_SQUARED, f"{PROMPTS}_count"),
    "output_tokens": (f"{OUTPUTS}_sum", f"{OUTPUTS}_count"),
    "kv_transfer_s": (f"{TRANSFERS}_sum", f"{TRANSFERS}_count"),
    "cached_share": (ENGINE_CACHED, ENGINE_PROMPTS),
    "attainment": (VERDICTS,),
    "ttft_attainment": (VERDICTS,),
    "tpot_attainment": (VERDICTS,),
}
"""Field of FleetMetrics → the counters, of all pods together, that it is made of."""

ENOUGH_TRANSFERS = 16
"""KV transfers from which a mean is used. Times that spread like an exponential distribution have a
standard deviation of their mean, so the mean of 16 has a standard error of 1/√16 = ¼ of itself.
A transfer of 60 ms adds 1 ms per token to an answer of 60 tokens; a quarter of that is 0.6 % of a
TPOT of 40 ms, far below `sizing.HYSTERESIS`. The first transfers open connections and are slower.
"""
MOST_STEP_ROWS = 8
"""Pods whose step counters are taken: a record stays small, and the law is linear in the sums."""


@dataclass(frozen=True, slots=True)
class Series:
    """One time series, with the labels that Prometheus has."""

    name: str
    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]
    """(time, value), oldest first."""

    @property
    def usable(self) -> bool:
        """Whether all samples can be true: ours are finite and never negative."""
        values = [value for _, value in self.samples]
        # The sum is NaN or infinite if a value is. A round has ten thousand samples.
        return bool(values) and isfinite(sum(values)) and min(values) >= 0


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of queries returned."""

    at: float
    """End of the window, seconds since the epoch."""
    series: tuple[Series, ...]
    gateways_up: int
    """Gateway targets that answered their last scrape."""
    gateway_targets: int
    """Gateway targets that Prometheus has."""
    ready_gateways: frozenset[str] = frozenset()
    """Names of Ready gateway pods: requests may arrive at each of them."""
    no_targets: str = ""
    """Why there is none, if that is known."""
    closed: bool = False
    """No gateway pod is Ready: that no request arrives says nothing about the demand."""


_SOURCES = ("job", "prometheus", "prometheus_replica")
"""Labels that tell apart who scraped a target."""


def deduplicate(series: Iterable[Series]) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """Leave out series that another scrape job has of the same pod: they would count twice.

    Return the series that stay, and the names of the jobs that scrape the same pods.

    Of the sources whose samples are as new as the others', the one that has them for longest is
    used, so that another job that begins to scrape does not end what is known.
    """
    listed = tuple(one for one in series if one.samples)
    sources: dict[tuple[str, str], dict[tuple[str, ...], list[Series]]] = {}
    for one in listed:
        if pod := one.labels.get("pod"):
            source = tuple(one.labels.get(name, "") for name in _SOURCES)
            sources.setdefault((pod, one.name), {}).setdefault(source, []).append(one)
    dropped, jobs = set[int](), set[tuple[str, ...]]()
    for by_source in sources.values():
        if len(by_source) < 2:
            continue
        last = {source: max(o.samples[-1][0] for o in of) for source, of in by_source.items()}
        first = {source: min(o.samples[0][0] for o in of) for source, of in by_source.items()}
        # A job that stopped is older than the span from which the other's samples are.
        gap = _longest_gap(by_source)
        live = [s for s in by_source if last[s] >= max(last.values()) - gap]
        # By name among those of equal length: the same one in the next round.
        begun = min(first[source] for source in live)
        chosen = min(source for source in live if first[source] <= begun + gap)
        dropped |= {id(o) for source, of in by_source.items() if source != chosen for o in of}
        jobs |= set(live) if len(live) > 1 else set()
    kept = tuple(one for one in listed if id(one) not in dropped)
    return kept, tuple(sorted(" of ".join(filter(None, source)) for source in jobs))


def _longest_gap(by_source: Mapping[tuple[str, ...], list[Series]]) -> float:
    """Seconds between two samples that follow each other, at most."""
    gaps = [
        later - at
        for of in by_source.values()
        for one in of
        for (at, _), (later, _) in pairwise(one.samples)
    ]
    return max(gaps, default=0.0)


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

    A series that begins inside the window began at an unknown value, so what it had counted before
    its first scrape is left out: a new pod loses one scrape.
    """
    since = bisect_left(series.samples, start, lo=1, key=itemgetter(0)) - 1
    grown = cumulated(series.samples[since:])
    return grown[-1][1] - at_time(grown, start)


def arrival_bins(series: list[Series], windows: Windows, until: float) -> tuple[Bin, ...]:
    """Requests per scrape interval, oldest first, on a grid of whole multiples of it.

    The last bin ends at the oldest of the pods' newest samples; pods without a sample for `fresh_s`
    do not hold it back. At most as many bins as `estimate.demand` remembers.
    """
    live = [one for one in series if until - one.samples[-1][0] <= windows.fresh_s]
    if not live:
        return ()
    step = windows.scrape_s
    last = floor(min(one.samples[-1][0] for one in live) / step + 1e-6)
    first = min(one.samples[0][0] for one in series)
    grown = [cumulated(one.samples) for one in series]
    bins = []
    for k in range(last, max(floor(first / step), last - REMEMBERED_BINS), -1):
        start, end = (k - 1) * step, k * step
        if start < first - 1e-6 * step:
            break
        bins.append(Bin(end, sum(at_time(g, end) - at_time(g, start) for g in grown)))
    return tuple(reversed(bins))


def assemble(taken: Round, windows: Windows, pods: frozenset[str] | None = None) -> FleetMetrics:
    """One round as signals.

    `pods` are the names of live pods: gauges and steps of others are left out (None: all count).
    Counters of gateways always count, because their requests did arrive.
    """
    by_name: dict[str, list[Series]] = {}
    broken: dict[str, list[Series]] = {}
    for one in taken.series:
        if one.samples:
            (by_name if one.usable else broken).setdefault(one.name, []).append(one)
    received = [
        one
        for one in by_name.get(RECEIVED, [])
        if one.labels.get("outcome") in ("accepted", "shed")
    ]
    silent = _silent(taken, received, windows)
    bins = arrival_bins(received, windows, taken.at)
    metrics = FleetMetrics(
        at=taken.at,
        arrivals=_arrivals(taken, received, broken, windows, silent),
        bins=bins,
        answered=_answered(by_name, windows, taken.at),
        prompt_tokens=_mean(by_name, PROMPTS, taken.at - windows.lengths_s),
        prompt_tokens_squared=_moment(by_name, taken.at - windows.lengths_s),
        output_tokens=_mean(by_name, OUTPUTS, taken.at - windows.lengths_s),
        cached_share=_cached(by_name, taken.at - windows.lengths_s),
        prompts=_buckets(by_name, broken, PROMPTS, taken.at - windows.lengths_s),
        answers=_buckets(by_name, broken, OUTPUTS, taken.at - windows.lengths_s),
        kv_transfer_s=_transfer(by_name, taken.at - windows.lengths_s),
        silent_gateways=silent,
        roles=tuple(_role(r, by_name, broken, windows, taken.at, pods) for r in ROLES),
    )
    metrics = _with_waiting(metrics, by_name, broken, windows)
    metrics = _with_attainment(metrics, by_name, taken.at - windows.attainment_s, windows)
    return _without_broken(metrics, broken)


def _without_broken(metrics: FleetMetrics, broken: Collection[str]) -> FleetMetrics:
    """The metrics without the sums of which a part is no number: the rest is not the whole."""
    unknown: dict[str, Signal] = {
        signal: Unknown(f"NotANumber: {found[0]} is NaN, infinite or negative")
        for signal, names in SUMS.items()
        if (found := sorted(set(broken) & set(names)))
    }
    return replace(metrics, **unknown)  # type: ignore[arg-type]


def _silent(taken: Round, received: list[Series], windows: Windows) -> tuple[str, ...]:
    """Ready gateways without a fresh sample of arrivals: what arrives at them is unknown."""
    fresh = {
        one.labels.get("pod")
        for one in received
        if taken.at - one.samples[-1][0] <= windows.fresh_s and len(one.samples) > 1
    }
    return tuple(sorted(taken.ready_gateways - fresh))


def _arrivals(
    taken: Round,
    received: list[Series],
    broken: Collection[str],
    windows: Windows,
    silent: tuple[str, ...],
) -> Signal:
    """Requests per second. Idle only if every Ready gateway answers and its counter is flat.

    The value is a lower bound while a gateway is silent.
    """
    if taken.gateway_targets == 0:
        why = f"; {taken.no_targets}" if taken.no_targets else ""
        return Unknown(f"NoGatewayTarget: Prometheus scrapes no gateway of this fleet{why}")
    if taken.gateways_up == 0:
        return Unknown("GatewayDown: no gateway answers Prometheus' scrapes")
    if taken.closed:
        return Unknown("GatewayDown: no gateway pod is ready, so requests cannot arrive")
    if RECEIVED in broken:
        return Unknown(f"NotANumber: {RECEIVED} is NaN, infinite or negative")
    if not received:
        return Unknown(f"NoSamples: {RECEIVED} has no samples")
    newest = max(one.samples[-1][0] for one in received)
    if taken.at - newest > windows.fresh_s:
        return Unknown(windows.stale_reason)
    if max(len(one.samples) for one in received) < 2:
        return Unknown("FirstSample: one sample of the arrivals is no rate yet")
    start = newest - windows.rate_s
    grown = sum(increase(one, start) for one in received)
    if grown <= 0 and silent:
        return Unknown(f"GatewaySilent: Prometheus has no fresh samples of {', '.join(silent)}")
    if grown <= 0:
        return Idle(newest)
    seen_s = newest - max(start, min(one.samples[0][0] for one in received))
    if seen_s <= 0:  # times so large that a float does not tell them apart
        return Unknown(windows.stale_reason)
    return Value(grown / seen_s, newest)


def _sums(series: Iterable[Series], start: float) -> tuple[float, float]:
    """(growth since `start`, time of the newest sample) of all series together."""
    listed = list(series)
    if not listed:
        return 0.0, 0.0
    return sum(increase(one, start) for one in listed), max(one.samples[-1][0] for one in listed)


def _mean(by_name: dict[str, list[Series]], name: str, start: float) -> Signal:
    """Sum over count of a histogram since `start`; Idle if nothing was observed."""
    return _ratio(by_name.get(f"{name}_sum", []), by_name.get(f"{name}_count", []), start)


def _buckets(
    by_name: dict[str, list[Series]], broken: Collection[str], name: str, start: float
) -> Buckets:
    """Requests per bucket of a histogram of lengths since `start`; none if one is no number."""
    found = f"{name}_bucket"
    if found in broken:
        return ()
    grown: dict[float, float] = {}
    for one in by_name.get(found, []):
        edge = _edge(one.labels.get("le", ""))
        if edge is not None:
            grown[edge] = grown.get(edge, 0.0) + increase(one, start)
    return lengths.count_growth(grown)


def _answered(
    by_name: dict[str, list[Series]], windows: Windows, until: float
) -> tuple[Answered, ...]:
    """What was answered in each scrape interval that all of the counters have."""
    names = (f"{PROMPTS}_count", f"{PROMPTS}_sum", f"{OUTPUTS}_sum")
    requests, prompts, answers = (
        {one.end: one.count for one in arrival_bins(by_name.get(name, []), windows, until)}
        for name in names
    )
    ends = sorted(requests.keys() & prompts.keys() & answers.keys())
    return tuple(Answered(end, requests[end], prompts[end], answers[end]) for end in ends)


def _edge(text: str) -> float | None:
    """The upper edge of a bucket; None for a label that is none."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return edge if edge > 0 else None


def _transfer(by_name: dict[str, list[Series]], start: float) -> Signal:
    """Mean seconds of a KV transfer as decode pods see it; Idle while there are too few."""
    totals, counts = (
        [
            one
            for one in by_name.get(f"{TRANSFERS}_{part}", [])
            if one.labels.get("side") == "receive"
        ]
        for part in ("sum", "count")
    )
    return _ratio(totals, counts, start, least=ENOUGH_TRANSFERS)


def _cached(by_name: dict[str, list[Series]], start: float) -> Signal:
    """Share of prompt tokens that pods with prefill found in their prefix caches.

    Decode pods count the prompts that they pull, too, which no pod computes there.
    """
    cached, prompts = (
        [one for one in by_name.get(name, []) if one.labels.get("role") in PROMPT_ROLES]
        for name in SUMS["cached_share"]
    )
    return _ratio(cached, prompts, start)


def _ratio(
    totals: list[Series], counts: list[Series], start: float, *, least: float = 0.0
) -> Signal:
    """Growth of `totals` per growth of `counts`; Idle if the counts grew by less than `least`.

    Idle and not Unknown: the source works, its last mean still counts, and a fleet with little
    traffic may shrink.
    """
    if not totals or not counts:
        return Unknown("NoSamples")
    total, at = _sums(totals, start)
    count, _ = _sums(counts, start)
    return Value(total / count, at) if count > 0 and count >= least else Idle(at)


def _moment(by_name: dict[str, list[Series]], start: float) -> Signal:
    """Mean of the squared lengths of prompts, E[L²]."""
    return _ratio(by_name.get(PROMPTS_SQUARED, []), by_name.get(f"{PROMPTS}_count", []), start)


def _with_waiting(
    metrics: FleetMetrics,
    by_name: dict[str, list[Series]],
    broken: Collection[str],
    windows: Windows,
) -> FleetMetrics:
    """The metrics with the prompts that wait in gateways counted as those that wait in engines.

    Engines count what they will compute, gateways whole prompts, of which the share in caches is
    taken off. Gateways of older versions do not report them: what waits there is in the engines.
    """
    cached = metrics.cached_share
    computed = 1 - min(cached.value, 1.0) if isinstance(cached, Value) else 1.0
    fresh = [
        one.samples[-1][1]
        for one in by_name.get(WAITING, [])
        if metrics.at - one.samples[-1][0] <= windows.fresh_s
    ]

    def with_both(role: RoleMetrics) -> RoleMetrics:
        outstanding = role.outstanding_prompt_tokens
        if role.role == "decode" or not isinstance(outstanding, Value):
            return role
        if WAITING in broken:
            unknown = Unknown(f"NotANumber: {WAITING} is NaN, infinite or negative")
            return replace(role, outstanding_prompt_tokens=unknown)
        both = replace(outstanding, value=outstanding.value + computed * sum(fresh))
        return replace(role, outstanding_prompt_tokens=both)

    return replace(metrics, roles=tuple(map(with_both, metrics.roles)))


def _with_attainment(
    metrics: FleetMetrics, by_name: dict[str, list[Series]], start: float, windows: Windows
) -> FleetMetrics:
    """The metrics with shares of verdicts since `start`; the gateway counts a shed one as miss."""
    verdicts = by_name.get(VERDICTS, [])
    if not verdicts:
        return metrics
    grown = {id(one): increase(one, start) for one in verdicts}
    met = [one for one in verdicts if one.labels.get("ttft") == one.labels.get("tpot") == "ok"]
    scored, at = sum(grown.values()), max(one.samples[-1][0] for one in verdicts)

    def share(*names: str) -> Signal:
        met = sum(
            grown[id(one)] for one in verdicts if all(one.labels.get(n) == "ok" for n in names)
        )
        return Value(min(met / scored, 1.0), at) if scored > 0 else Idle(at)

    return replace(
        metrics,
        misses=_misses(by_name.get(MISSES, []), start),
        verdicts=_verdict_bins(verdicts, met, windows, metrics.at),
        scored=scored,
        attainment=share("ttft", "tpot"),
        ttft_attainment=share("ttft"),
        tpot_attainment=share("tpot"),
    )


def _role(
    role: RoleName,
    by_name: dict[str, list[Series]],
    broken: dict[str, list[Series]],
    windows: Windows,
    now: float,
    pods: frozenset[str] | None,
) -> RoleMetrics:
    def live(name: str, among: dict[str, list[Series]] = by_name) -> list[Series]:
        return [
            one
            for one in among.get(name, [])
            if one.labels.get("role") == role
            and now - one.samples[-1][0] <= windows.fresh_s
            and (pods is None or one.labels.get("pod") in pods)
        ]

    def total(name: str) -> Signal:
        found = live(name)
        if live(name, broken):
            return Unknown(f"NotANumber: {name} is NaN, infinite or negative")
        if not found:
            return Unknown("NoSamples")
        return Value(
            sum(one.samples[-1][1] for one in found), max(one.samples[-1][0] for one in found)
        )

    capacity = live(KV_CAPACITY)
    smallest = min((one.samples[-1][1] for one in capacity), default=0.0)
    return RoleMetrics(
        role=role,
        pods_reporting=len({one.labels.get("pod", "") for one in live(RUNNING)}),
        steps=_step_deltas(
            [one for n in STEP_COUNTERS for one in live(n)],
            windows,
            {one.labels.get("pod", "") for n in STEP_COUNTERS for one in live(n, broken)},
        ),
        running=total(RUNNING),
        outstanding_prompt_tokens=total(OUTSTANDING),
        kv_capacity_tokens=Value(smallest, capacity[0].samples[-1][0])
        if smallest > 0
        else Unknown("NoSamples"),
    )


def _step_deltas(
    series: list[Series], windows: Windows, broken_pods: set[str]
) -> tuple[StepDelta, ...]:
    """Per pod, growth over the newest interval; a new pod counts from its second sample on.

    A pod of which one counter is no number teaches nothing: its other counters are a part.
    """
    by_pod: dict[str, list[Series]] = {}
    for one in series:
        by_pod.setdefault(one.labels.get("pod", ""), []).append(one)
    rows = []
    for pod in sorted(by_pod.keys() - broken_pods):
        newest = max(one.samples[-1][0] for one in by_pod[pod])
        start = newest - max(windows.interval_s, windows.scrape_s)
        sums = dict.fromkeys(STEP_COUNTERS.values(), 0.0)
        for one in by_pod[pod]:
            sums[STEP_COUNTERS[one.name]] += increase(one, start)
        if sums["steps"] > 0:
            rows.append(StepDelta(at=newest, **sums, pod=pod))
    return tuple(rows[:MOST_STEP_ROWS])


def _misses(series: list[Series], start: float) -> tuple[tuple[str, float], ...]:
    """Requests by the reason of their miss since `start`, the most frequent first."""
    grown: dict[str, float] = {}
    for one in series:
        reason = one.labels.get("reason", "")
        grown[reason] = grown.get(reason, 0.0) + increase(one, start)
    return tuple(sorted(((r, n) for r, n in grown.items() if n > 0), key=lambda of: -of[1]))


def _verdict_bins(
    ended: list[Series], met: list[Series], windows: Windows, until: float
) -> tuple[Verdicts, ...]:
    """Ended requests by scrape interval, and those of them that met both limits."""
    good = {one.end: one.count for one in arrival_bins(met, windows, until)}
    return tuple(
        Verdicts(one.end, min(good.get(one.end, 0.0), one.count), one.count)
        for one in arrival_bins(ended, windows, until)
    )
