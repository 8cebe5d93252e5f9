"""Every series that the engine exposes, as rows: name, type, help, labels, bucket edges.

`metrics.py` creates the series from these rows and fills them. `docs/reference/metrics.md` is
generated from the rows, and a contract test compares them with a running engine. Names under
`vllm:` are vLLM's, so that its dashboards and routers work here; those under `argosy_` are ours
(designs/0001-seams.md, section 5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from argosy_engine.core.handover.messages import PullCause
from argosy_engine.core.request import FinishReason
from argosy_engine.core.step import BlockedBy, StepKind
from argosy_engine.runtime.machine import Phase
from argosy_engine.transfer.callers import Port, Reason


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
    appears with its first event has no result before the second. () is one value, known when the
    engine starts."""

    edges: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without +Inf."""

    edges_by: Literal["slo_ttft_ms", "slo_tpot_ms", "max_model_len"] | None = None
    """The option that changes `edges`. An SLO's limit becomes one more edge, so that the share of
    requests that meet it is exact. `max_model_len` drops the edges above it."""


def _counter(name: str, text: str, **labels: tuple[str, ...]) -> Series:
    return Series(name=name, type="counter", help=text, labels=labels)


def _gauge(name: str, text: str, **labels: tuple[str, ...]) -> Series:
    return Series(name=name, type="gauge", help=text, labels=labels)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split())


def _latency(name: str, text: str) -> Series:
    return Series(name=name, type="histogram", help=text, labels=_VLLM, edges=_LATENCY_S)


def _lengths(name: str, text: str) -> Series:
    return Series(
        name=name,
        type="histogram",
        help=text,
        labels=_VLLM,
        edges=_TOKENS,
        edges_by="max_model_len",
    )


STAGES = ("prefill_queue", "prefill", "transfer", "decode_queue", "decode")
STATES = ("loading", "serving", "draining")
ENGINE_STATE = _gauge(
    "argosy_engine_state",
    "1 for what the engine does; while it loads this is the only series",
    state=STATES,
)
_VLLM: dict[str, tuple[str, ...]] = {"model_name": (), "engine": ("0",)}
_KINDS: tuple[str, ...] = get_args(StepKind)
_SIDES = ("send", "receive")
_MODES = ("recompute", "swap")
_SWAPS = ("out", "in")
_CAUSES = tuple(cause for cause in get_args(PullCause) if cause != "cancelled")

_TTFT_S = _numbers(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
# vLLM's edges, and finer ones below 10 ms for small models
_TPOT_S = _numbers(
    "0.001 0.002 0.003 0.004 0.005 0.0075 0.01 0.0125 0.015 0.02 0.025 0.03 0.04 0.05 0.075 0.1"
    " 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
)
_LATENCY_S = _numbers("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
_TRANSFER_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS = tuple(float(step * 10**power) for power in range(7) for step in (1, 2, 5))
_STEP_TOKENS = (1, 8, *(2**power for power in range(4, 15)))
_BATCH = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)

_REQUESTS = (
    _counter("vllm:prompt_tokens_total", "Prompt tokens of requests with a first token", **_VLLM),
    _counter("vllm:prompt_tokens_cached_total", "Of them, found in the prefix cache", **_VLLM),
    _counter(
        "vllm:prompt_tokens_by_source_total",
        "Of them, by where their KV came from",
        **_VLLM,
        source=("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    _counter(
        "vllm:prompt_tokens_cached_by_source_total",
        "Prompt tokens whose KV was not computed here: found in the prefix cache (device), or"
        " pulled from a prefill engine (p2p)",
        **_VLLM,
        source=("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    _counter("vllm:generation_tokens_total", "Output tokens", **_VLLM),
    _counter("vllm:num_preemptions_total", "Preemptions", **_VLLM),
    _counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache", **_VLLM),
    _counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache", **_VLLM),
    _counter(
        "vllm:external_prefix_cache_queries_total",
        "Prompt tokens that a prefill engine was to hand over",
        **_VLLM,
    ),
    _counter("vllm:external_prefix_cache_hits_total", "Of them, those that it did", **_VLLM),
    _counter(
        "vllm:request_success_total",
        "Requests that ended, by how",
        **_VLLM,
        finished_reason=get_args(FinishReason),
    ),
    Series(
        name="vllm:time_to_first_token_seconds",
        type="histogram",
        help="From arrival until the first token was written to the client",
        labels=_VLLM,
        edges=_TTFT_S,
        edges_by="slo_ttft_ms",
    ),
    Series(
        name="vllm:inter_token_latency_seconds",
        type="histogram",
        help="Between two output tokens of a request",
        labels=_VLLM,
        edges=_TPOT_S,
        edges_by="slo_tpot_ms",
    ),
    Series(
        name="vllm:request_time_per_output_token_seconds",
        type="histogram",
        help="(last token - first token) / (output tokens - 1) of a request",
        labels=_VLLM,
        edges=_TPOT_S,
        edges_by="slo_tpot_ms",
    ),
    _latency("vllm:e2e_request_latency_seconds", "From arrival to the last token"),
    _latency("vllm:request_queue_time_seconds", "From arrival to the first admission"),
    _latency("vllm:request_inference_time_seconds", "From the first admission to the last token"),
    _latency("vllm:request_prefill_time_seconds", "From the first admission to the first token"),
    _latency("vllm:request_decode_time_seconds", "From the first token to the last"),
    _lengths("vllm:request_prompt_tokens", "Prompt tokens of a request"),
    _lengths("vllm:request_generation_tokens", "Output tokens of a request"),
    _lengths("vllm:request_params_max_tokens", "max_tokens of a request"),
    _lengths(
        "vllm:request_max_num_generation_tokens",
        "Output tokens of the longest choice of a client's request",
    ),
    _lengths("vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed for a request"),
    Series(
        name="vllm:request_params_n",
        type="histogram",
        help="n of a client's request",
        labels=_VLLM,
        edges=(1, 2, 5, 10, 20),
    ),
    Series(
        name="vllm:request_num_preemptions",
        type="histogram",
        help="Preemptions of a request",
        labels=_VLLM,
        edges=(0, 1, 2, 3, 4, 5, 10, 20),
    ),
    Series(
        name="vllm:iteration_tokens_total",
        type="histogram",
        help="Tokens that one step computed",
        labels=_VLLM,
        edges=_STEP_TOKENS,
    ),
    Series(
        name="argosy_request_stage_seconds",
        type="histogram",
        help="Time of a request in each stage that this engine has of it: prefill_queue and prefill"
        " where the prompt is computed, transfer, decode_queue (for KV blocks and a place in the"
        " batch) and decode where the output is",
        labels={"stage": STAGES},
        edges=_TTFT_S,
    ),
)

_NOW = (
    _gauge("vllm:num_requests_running", "Sequences in the batch", **_VLLM),
    _gauge("vllm:num_requests_waiting", "Requests that are queued or pull their KV", **_VLLM),
    _gauge(
        "vllm:num_requests_waiting_by_reason",
        "Of them, queued (capacity) or pulling (deferred)",
        **_VLLM,
        reason=("capacity", "deferred"),
    ),
    _gauge(
        "vllm:num_requests_kv_fetch_by_stage",
        "Requests whose prompt a prefill engine computes, by how far that is",
        **_VLLM,
        stage=("waiting_to_start", "in_progress", "completed_waiting"),
    ),
    _gauge(
        "vllm:engine_sleep_state",
        "1 for awake: this engine never sleeps",
        **_VLLM,
        sleep_state=("awake", "weights_offloaded", "discard_all"),
    ),
    _gauge("vllm:kv_cache_usage_perc", "Used share of the KV pool, 0 to 1", **_VLLM),
    _gauge("vllm:cache_config_info", "Constant 1", **_VLLM, block_size=(), num_gpu_blocks=()),
    _gauge("argosy_engine_info", "Constant 1", cpu_isa=(), dtype=()),
    _gauge("argosy_engine_start_seconds", "From the start of the process to ready"),
    _gauge(
        "argosy_engine_start_phase_seconds",
        "Of the start: process (interpreter, imports), model, warm_up (first step), ports",
        phase=get_args(Phase),
    ),
    ENGINE_STATE,
    _gauge("argosy_engine_draining", "1 while the engine takes no work"),
    _gauge("argosy_kv_capacity_tokens", "Size of the KV pool"),
    _gauge("argosy_outstanding_prompt_tokens", "Prompt tokens queued or in prefill, not computed"),
    _gauge("argosy_queue_oldest_seconds", "How long the request has waited that waits longest"),
    _gauge(
        "argosy_kv_held_tokens",
        "Tokens whose KV is held for requests and leases; a shared prefix counts for each",
    ),
    _gauge(
        "argosy_kv_peak_estimate_ratio",
        "KV blocks that the admitted requests can come to hold at one time, of those in the pool;"
        " above 1 some may be preempted",
    ),
    _gauge("argosy_kv_leases_active", "Prompts whose KV is held for a peer"),
    _gauge("argosy_kv_lease_blocks", "KV blocks of computed prompts that are held for a peer"),
)

_STEPS = (
    _counter("argosy_step_seconds_total", "Execution time of steps", kind=_KINDS),
    _counter("argosy_steps_total", "Steps", kind=_KINDS),
    _counter("argosy_step_prefill_tokens_total", "Prompt tokens computed", kind=_KINDS),
    _counter("argosy_step_prefill_requests_total", "Sum of prompts in a step", kind=_KINDS),
    _counter("argosy_step_decode_sequences_total", "Sum of decodes in a step", kind=_KINDS),
    _counter("argosy_step_context_tokens_total", "Sum of the decodes' context", kind=_KINDS),
    _counter(
        "argosy_step_sequence_seconds_total",
        "Sum of each step's sequences times its execution time",
        kind=_KINDS,
    ),
    _gauge(
        "argosy_step_time_seconds",
        "What a step takes, fitted to the newest: in any case, for each prompt token, for each"
        " decode; 0 while not known",
        term=("fixed", "token", "sequence"),
    ),
    _gauge(
        "argosy_saturation_tokens",
        "Prompt tokens of a step from which on a longer one computes hardly more of them a second;"
        " 0 while not known",
    ),
    _gauge(
        "argosy_prefill_peak_tokens_per_second",
        "Prompt tokens per second of the fastest of the 64 newest steps with prompts; 0 while"
        " there was none",
    ),
    Series(
        name="argosy_batch_size",
        type="histogram",
        help="Sequences in a step",
        labels={"kind": _KINDS},
        edges=_BATCH,
    ),
    _counter(
        "argosy_admission_blocked_steps_total",
        "Steps in which the first waiting request was not admitted, by what it waits for",
        by=get_args(BlockedBy),
    ),
    _counter("argosy_preemptions_total", "Preemptions", mode=_MODES),
    _counter("argosy_preempted_tokens_total", "Tokens whose KV was given up", mode=_MODES),
    _counter("argosy_kv_swap_bytes_total", "KV of preempted requests moved", direction=_SWAPS),
    _counter("argosy_kv_swap_seconds_total", "Time of these moves", direction=_SWAPS),
    _gauge("argosy_kv_host_usage_ratio", "Used share of the host's memory for KV, 0 to 1"),
    _counter("argosy_step_late_seconds_total", "Time by which simulated steps ended late"),
    _counter("argosy_loop_errors_total", "Exceptions that the engine loop caught"),
)

_HANDOVER = (
    Series(
        name="argosy_kv_transfer_seconds",
        type="histogram",
        help="Time to move one prompt's KV; of send, over one of its connections",
        labels={"side": _SIDES},
        edges=_TRANSFER_S,
    ),
    Series(
        name="argosy_kv_exposed_seconds",
        type="histogram",
        help="Time from a pulled prompt's first token to the last byte of its KV",
        edges=_TRANSFER_S,
    ),
    Series(
        name="argosy_first_token_held_seconds",
        type="histogram",
        help="Of first tokens that waited for their sequence to join a batch, how long",
        edges=_TTFT_S,
    ),
    _counter("argosy_kv_transfer_bytes_total", "KV moved", side=_SIDES),
    _counter("argosy_kv_transfer_failures_total", "Pulls that failed", cause=_CAUSES),
    _counter("argosy_local_prefill_fallback_total", "Prompts computed here after a failed pull"),
    _counter(
        "argosy_handovers_saved_total",
        "Prompts computed here because that costs less than a handover",
    ),
    _counter("argosy_kv_leases_expired_total", "Leases that ended by time"),
)

_CALLERS = (
    _counter(
        "argosy_calls_refused_total",
        "Calls without a valid token of a caller that may call the port",
        port=get_args(Port),
        reason=get_args(Reason),
    ),
)

ABSENT: Mapping[str, str] = {
    "vllm:admission_rejections": "the gateway has `argosy_requests_received_total` with `shed`; an"
    " engine whose queue is full answers 429",
    "vllm:corrupted_requests": "off in vLLM; a request with NaN in its logits fails, and counts as"
    " `error` in `vllm:request_success_total`",
    "vllm:kv_block_lifetime_seconds": "off in vLLM; blocks have no times here",
    "vllm:kv_block_idle_before_evict_seconds": "off in vLLM; blocks have no times here",
    "vllm:kv_block_reuse_gap_seconds": "off in vLLM; blocks have no times here",
    "vllm:prompt_tokens_recomputed": "the last block of a cached prompt is computed like any other:"
    " `local_compute` in `vllm:prompt_tokens_by_source_total`",
    "vllm:mm_cache_queries": "no images and no audio",
    "vllm:mm_cache_hits": "no images and no audio",
    "vllm:lora_requests_info": "no adapters",
    "vllm:spec_decode_num_drafts": "no speculation",
    "vllm:spec_decode_num_draft_tokens": "no speculation",
    "vllm:spec_decode_num_accepted_tokens": "no speculation",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "no speculation",
    "vllm:nixl_xfer_time_seconds": "`argosy_kv_transfer_seconds`, over NIXL and TCP",
    "vllm:nixl_post_time_seconds": "part of `argosy_kv_transfer_seconds`",
    "vllm:nixl_bytes_transferred": "`argosy_kv_transfer_bytes_total`",
    "vllm:nixl_num_descriptors": "a detail of NIXL",
    "vllm:nixl_num_failed_transfers": "`argosy_kv_transfer_failures_total`",
    "vllm:nixl_num_failed_notifications": "`argosy_kv_transfer_failures_total`",
    "vllm:nixl_num_kv_expired_reqs": "`argosy_kv_leases_expired_total`",
    "vllm:nixl_num_notifications_after_expiry": "a decode engine that comes too late computes the"
    " prompt: `argosy_local_prefill_fallback_total`",
}
"""vLLM's names that this engine does not serve, as vLLM's code has them, without a counter's
`_total`: why, or what to read instead."""

SERIES: tuple[Series, ...] = (*_REQUESTS, *_NOW, *_STEPS, *_HANDOVER, *_CALLERS)
