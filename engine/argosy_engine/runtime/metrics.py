"""Creates the series of `series.py` and fills them; `GET /metrics` renders them.

Counters and histograms are written by the engine thread. Gauges read the scheduler, the pool and
the leases at each scrape, on another thread than the engine's: they cannot be stale, and each
function that reads a list copies it first.
"""

import collections
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, product
from math import inf
from threading import Lock
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from argosy_engine.config import EngineConfig
from argosy_engine.core.capacity import hold_of, peak_blocks
from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.core.handover.pulls import may_pull
from argosy_engine.core.request import Emission, FinishReason, Sequence
from argosy_engine.core.runner import KvLayout
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import BlockedBy, SchedulerOutput, StepOutput, StepPlan
from argosy_engine.core.step_time import StepTime, Terms
from argosy_engine.runtime.machine import StartPhases
from argosy_engine.runtime.series import ENGINE_STATE, SERIES, STATES, Series
from argosy_engine.transfer.callers import Port, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the engine loop knows and the scheduler does not."""

    leases: Callable[[], int]
    leases_expired: Callable[[], int]
    draining: Callable[[], bool]

    clock: Callable[[], float] = time.monotonic
    """That of the requests' arrivals."""


def outstanding_prompt_tokens(scheduler: Scheduler) -> int:
    """Without what the prefix cache is known to hold."""
    here = [*scheduler.waiting, *scheduler.arrived, *scheduler.running]
    return sum(sequence.remaining for sequence in here if not sequence.decoding)


def queue_oldest_s(scheduler: Scheduler, now: float) -> float:
    """Since the arrival of the request that waits longest in the queue; 0 if none waits."""
    return max((now - one.request.arrival_s for one in list(scheduler.waiting)), default=0.0)


def kv_tokens_held(scheduler: Scheduler) -> int:
    """Tokens whose KV is held for requests; those of a shared prefix count for each of them."""
    here = [*scheduler.running, *scheduler.arrived, *scheduler.leased.values()]
    return sum(sequence.num_computed for sequence in here)


def lease_blocks(scheduler: Scheduler) -> int:
    return sum(len(sequence.blocks) for sequence in list(scheduler.leased.values()))


def peak_ratio(scheduler: Scheduler) -> float:
    """The most blocks that the admitted requests can hold at one time, of those in the pool."""
    size, longest = scheduler.pool.block_size, scheduler.max_model_len
    here = [*scheduler.running, *scheduler.pulls.sequences(), *scheduler.arrived]
    holds = [hold_of(one, len(one.blocks), size, longest) for one in here]
    return peak_blocks(holds, size) / scheduler.pool.total


def pulls_to_start(scheduler: Scheduler) -> int:
    """Requests in the queue whose prompt a peer may compute."""
    return sum(may_pull(sequence) for sequence in list(scheduler.waiting))


class StepHistogram:
    """One series, a collector for `CollectorRegistry.register`. Any thread may scrape it."""

    def __init__(self, row: Series, edges: list[float], labels: dict[str, str]) -> None:
        self._row, self._labels = row, labels
        self._edges = [*edges, inf]
        self._counts = [0] * len(self._edges)
        """Values in each bucket, without those of the buckets before it."""
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, values: Collection[float]) -> None:
        """All at once."""
        counted = collections.Counter(values)
        with self._lock:
            for value, count in counted.items():
                self._counts[bisect_left(self._edges, value)] += count
                self._sum += value * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        with self._lock:
            totals, total = list(accumulate(self._counts)), self._sum
        edges = [floatToGoString(edge) for edge in self._edges]  # type: ignore[no-untyped-call]
        family = HistogramMetricFamily(self._row.name, self._row.help, labels=[*self._labels])
        buckets = list(zip(edges, totals, strict=True))
        family.add_metric([*self._labels.values()], buckets=buckets, sum_value=total)
        yield family


_LEASES_EXPIRED = "argosy_kv_leases_expired_total"
"""The only counter that is kept elsewhere: the lease table counts it, and a scrape reads it."""
_GAPS = "vllm:inter_token_latency_seconds"
"""The only series with a value for each token."""


class EngineMetrics:
    """One engine's registry. Methods named observe_* are called on the engine thread."""

    def __init__(self, config: EngineConfig, *, max_model_len: int) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._known = {"model_name": config.served_name, "engine": "0"}
        self._block_bytes = 0  # until `bind`
        self._rows = {row.name: row for row in SERIES}
        self._metrics = {
            row.name: _create(row, _edges(row, config, max_model_len), self.registry)
            for row in SERIES
            if row.name not in {_LEASES_EXPIRED, _GAPS}
        }
        row = self._rows[_GAPS]
        self._itl = StepHistogram(row, _edges(row, config, max_model_len), self._known)
        self.registry.register(self._itl)
        self._bind_requests()
        self._bind_steps()

    def _bind_requests(self) -> None:
        one, by = self._one, self._by_last_label
        self._prompt_tokens = one("vllm:prompt_tokens_total")
        self._prompt_tokens_cached = one("vllm:prompt_tokens_cached_total")
        self._by_source = by("vllm:prompt_tokens_by_source_total")
        self._generation_tokens = one("vllm:generation_tokens_total")
        self._preemptions = one("vllm:num_preemptions_total")
        self._cache_queries = one("vllm:prefix_cache_queries_total")
        self._cache_hits = one("vllm:prefix_cache_hits_total")
        self._external_queries = one("vllm:external_prefix_cache_queries_total")
        self._external_hits = one("vllm:external_prefix_cache_hits_total")
        self._cached_by_source = by("vllm:prompt_tokens_cached_by_source_total")
        by("vllm:engine_sleep_state")["awake"].set(1)
        self._success = by("vllm:request_success_total")
        self._ttft = one("vllm:time_to_first_token_seconds")
        self._tpot = one("vllm:request_time_per_output_token_seconds")
        self._e2e = one("vllm:e2e_request_latency_seconds")
        self._queue_s = one("vllm:request_queue_time_seconds")
        self._inference_s = one("vllm:request_inference_time_seconds")
        self._prefill_s = one("vllm:request_prefill_time_seconds")
        self._decode_s = one("vllm:request_decode_time_seconds")
        self._request_prompt = one("vllm:request_prompt_tokens")
        self._request_output = one("vllm:request_generation_tokens")
        self._request_max = one("vllm:request_params_max_tokens")
        self._request_longest = one("vllm:request_max_num_generation_tokens")
        self._request_computed = one("vllm:request_prefill_kv_computed_tokens")
        self._request_n = one("vllm:request_params_n")
        self._request_preempted = one("vllm:request_num_preemptions")
        self._iteration = one("vllm:iteration_tokens_total")

    def _bind_steps(self) -> None:
        one, by = self._one, self._by_last_label
        self._start_s = one("argosy_engine_start_seconds")
        self._start_phase_s = by("argosy_engine_start_phase_seconds")
        by("argosy_engine_state")
        self._stage_s = by("argosy_request_stage_seconds")
        self.loop_errors: Counter = one("argosy_loop_errors_total")
        self._step_s = by("argosy_step_seconds_total")
        self._steps = by("argosy_steps_total")
        self._sequence_s = by("argosy_step_sequence_seconds_total")
        self._step_prefill_tokens = by("argosy_step_prefill_tokens_total")
        self._step_prefills = by("argosy_step_prefill_requests_total")
        self._step_sequences = by("argosy_step_decode_sequences_total")
        self._step_context = by("argosy_step_context_tokens_total")
        self._batch = by("argosy_batch_size")
        self._blocked = by("argosy_admission_blocked_steps_total")
        self._preempted = by("argosy_preemptions_total")
        self._preempted_tokens = by("argosy_preempted_tokens_total")
        self._swap_bytes = by("argosy_kv_swap_bytes_total")
        self._swap_s = by("argosy_kv_swap_seconds_total")
        self._late_s = one("argosy_step_late_seconds_total")
        self._transfer_s = by("argosy_kv_transfer_seconds")
        self._exposed_s = one("argosy_kv_exposed_seconds")
        self._held_s = one("argosy_first_token_held_seconds")
        self._transfer_bytes = by("argosy_kv_transfer_bytes_total")
        self._transfer_failures = by("argosy_kv_transfer_failures_total")
        self._fallbacks = one("argosy_local_prefill_fallback_total")
        self._handovers_saved = one("argosy_handovers_saved_total")
        refused = "argosy_calls_refused_total"
        self._refused = {
            (port, reason): one(refused, port=port, reason=reason)
            for port, reason in product(*self._rows[refused].labels.values())
        }

    def _one(self, name: str, **labels: str) -> Any:
        """The series with these label values, created at 0; model_name and engine are known."""
        row = self._rows[name]
        values = [labels[label] if label in labels else self._known[label] for label in row.labels]
        return self._metrics[name].labels(*values) if values else self._metrics[name]

    def _by_last_label(self, name: str) -> dict[str, Any]:
        """The series for each value of the row's last label."""
        label, values = list(self._rows[name].labels.items())[-1]
        return {value: self._one(name, **{label: value}) for value in values}

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)

    def bind(
        self,
        scheduler: Scheduler,
        layout: KvLayout,
        facts: dict[str, str],
        readings: Readings,
    ) -> None:
        """Read these objects at each scrape; reads of lengths and ints are safe across threads."""
        self._block_bytes = layout.block_bytes
        pool, waiting, host = scheduler.pool, scheduler.waiting, scheduler.preemption.host
        pulling, arrived = scheduler.pulls, scheduler.arrived

        def read(name: str, value: Callable[[], float], **labels: str) -> None:
            self._one(name, **labels).set_function(value)

        read("vllm:num_requests_running", lambda: len(scheduler.running))
        read("vllm:num_requests_waiting", lambda: len(waiting) + len(pulling) + len(arrived))
        by_reason = "vllm:num_requests_waiting_by_reason"
        read(by_reason, lambda: len(waiting), reason="capacity")
        read(by_reason, lambda: len(pulling) + len(arrived), reason="deferred")
        by_stage = "vllm:num_requests_kv_fetch_by_stage"
        read(by_stage, lambda: pulls_to_start(scheduler), stage="waiting_to_start")
        read(by_stage, lambda: len(pulling), stage="in_progress")
        read(by_stage, lambda: len(arrived), stage="completed_waiting")
        read("vllm:kv_cache_usage_perc", lambda: pool.used / pool.total)
        sizes = {"block_size": str(layout.block_size), "num_gpu_blocks": str(layout.num_blocks)}
        self._one("vllm:cache_config_info", **sizes).set(1)
        self._one("argosy_engine_info", **facts).set(1)
        self._one("argosy_kv_capacity_tokens").set(layout.capacity_tokens)
        read("argosy_outstanding_prompt_tokens", lambda: outstanding_prompt_tokens(scheduler))
        oldest = "argosy_queue_oldest_seconds"
        read(oldest, lambda: queue_oldest_s(scheduler, readings.clock()))
        read("argosy_kv_held_tokens", lambda: kv_tokens_held(scheduler))
        read("argosy_kv_peak_estimate_ratio", lambda: peak_ratio(scheduler))
        read("argosy_kv_lease_blocks", lambda: lease_blocks(scheduler))
        read("argosy_kv_host_usage_ratio", lambda: host.used_share)
        self._bind_step_time(scheduler.step_time)
        read("argosy_kv_leases_active", readings.leases)
        read("argosy_engine_draining", lambda: float(readings.draining()))
        read("argosy_engine_state", lambda: float(not readings.draining()), state="serving")
        read("argosy_engine_state", lambda: float(readings.draining()), state="draining")
        self.registry.register(_Reading(self._rows[_LEASES_EXPIRED], readings.leases_expired))

    def _bind_step_time(self, step_time: StepTime) -> None:
        def read(of: Callable[[Terms], float]) -> Callable[[], float]:
            return lambda: of(step_time.terms) if step_time.terms else 0.0

        terms = self._by_last_label("argosy_step_time_seconds")
        terms["fixed"].set_function(read(lambda known: known.fixed_s))
        terms["token"].set_function(read(lambda known: known.token_s))
        terms["sequence"].set_function(read(lambda known: known.sequence_s))
        saturation = self._one("argosy_saturation_tokens")
        saturation.set_function(read(lambda known: float(known.saturation_tokens)))
        peak = self._one("argosy_prefill_peak_tokens_per_second")
        peak.set_function(lambda: step_time.peak_rate)

    def observe_start(self, phases: StartPhases) -> None:
        """Once, when the engine serves."""
        self._start_s.set(phases.total_s)
        for phase, seconds in phases.seconds.items():
            self._start_phase_s[phase].set(seconds)

    def observe_schedule(self, scheduled: SchedulerOutput) -> None:
        if scheduled.plan is not None:
            self.observe_blocked(scheduled.blocked_by)
        if scheduled.preempted:
            self._preemptions.inc(len(scheduled.preempted))
            for sequence in scheduled.preempted:
                mode = "swap" if sequence.swapped else "recompute"
                self._preempted[mode].inc()
                self._preempted_tokens[mode].inc(len(sequence.tokens) - 1)

    def observe_blocked(self, by: BlockedBy | None) -> None:
        """A step begins; `by` is why the first waiting request is not in it."""
        if by is not None:
            self._blocked[by].inc()

    def observe_swap(self, direction: str, blocks: int, seconds: float) -> None:
        """`direction` is out or in."""
        self._swap_bytes[direction].inc(blocks * self._block_bytes)
        self._swap_s[direction].inc(seconds)

    def observe_step(self, plan: StepPlan, out: StepOutput) -> None:
        kind = plan.kind
        self._step_s[kind].inc(out.busy_s)
        self._steps[kind].inc()
        self._sequence_s[kind].inc(len(plan.chunks) * out.busy_s)
        self._batch[kind].observe(len(plan.chunks))
        self._iteration.observe(plan.tokens)
        if plan.prefill_sequences:
            self._step_prefill_tokens[kind].inc(plan.prefill_tokens)
            self._step_prefills[kind].inc(plan.prefill_sequences)
        if plan.decode_sequences:
            self._step_sequences[kind].inc(plan.decode_sequences)
            self._step_context[kind].inc(plan.decode_context_tokens)
        if out.late_s:
            self._late_s.inc(out.late_s)

    def observe_emissions(self, emissions: Iterable[Emission]) -> None:
        """All tokens and ends of a step."""
        tokens, gaps = 0, []
        for emission in emissions:
            if emission.token_id is not None:
                tokens += 1
                if emission.gap_s is None:
                    self._observe_first(emission.sequence)
                else:
                    gaps.append(emission.gap_s)
            if emission.leased:
                self._observe_end(emission.sequence, "length")
            elif emission.reason is not None:
                self._observe_end(emission.sequence, emission.reason)
        if tokens:
            self._generation_tokens.inc(tokens)
            self._itl.observe(gaps)

    def observe_end(self, sequence: Sequence, reason: FinishReason) -> None:
        """A request that its client ended: by leaving, or by a stop string in its text."""
        self._observe_end(sequence, reason)

    def observe_first_token(self, seconds: float) -> None:
        """From arrival until the first token was written; called on the HTTP thread."""
        self._ttft.observe(seconds)

    def observe_answer(self, *, n: int, longest: int) -> None:
        """Once for each prompt of a client's request, when all its choices have ended. `longest`
        are the output tokens of the longest one. Called on the HTTP thread."""
        self._request_n.observe(n)
        self._request_longest.observe(longest)

    def observe_pull(self, event: PullDone) -> None:
        self._transfer_s["receive"].observe(event.seconds)
        self._stage_s["transfer"].observe(event.seconds)
        self._transfer_bytes["receive"].inc(event.bytes_moved)
        self._exposed_s.observe(event.exposed_s)

    def observe_send(self, *, bytes_moved: int, seconds: float) -> None:
        """Called on the KV thread of a prefill engine, after a prompt's last byte."""
        self._transfer_s["send"].observe(seconds)
        self._transfer_bytes["send"].inc(bytes_moved)

    def observe_pull_failure(self, event: PullFailed, *, computed_here: bool) -> None:
        self._transfer_failures[event.cause].inc()
        if computed_here:
            self._fallbacks.inc()

    def observe_refused_call(self, port: Port, reason: Reason) -> None:
        """Called on the thread of the port that was called."""
        self._refused[port, reason].inc()

    def _observe_first(self, sequence: Sequence) -> None:
        if sequence.request.lease_s is not None:  # a peer's: its answer leaves in this very turn
            first = sequence.first_token_s or 0.0
            self.observe_first_token(first - sequence.request.arrival_s)
        self._handovers_saved.inc(sequence.handover_saved)
        length, cached = sequence.n_prompt, sequence.cached_tokens
        self._prompt_tokens.inc(length)
        self._cache_queries.inc(length)
        computed = "external_kv_transfer" if sequence.drawn_by_peer else "local_compute"
        if sequence.first_token_held_s:
            self._held_s.observe(sequence.first_token_held_s)
        self._by_source[computed].inc(length - cached)
        if sequence.request.candidates and not sequence.handover_saved:
            self._external_queries.inc(length - cached)
        if sequence.drawn_by_peer:
            self._external_hits.inc(length - cached)
            self._cached_by_source["p2p"].inc(length - cached)
        if cached:
            self._cached_by_source["device"].inc(cached)
            self._cache_hits.inc(cached)
            self._prompt_tokens_cached.inc(cached)
            self._by_source["local_cache_hit"].inc(cached)

    def _observe_end(self, sequence: Sequence, reason: FinishReason) -> None:
        self._success[reason].inc()
        first, last, scheduled = sequence.first_token_s, sequence.last_token_s, sequence.scheduled_s
        if first is None or last is None or scheduled is None:
            return
        arrival, produced = sequence.request.arrival_s, sequence.n_output
        self._e2e.observe(last - arrival)
        self._queue_s.observe(scheduled - arrival)
        self._prefill_s.observe(first - scheduled)
        self._decode_s.observe(last - first)
        self._inference_s.observe(last - scheduled)
        if produced > 1:
            self._tpot.observe((last - first) / (produced - 1))
        self._observe_stages(sequence, scheduled, first, last)
        self._request_prompt.observe(sequence.n_prompt)
        self._request_output.observe(produced)
        missing = sequence.n_prompt - sequence.cached_tokens
        self._request_computed.observe(0 if sequence.drawn_by_peer else missing)
        self._request_max.observe(sequence.sampling.max_tokens)
        self._request_preempted.observe(sequence.preemptions)

    def _observe_stages(
        self, sequence: Sequence, scheduled: float, first: float, last: float
    ) -> None:
        queued, begun = scheduled - sequence.request.arrival_s, first
        if sequence.drawn_by_peer:
            if (arrived := sequence.arrived_s) is not None:
                joined = arrived if sequence.joined_s is None else sequence.joined_s
                queued, begun = queued + joined - arrived, max(first, joined)
            self._stage_s["decode_queue"].observe(queued)
        else:
            self._stage_s["prefill_queue"].observe(queued)
            self._stage_s["prefill"].observe(first - scheduled)
        if sequence.request.lease_s is None:
            self._stage_s["decode"].observe(max(0.0, last - begun))


def loading_page() -> bytes:
    """The exposition while the model loads."""
    registry = CollectorRegistry(auto_describe=False)
    state = _create(ENGINE_STATE, [], registry)
    for value in STATES:
        state.labels(value).set(value == "loading")
    return generate_latest(registry)


def _create(row: Series, edges: list[float], registry: CollectorRegistry) -> Any:
    labels = tuple(row.labels)
    match row.type:
        case "counter":
            return Counter(row.name, row.help, labels, registry=registry)
        case "gauge":
            return Gauge(row.name, row.help, labels, registry=registry)
        case "histogram":
            return Histogram(row.name, row.help, labels, buckets=edges, registry=registry)


def _edges(row: Series, config: EngineConfig, max_model_len: int) -> list[float]:
    """A histogram's bucket edges under these options."""
    limit_ms = None
    match row.edges_by:
        case "max_model_len":
            return [edge for edge in row.edges if edge <= max_model_len] or [1.0]
        case "slo_ttft_ms":
            limit_ms = config.slo_ttft_ms
        case "slo_tpot_ms":
            limit_ms = config.slo_tpot_ms
    return sorted({*row.edges, limit_ms / 1000}) if limit_ms else list(row.edges)


class _Reading:
    """A counter whose value is read at each scrape."""

    def __init__(self, row: Series, read: Callable[[], int]) -> None:
        self._row = row
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        name = self._row.name.removesuffix("_total")
        yield CounterMetricFamily(name, self._row.help, value=self._read())
