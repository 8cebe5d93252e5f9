"""Everything the engine tells Prometheus. Written by the engine thread, read by `GET /metrics`.

Names under `vllm:` are vLLM's, so that its dashboards and routers work here; those under `argosy_`
are designs/0001-seams.md §5. Gauges are read from the scheduler at scrape time and so cannot
be stale; every label value exists from the start, so that rate() never meets a gap.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import disable_created_metrics as _disable_created_metrics

from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.core.request import Emission, FinishReason, Sequence, State
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import SchedulerOutput, StepOutput, StepPlan
from argosy_engine.ports.runner import KvLayout

__all__ = ["EngineMetrics"]

_KINDS = ("prefill", "decode", "mixed")
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
# vLLM's, and finer ones below 10 ms, where a small model's tokens come
_PER_TOKEN = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_STEP_TOKENS = (1, 8, *(2**power for power in range(4, 15)))
_BATCH = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
_TRANSFER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_CAUSES = ("connect", "refused", "fingerprint", "timeout", "broken", "corrupt", "suspended")


def _one_two_five(limit: int) -> list[float]:
    series = [step * 10**power for power in range(7) for step in (1, 2, 5)]
    return [float(value) for value in series if value <= limit] or [1.0]


def _edges(base: Iterable[float], slo_ms: float | None) -> list[float]:
    """The SLO's limit is always an edge: its share of good requests is then exact."""
    return sorted({*base, slo_ms / 1000}) if slo_ms else list(base)


class EngineMetrics:
    """One engine's registry. Methods named observe_* are called on the engine thread."""

    def __init__(self, config: EngineConfig, *, max_model_len: int) -> None:
        _disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._model = {"model_name": config.served_name, "engine": "0"}
        self._make_vllm(config, max_model_len)
        self._make_steps()
        self._make_transfer()
        self.engine_start_seconds = self._own_gauge(
            "argosy_engine_start_seconds", "From the process' start to ready"
        )

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)

    # ------------------------------------------------------------- making

    def _vllm_counter(self, name: str, text: str) -> Counter:
        return self._vllm_labelled(name, text).labels(**self._model)

    def _vllm_labelled(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", text, ("model_name", "engine", *labels),
                       registry=self.registry)  # fmt: skip

    def _each(self, metric: Counter, label: str, values: Iterable[str]) -> dict[str, Counter]:
        return {value: metric.labels(**self._model, **{label: value}) for value in values}

    def _vllm_histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(
            f"vllm:{name}",
            text,
            ("model_name", "engine"),
            registry=self.registry,
            buckets=tuple(buckets),
        ).labels(**self._model)

    def _own_counter(
        self, name: str, text: str, label: str, values: Iterable[str]
    ) -> dict[str, Counter]:
        metric = Counter(name, text, (label,), registry=self.registry)
        return {value: metric.labels(value) for value in values}

    def _own_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _make_vllm(self, config: EngineConfig, max_model_len: int) -> None:
        tokens = _one_two_five(max_model_len)
        counter, histogram = self._vllm_counter, self._vllm_histogram
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens processed")
        self._prompt_tokens_cached = counter("prompt_tokens_cached", "Of them, found in the cache")
        self._generation_tokens = counter("generation_tokens", "Tokens generated")
        self._preemptions = counter("num_preemptions", "Requests preempted")
        self._cache_queries = counter("prefix_cache_queries", "Prompt tokens looked up")
        self._cache_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._by_source = self._each(
            self._vllm_labelled("prompt_tokens_by_source", "Where prompts' KV came from", "source"),
            "source", ("local_compute", "local_cache_hit", "external_kv_transfer"),
        )  # fmt: skip
        self._success = self._each(
            self._vllm_labelled("request_success", "Requests finished", "finished_reason"),
            "finished_reason", ("stop", "length", "abort", "error"),
        )  # fmt: skip
        self._ttft = histogram(
            "time_to_first_token_seconds", "Arrival to first token written",
            _edges(_TTFT, config.slo_ttft_ms),
        )  # fmt: skip
        per_token = _edges(_PER_TOKEN, config.slo_tpot_ms)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens", per_token)
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "(last - first) / (n - 1)", per_token
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to end", _LATENCY)
        self._queue_s = histogram("request_queue_time_seconds", "Arrival to admission", _LATENCY)
        self._inference_s = histogram("request_inference_time_seconds", "In batch", _LATENCY)
        self._prefill_s = histogram("request_prefill_time_seconds", "To first token", _LATENCY)
        self._decode_s = histogram("request_decode_time_seconds", "First to last", _LATENCY)
        self._iteration = histogram("iteration_tokens_total", "Tokens a step", _STEP_TOKENS)
        self._request_prompt = histogram("request_prompt_tokens", "Prompt tokens", tokens)
        self._request_output = histogram("request_generation_tokens", "Output tokens", tokens)
        self._request_max = histogram("request_params_max_tokens", "max_tokens asked", tokens)
        self._request_preempted = histogram(
            "request_num_preemptions", "Preemptions of a request", (0, 1, 2, 3, 5, 10, 20)
        )

    def _make_steps(self) -> None:
        own = self._own_counter
        self._step_s = own("argosy_step_seconds", "Execution time of steps", "kind", _KINDS)
        self._steps = own("argosy_steps", "Steps", "kind", _KINDS)
        self._step_prefill_tokens = own(
            "argosy_step_prefill_tokens", "Prompt tokens computed", "kind", _KINDS
        )
        self._step_prefills = own(
            "argosy_step_prefill_requests", "Prompts a step worked on, summed", "kind", _KINDS
        )
        self._step_sequences = own(
            "argosy_step_decode_sequences", "Sequences a step decoded, summed", "kind", _KINDS
        )
        self._step_context = own(
            "argosy_step_context_tokens", "Context of decoded sequences, summed", "kind", _KINDS
        )
        batch = Histogram(
            "argosy_batch_size", "Sequences in a step", ("kind",), buckets=_BATCH,
            registry=self.registry,
        )  # fmt: skip
        self._batch = {kind: batch.labels(kind) for kind in _KINDS}
        self._blocked = own(
            "argosy_admission_blocked_steps", "Steps whose first waiting request stayed out",
            "by", ("batch", "tokens", "kv", "lease", "pull"),
        )  # fmt: skip
        self._preempted = own("argosy_preemptions", "Preemptions", "mode", ("recompute", "swap"))
        self._late_s = Counter(
            "argosy_step_late_seconds", "How late simulated steps ended", registry=self.registry
        )
        self.loop_errors = Counter(
            "argosy_loop_errors", "Turns or steps that raised", registry=self.registry
        )

    def _make_transfer(self) -> None:
        sides = ("send", "receive")
        seconds = Histogram(
            "argosy_kv_transfer_seconds", "A prompt's KV on the wire", ("side",),
            buckets=_TRANSFER, registry=self.registry,
        )  # fmt: skip
        self._transfer_s = {side: seconds.labels(side) for side in sides}
        self._transfer_bytes = self._own_counter(
            "argosy_kv_transfer_bytes", "KV moved", "side", sides
        )
        self._transfer_failures = self._own_counter(
            "argosy_kv_transfer_failures", "Pulls that failed", "cause", _CAUSES
        )
        self._fallbacks = Counter(
            "argosy_local_prefill_fallback", "Prompts computed by decode after a failed pull",
            registry=self.registry,
        )  # fmt: skip

    def bind(
        self,
        scheduler: Scheduler,
        layout: KvLayout,
        facts: dict[str, str],
        *,
        leases: Callable[[], int],
        leases_expired: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        """Read these objects at each scrape; reads of lengths and ints are safe across threads."""

        def vllm(name: str, text: str, read: Callable[[], float], **labels: str) -> None:
            metric = gauges.get(name) or Gauge(
                f"vllm:{name}", text, ("model_name", "engine", *labels), registry=self.registry
            )
            gauges[name] = metric
            metric.labels(**self._model, **labels).set_function(read)

        gauges: dict[str, Gauge] = {}
        pool, waiting, pulling = scheduler.pool, scheduler.waiting, scheduler.pulling
        vllm("num_requests_running", "Sequences in the batch", lambda: len(scheduler.running))
        vllm("num_requests_waiting", "Queued", lambda: len(waiting) + len(pulling))
        by_reason = "num_requests_waiting_by_reason"
        vllm(by_reason, "Queued, by reason", lambda: len(waiting), reason="capacity")
        vllm(by_reason, "Queued, by reason", lambda: len(pulling), reason="deferred")
        vllm("kv_cache_usage_perc", "Used share, 0 to 1", lambda: pool.used / pool.total)
        vllm("cache_config_info", "Constant 1", lambda: 1.0,
             block_size=str(layout.block_size), num_gpu_blocks=str(layout.num_blocks))  # fmt: skip

        def own(name: str, text: str, read: Callable[[], float]) -> None:
            self._own_gauge(name, text).set_function(read)

        info = Gauge("argosy_engine_info", "Constant 1", sorted(facts), registry=self.registry)
        info.labels(**facts).set(1)
        own("argosy_kv_capacity_tokens", "Pool size", lambda: layout.capacity_tokens)
        own("argosy_outstanding_prompt_tokens", "Prompt tokens not yet computed",
            scheduler.outstanding_prompt_tokens)  # fmt: skip
        own("argosy_kv_leases_active", "Prompts held for a peer", leases)
        own("argosy_engine_draining", "1 while no work is taken", lambda: float(draining()))
        self.registry.register(_Reading("argosy_kv_leases_expired", leases_expired))

    # ------------------------------------------------------------- observing, on the engine thread

    def observe_schedule(self, scheduled: SchedulerOutput) -> None:
        if scheduled.blocked_by is not None and scheduled.plan is not None:
            self._blocked[scheduled.blocked_by].inc()
        if scheduled.preempted:
            self._preemptions.inc(len(scheduled.preempted))
            self._preempted["recompute"].inc(len(scheduled.preempted))

    def observe_step(self, plan: StepPlan, out: StepOutput) -> None:
        kind = plan.kind
        self._step_s[kind].inc(out.busy_s)
        self._steps[kind].inc()
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

    def observe_emission(self, emission: Emission) -> None:
        sequence = emission.sequence
        if emission.token_id is not None:
            self._generation_tokens.inc()
            if emission.gap_s is None:
                self._observe_first(sequence)
            else:
                self._itl.observe(emission.gap_s)
        if emission.leased:
            self._observe_end(sequence, "length")
        elif emission.reason is not None:
            self._observe_end(sequence, emission.reason)

    def observe_end(self, sequence: Sequence, reason: FinishReason) -> None:
        """A request that its client ended: by leaving, or by a stop string in its text."""
        self._observe_end(sequence, reason)

    def observe_first_token(self, seconds: float) -> None:
        """From arrival until the first token was written; called on the HTTP thread."""
        self._ttft.observe(seconds)

    def observe_pull(self, event: PullDone) -> None:
        self._transfer_s["receive"].observe(event.seconds)
        self._transfer_bytes["receive"].inc(event.bytes_moved)

    def observe_send(self, *, bytes_moved: int, seconds: float) -> None:
        """Called on the KV thread of a prefill engine, after a prompt's last byte."""
        self._transfer_s["send"].observe(seconds)
        self._transfer_bytes["send"].inc(bytes_moved)

    def observe_pull_failure(self, event: PullFailed) -> None:
        self._transfer_failures[event.cause].inc()
        self._fallbacks.inc()

    def _observe_first(self, sequence: Sequence) -> None:
        if sequence.request.lease_s is not None:  # a peer's: its answer leaves in this very turn
            first = sequence.first_token_s or 0.0
            self.observe_first_token(first - sequence.request.arrival_s)
        length, cached = sequence.n_prompt, sequence.cached_tokens
        self._prompt_tokens.inc(length)
        self._cache_queries.inc(length)
        # a first token that comes while the KV is on its way was drawn by a peer
        computed = "external_kv_transfer" if sequence.state is State.PULLING else "local_compute"
        self._by_source[computed].inc(length - cached)
        if cached:
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
        self._request_prompt.observe(sequence.n_prompt)
        self._request_output.observe(produced)
        self._request_max.observe(sequence.sampling.max_tokens)
        self._request_preempted.observe(sequence.preemptions)


class _Reading:
    """A counter whose value lives elsewhere."""

    def __init__(self, name: str, read: Callable[[], int]) -> None:
        self._name = name
        self._read = read

    def collect(self):  # type: ignore[no-untyped-def]
        from prometheus_client.core import CounterMetricFamily

        yield CounterMetricFamily(self._name, "Ended by time", value=self._read())
