"""What `kubectl argosy top` prints: each pod's work, from two scrapes of its metrics. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from argosy_operator.cli.kubectl.printed import Row, table
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import FleetKey, Object
from argosy_operator.core.fleet.pods import pod_of
from argosy_operator.core.fleet.snapshot import role_of

HEAD = ("pod", "role", "running", "waiting", "KV", "tokens/s", "ttft90", "tpot90", "state")
WIDE = ("revision", "node", "model")
Models = Mapping[FleetKey, str]
"""What each fleet serves: `spec.model.uri`."""
QUANTILE = 0.9
_ENGINE_TTFT, _ENGINE_TPOT = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds",
)
_OF_SGLANG = {
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    "vllm:kv_cache_usage_perc": "sglang:token_usage",
    "vllm:generation_tokens_total": "sglang:generation_tokens_total",
    _ENGINE_TTFT: "sglang:time_to_first_token_seconds",
    _ENGINE_TPOT: "sglang:inter_token_latency_seconds",
}
"""SGLang's names, from its documentation, by those of vLLM and of Argosy's own engine."""
_COMPUTED = "argosy_step_prefill_tokens_total"
_GATEWAY_TTFT, _GATEWAY_TPOT = "argosy_gateway_ttft_seconds", "argosy_gateway_tpot_seconds"

Buckets = Mapping[float, float]
"""Requests by upper edge in seconds, cumulative."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of a pod."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    """Sums over all labels by name of the series."""
    buckets: Mapping[str, Buckets] = field(default_factory=dict)
    """Histograms by name."""

    def has(self, name: str) -> bool:
        return name in self.numbers


def metrics_port(pod: Object) -> int:
    """Where the pod shows its metrics: as it tells Prometheus, else the admin port of its role."""
    told = (pod["metadata"].get("annotations") or {}).get("prometheus.io/port", "")
    if told.isdecimal():
        return int(told)
    return names.GATEWAY_ADMIN_PORT if role_of(pod) in names.FRONT_ROLES else names.ADMIN_PORT


def scrape(text: str) -> Scrape:
    """The series of a metrics page, those of SGLang under vLLM's names. Raises ValueError for a
    page that Prometheus could not read."""
    numbers, buckets = dict[str, float](), dict[str, dict[float, float]]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                of, edge = buckets.setdefault(family.name, {}), float(sample.labels["le"])
                of[edge] = of.get(edge, 0.0) + sample.value
            else:
                numbers[sample.name] = numbers.get(sample.name, 0.0) + sample.value
    for name, theirs in _OF_SGLANG.items():
        if theirs in numbers:
            numbers[name] = numbers[theirs]
        if theirs in buckets:
            buckets[name] = buckets[theirs]
    return Scrape(numbers, buckets)


@dataclass(frozen=True, slots=True)
class Load:
    """What one pod does. None: it does not say, or nothing happened between the scrapes."""

    running: float | None = None
    waiting: float | None = None
    leases: float | None = None
    """Prompts whose KV it holds for another pod."""
    kv_use: float | None = None
    """Used share of its KV pool."""
    tokens_per_s: float | None = None
    """Output tokens; of a prefill pod prompt tokens."""
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def streams(self) -> float | None:
        """What must end before the pod may leave; None if it does not say."""
        if self.running is None or self.waiting is None:
            return None
        return self.running + self.waiting + (self.leases or 0.0)


def load(before: Scrape | None, after: Scrape | None, span_s: float, role: str) -> Load:
    """The pod's work at the second scrape, and its rates over the `span_s` seconds between both."""
    if after is None:
        return Load()
    if role in names.FRONT_ROLES:
        in_flight = after.numbers.get("argosy_gateway_inflight_requests")
        waiting = after.numbers.get("argosy_gateway_waiting_requests")
        running = None if in_flight is None else in_flight - (waiting or 0.0)
        ttft, tpot = _GATEWAY_TTFT, _GATEWAY_TPOT
        tokens = "argosy_gateway_output_tokens_sum"
        kv_use = leases = None
    else:
        running = after.numbers.get("vllm:num_requests_running")
        waiting = after.numbers.get("vllm:num_requests_waiting")
        kv_use = after.numbers.get("vllm:kv_cache_usage_perc")
        leases = after.numbers.get("argosy_kv_leases_active")
        ttft, tpot = _ENGINE_TTFT, _ENGINE_TPOT
        tokens = _COMPUTED if role == "prefill" else "vllm:generation_tokens_total"
    return Load(
        running=running,
        waiting=waiting,
        leases=leases,
        kv_use=kv_use,
        tokens_per_s=_rate(before, after, tokens, span_s),
        ttft_s=quantile(_between(before, after, ttft), QUANTILE),
        tpot_s=quantile(_between(before, after, tpot), QUANTILE),
    )


def _rate(before: Scrape | None, after: Scrape, name: str, span_s: float) -> float | None:
    if before is None or span_s <= 0 or not (before.has(name) and after.has(name)):
        return None
    grown = after.numbers[name] - before.numbers[name]
    return grown / span_s if grown >= 0 else None  # the process began again


def _between(before: Scrape | None, after: Scrape, name: str) -> Buckets:
    """Requests between the scrapes; those since the pod's start if there were none."""
    now = after.buckets.get(name, {})
    then = {} if before is None else before.buckets.get(name, {})
    grown = {edge: count - then.get(edge, 0.0) for edge, count in now.items()}
    some = grown and all(count >= 0 for count in grown.values()) and max(grown.values()) > 0
    return grown if some else now


def quantile(buckets: Buckets, share: float) -> float | None:
    """The quantile by a straight line within its bucket, as histogram_quantile does; None if empty.

    The last finite edge stands for what is beyond it.
    """
    edges = sorted(buckets)
    if not edges or buckets[edges[-1]] <= 0:
        return None
    wanted, low = share * buckets[edges[-1]], 0.0
    if buckets[edges[0]] >= wanted and buckets[edges[0]] > 0:
        return edges[0] * wanted / buckets[edges[0]]
    for left, right in pairwise(edges):
        low = left
        if buckets[right] >= wanted:
            inside = buckets[right] - buckets[left]
            part = (wanted - buckets[left]) / inside if inside else 0.0
            return left if right == float("inf") else left + (right - left) * part
    return low


def state_of(pod: Object) -> str:
    """Serving, draining, not ready or leaving, as gateways see it."""
    of = pod_of(pod)
    if of.terminating:
        return "leaving"
    if of.draining:
        return "draining"
    return "serving" if of.ready else "not ready"


def top_table(
    rows: Sequence[tuple[Object, Load]], models: Models | None = None, place: Row = ()
) -> str:
    """One line for each pod, gateways last in each fleet.

    `models`: also print the columns of `WIDE`. `place`: how lines begin where the pods are of
    several fleets, ("fleet",) or ("namespace", "fleet").
    """
    lines = list[Row]()
    for pod, of in sorted(rows, key=lambda row: _order(row[0])):
        key = fleet_key(pod)
        cells = (*key[len(key) - len(place) :], *_row(pod, of))
        lines.append(cells if models is None else (*cells, *_wide(pod), models.get(key, "")))
    return table((*place, *HEAD, *(() if models is None else WIDE)), lines)


def fleet_key(pod: Object) -> FleetKey:
    """Namespace and name of the pod's fleet."""
    meta = pod["metadata"]
    return str(meta["namespace"]), str((meta.get("labels") or {}).get(names.FLEET, ""))


def _wide(pod: Object) -> tuple[str, str]:
    """Revision and node; gateways are of no revision, and a pod that waits has no node."""
    of = pod_of(pod)
    return of.revision, of.node


def _order(pod: Object) -> tuple[FleetKey, bool, str, str]:
    role = role_of(pod)
    order = {"prefill": "0"}.get(role, role)
    return fleet_key(pod), role in names.FRONT_ROLES, order, pod["metadata"]["name"]


def _row(pod: Object, of: Load) -> tuple[str, ...]:
    state = state_of(pod)
    if state == "serving" and of == Load():
        state = "serving, does not answer"
    return (
        pod["metadata"]["name"],
        role_of(pod),
        _count(of.running),
        _count(of.waiting),
        "" if of.kv_use is None else f"{of.kv_use:.0%}",
        "" if of.tokens_per_s is None else f"{of.tokens_per_s:.0f}",
        _time(of.ttft_s),
        _time(of.tpot_s),
        state,
    )


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.2f}s"


def as_data(rows: Sequence[tuple[Object, Load]], models: Models) -> list[dict[str, object]]:
    """The same as values, for -o json and yaml; what is not known is left out."""
    found = []
    for pod, of in sorted(rows, key=lambda row: _order(row[0])):
        namespace, fleet = key = fleet_key(pod)
        revision, node = _wide(pod)
        words = {"revision": revision, "node": node, "model": models.get(key)}
        numbers = {
            "running": of.running,
            "waiting": of.waiting,
            "leases": of.leases,
            "kvUse": of.kv_use,
            "tokensPerSecond": of.tokens_per_s,
            "ttftP90Seconds": of.ttft_s,
            "tpotP90Seconds": of.tpot_s,
        }
        known = {name: value for name, value in numbers.items() if value is not None}
        found.append(
            {
                "namespace": namespace,
                "fleet": fleet,
                "pod": pod["metadata"]["name"],
                "role": role_of(pod),
                "state": state_of(pod),
            }
            | {name: word for name, word in words.items() if word}
            | known
        )
    return found
