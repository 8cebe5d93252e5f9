"""Metrics of other engines, said in the names of ours.

`argosy_step_*` of `samples.STEP_COUNTERS` are made of what vLLM and SGLang count, scrape by scrape,
so the rest of the law knows one kind of engine. What they do not count is bounded from above: a
replica looks slower than it is, never quicker, and a fleet gets a pod more and not one too few.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from argosy_law.signals import samples
from argosy_law.signals.samples import Series

SECONDS, STEPS, PREFILL_TOKENS, PREFILLS, SEQUENCES, CONTEXT = samples.STEP_COUNTERS
CACHED = "cached prompt tokens"
PREFILL_SECONDS = "seconds of prefill"
WAITING = "requests that wait"
"""What else is read of other engines; ours has no such metric."""

VLLM_SERIES: Mapping[str, str] = MappingProxyType(
    {
        samples.RUNNING: samples.RUNNING,
        samples.KV_CAPACITY: "vllm:cache_config_info",
        STEPS: "vllm:iteration_tokens_total_count",
        SECONDS: "vllm:inter_token_latency_seconds_sum",
        SEQUENCES: "vllm:inter_token_latency_seconds_count",
        PREFILL_TOKENS: samples.ENGINE_PROMPTS,
        PREFILLS: "vllm:time_to_first_token_seconds_count",
        CACHED: samples.ENGINE_CACHED,
        PREFILL_SECONDS: "vllm:request_prefill_time_seconds_sum",
        WAITING: "vllm:num_requests_waiting",
    }
)
"""vLLM's names by ours, as 0.32 shows them. An interval between two tokens is a step, with the
prompts that were computed beside it."""
SGLANG_SERIES: Mapping[str, str] = MappingProxyType(
    {
        samples.RUNNING: "sglang:num_running_reqs",
        samples.KV_CAPACITY: "sglang:max_total_num_tokens",
        SECONDS: "sglang:inter_token_latency_seconds_sum",
        SEQUENCES: "sglang:inter_token_latency_seconds_count",
        PREFILL_TOKENS: "sglang:prompt_tokens_total",
        PREFILLS: "sglang:time_to_first_token_seconds_count",
        CACHED: "sglang:cached_tokens_total",
        PREFILL_SECONDS: "sglang:time_to_first_token_seconds_sum",
        WAITING: "sglang:num_queue_reqs",
    }
)
"""SGLang's, from its documentation. It counts no steps: they are sequences by running requests."""
ENGINES = (VLLM_SERIES, SGLANG_SERIES)
TRANSFERS: Mapping[str, float] = MappingProxyType(
    {"vllm:nixl_xfer_time_seconds": 1.0, "sglang:kv_transfer_latency_ms": 1e-3}
)
"""Histograms of the time of a KV transfer, and the seconds of their unit. vLLM's decode pods and
SGLang's prefill pods have them."""
LONG_NAMES = tuple(f"{name}_{part}" for name in TRANSFERS for part in ("sum", "count"))
"""What is averaged over the gateways' long span, as our own engine's transfers are."""
NAMES = tuple(
    dict.fromkeys(
        name
        for series in ENGINES
        for name in series.values()
        if name not in (samples.RUNNING, samples.ENGINE_PROMPTS, samples.ENGINE_CACHED)
    )
)
"""What else is fetched besides the series of our own engine."""

_COUNTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "colocated": (SECONDS, SEQUENCES, PREFILL_TOKENS, PREFILLS, PREFILL_SECONDS),
        "prefill": (PREFILL_TOKENS, PREFILLS, PREFILL_SECONDS),
        "decode": (SECONDS, SEQUENCES, PREFILL_TOKENS, PREFILLS),
    }
)
"""What is read of a pod, by its role; without one of them nothing is learnt of it. A prefill pod
draws one token, which is dropped, and has no interval between tokens. A decode pod of vLLM adds the
machine's uptime to the seconds of its prompts when KV does not come (seen with 0.32)."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """What one pod of another engine reports, by our names."""

    labels: Mapping[str, str]
    found: Mapping[str, Mapping[float, float]]
    """Time → value, of all its processes together."""
    processes: int

    @property
    def counters(self) -> tuple[str, ...]:
        """Return what is read of a pod of its role."""
        return _COUNTERS[self.labels["role"]]

    def series(self, name: str, values: Mapping[float, float]) -> Series:
        return Series(name, self.labels, tuple(sorted(values.items())))


def translated(series: Iterable[Series]) -> tuple[Series, ...]:
    """The series, and beside those of other engines the same in the names of ours."""
    listed = tuple(series)
    by_pod: dict[str, list[Series]] = {}
    for one in listed:
        if one.labels.get("role") in samples.ROLES and one.samples:
            by_pod.setdefault(one.labels.get("pod", ""), []).append(one)
    made = [found for one in listed for found in _transfers(one)]
    for pod in by_pod.values():
        if any(one.name in samples.STEP_COUNTERS for one in pod):
            continue  # ours has vLLM's names, too
        for names in ENGINES:
            made += _of_pod(pod, names)
    return (*listed, *made)


def _transfers(one: Series) -> Iterable[Series]:
    """Times of KV transfers as our decode engines report them."""
    name, _, part = one.name.rpartition("_")
    if (unit := TRANSFERS.get(name)) is not None and part in ("sum", "count"):
        scale = unit if part == "sum" else 1.0
        received = {**one.labels, "side": "receive"}
        values = tuple((at, scale * value) for at, value in one.samples)
        yield Series(f"{samples.TRANSFERS}_{part}", received, values)


def _of_pod(pod: list[Series], names: Mapping[str, str]) -> Iterable[Series]:
    usable = [one for one in pod if one.usable]
    found = {ours: _sums(one for one in usable if one.name == name) for ours, name in names.items()}
    role = next((str(one.labels.get("role")) for one in usable), "")
    read = _COUNTERS.get(role, ())
    steps = [one for one in usable if read and one.name == names[read[0]]]
    if not all(found[name] for name in read) or not steps:
        return ()
    place = {k: v for k, v in steps[0].labels.items() if k in ("namespace", "fleet", "role", "pod")}
    one = _Pod(place, found, len(steps))
    made = [
        *_steps(one),
        one.series(samples.OUTSTANDING, _waiting(one)),
        one.series(samples.KV_CAPACITY, _capacity(usable, names[samples.KV_CAPACITY])),
    ]
    if names[samples.RUNNING] != samples.RUNNING:
        made.append(one.series(samples.RUNNING, found[samples.RUNNING]))
    return [each for each in made if each.samples]


def _sums(series: Iterable[Series]) -> dict[float, float]:
    sums: dict[float, float] = {}
    for one in series:
        for at, value in one.samples:
            sums[at] = sums.get(at, 0.0) + value
    return sums


def _steps(pod: _Pod) -> Iterable[Series]:
    """The step counters at every scrape that has all of them, from 0 at the first one."""
    found = pod.found
    times = sorted(set.intersection(*(set(found[name]) for name in pod.counters)))
    total = dict.fromkeys(samples.STEP_COUNTERS, 0.0)
    rows, free_s = [(times[0], dict(total))] if times else [], 0.0
    for before, at in pairwise(times):
        grown = _grown(pod, before, at, free_s)
        free_s += pod.processes * (at - before) - grown[SECONDS]
        for name, more in grown.items():
            total[name] += more
        rows.append((at, dict(total)))
    return [pod.series(name, {at: row[name] for at, row in rows}) for name in total]


def _grown(pod: _Pod, before: float, at: float, free_s: float) -> dict[str, float]:
    """What the step counters of our engine would have grown by between two scrapes.

    A step takes as long as the interval between two tokens. Prompts that were computed while
    nothing was decoded are in no interval, so the time of all prompts is added: those that were
    computed beside a decode count twice. More than the time that has passed it cannot be. Two
    hundred steps of 20 ms and a prompt of 300 ms, in 5 s: 4.3 s.

    A prompt counts when it is done, and may have begun some scrapes before: `free_s` are the
    seconds until `before` that no step had. One of 13 s, and scrapes each second: 13 s of the 14 s
    since the last prompt, and not 1 s.
    """

    def growth(name: str) -> float:
        if name in _COUNTERS["colocated"] and name not in pod.counters:
            return 0.0
        values = pod.found.get(name) or {}
        old, new = values.get(before), values.get(at)
        if old is None or new is None:
            return 0.0
        return new - old if new >= old else new

    sequences, prefills = growth(SEQUENCES), growth(PREFILLS)
    steps = sequences / max(_running(pod, at), 1.0)
    if pod.found.get(STEPS):
        steps = growth(STEPS)
    elif pod.labels["role"] == "prefill":
        steps = prefills
    # What an engine counts is whole: less than one is no count, and dividing by it may overflow.
    decoding_s = steps * growth(SECONDS) / sequences if sequences >= 1 else 0.0
    prompts_s = growth(PREFILL_SECONDS)
    each_s = prompts_s / prefills if prefills >= 1 else 0.0
    passed_s = pod.processes * (at - before) + min(free_s, pod.processes * each_s)
    return {
        SECONDS: min(decoding_s + prompts_s, passed_s),
        STEPS: max(steps, float(prefills > 0)),
        PREFILL_TOKENS: max(growth(PREFILL_TOKENS) - growth(CACHED), 0.0),
        PREFILLS: prefills,
        SEQUENCES: sequences,
        CONTEXT: sequences * _mean_context(pod, at),
    }


def _running(pod: _Pod, at: float) -> float:
    return (pod.found.get(samples.RUNNING) or {}).get(at, 0.0)


def _mean_prompt(pod: _Pod, at: float) -> float:
    prompts = pod.found[PREFILLS].get(at, 0.0)
    return pod.found[PREFILL_TOKENS].get(at, 0.0) / prompts if prompts >= 1 else 0.0


def _mean_context(pod: _Pod, at: float) -> float:
    """Tokens that a sequence has on average while it is decoded: its prompt and half its answer."""
    prompts = pod.found[PREFILLS].get(at, 0.0)
    answer = (pod.found.get(SEQUENCES) or {}).get(at, 0.0) / prompts if prompts >= 1 else 0.0
    return _mean_prompt(pod, at) + answer / 2


def _waiting(pod: _Pod) -> dict[float, float]:
    """Prompt tokens of the requests that wait, each of the mean length. Those that wait at a decode
    pod wait for KV."""
    waiting = pod.found.get(WAITING) or {}
    if pod.labels["role"] == "decode":
        return dict.fromkeys(waiting, 0.0)
    return {at: number * _mean_prompt(pod, at) for at, number in waiting.items()}


def _capacity(pod: Iterable[Series], name: str) -> dict[float, float]:
    """KV tokens of the replica, as a gauge says, or as the labels of vLLM's info metric do."""
    found: dict[float, float] = {}
    for one in pod:
        if one.name == name:
            tokens = _of_labels(one.labels)
            for at, value in one.samples:
                found[at] = found.get(at, 0.0) + (value if tokens is None else tokens)
    return {at: tokens for at, tokens in found.items() if tokens > 0}


def _of_labels(labels: Mapping[str, str]) -> float | None:
    """Tokens of the pool by vLLM's labels; 0 if it does not say; None if the labels are no info."""
    if "block_size" not in labels:
        return None
    blocks, size = labels.get("num_gpu_blocks", ""), labels["block_size"]
    if not (blocks.isdecimal() and size.isdecimal()):
        return 0.0
    return float(blocks[:12]) * float(size[:12])
