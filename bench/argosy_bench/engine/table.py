"""The figures that stand beside vLLM and beside the floor, and their targets.

`…_ratio_vs_vllm` is our median over vLLM's, in runs that alternate: above 1 is better for rates,
below 1 for times. `…_vllm` is vLLM's own value. `…_over_floor` and `…_share_of_floor` compare with
`Floor`, which the same run measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from argosy_bench.engine.loads import PROMPT, PROMPTS, SEQUENCES, TOKENS
from argosy_bench.engine.servers import INT8, OURS, VLLM
from local.figures import Figure, Figures, Target

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""Measured values of every run, by name and server."""


ROWS = (1, 8, SEQUENCES, 512, 1536)
"""Tokens of the steps whose products are timed."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of the fastest products of a step, and what reads cost."""

    trunk_s: dict[int, float]
    """Products of all layers, by rows."""
    head_s: dict[int, float]
    """Product of the head, by sampled rows; at most SEQUENCES."""
    products: list[dict[str, object]]
    """Time of each product of all layers, by matrix and rows: `torch_ms` and `native_ms`."""
    read_bytes_per_s: float
    kv_bytes: int
    """Of one token."""

    def step_s(self, rows: int, *, sampled: int, context: int) -> float:
        """A step of `rows` tokens that samples `sampled` rows and reads `context` tokens of KV."""
        return self.trunk_s[rows] + self.head_s[sampled] + self._read_s(context)

    def burst_s(self) -> float:
        """Every request of the load `burst`, in full batches and without a step too many."""
        row_s = min(self.trunk_s[rows] / rows for rows in ROWS)
        waves = PROMPTS // SEQUENCES
        prompts_s = PROMPTS * PROMPT * row_s + waves * self.head_s[SEQUENCES]
        context = SEQUENCES * (PROMPT + TOKENS // 2)
        step_s = self.step_s(SEQUENCES, sampled=SEQUENCES, context=context)
        return prompts_s + waves * (TOKENS - 1) * step_s

    def _read_s(self, tokens: int) -> float:
        return tokens * self.kv_bytes / self.read_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Served:
    """A value that both servers have: its row for ours, for vLLM and for the ratio."""

    value: str
    """As `loads.run_one` names it, or as `compare` does."""
    figure: str
    unit: str
    ratio: str
    target: Target | None
    scale: float = 1.0
    digits: int = 1
    load: str = ""
    """The load that the table may lack."""


_SERVED = (
    _Served("throughput", "throughput", "tokens/s", "throughput_ratio", Target(">=", 1.4)),
    _Served("knee", "goodput_knee", "1/s", "goodput_knee_ratio", Target(">=", 1.5), digits=2),
    _Served("tpot_c1", "tpot_c1", "ms", "tpot_c1_ratio", Target("<=", 0.65), 1e3),
    _Served("ttft_c1", "ttft_c1", "ms", "ttft_c1_ratio", None, 1e3),
    _Served(
        "tokens_c8", "output_tokens_c8", "tokens/s", "output_tokens_ratio_c8", Target(">=", 1.5)
    ),
    _Served("ttft_512", "prefill512_ttft", "ms", "prefill512_ttft_ratio", Target("<=", 0.85), 1e3),
    _Served(
        "ttft_1536", "prefill1536_ttft", "ms", "prefill1536_ttft_ratio", Target("<=", 0.8), 1e3
    ),
    _Served("tpot_4k", "tpot_4k", "ms", "tpot_4k_ratio", Target("<=", 0.8), 1e3, load="4k"),
    _Served("tpot_8k", "tpot_8k", "ms", "tpot_8k_ratio", Target("<=", 0.8), 1e3, load="8k"),
    _Served("start", "startup", "s", "startup_ratio", None),
)
_OURS_ALONE = (
    Figure("throughput_share_of_floor", target=Target(">=", 0.75)),
    Figure("tpot_c1_over_floor", target=Target("<=", 1.25)),
    Figure("prefill512_over_floor", target=Target("<=", 1.3)),
    Figure("served_over_bench_step", target=Target("<=", 1.05)),
    Figure("served_over_bench_full_step"),
    Figure("sampled_over_greedy_step", target=Target("<=", 1.1)),
    Figure("int8_throughput", "tokens/s", digits=1),
    Figure("floor_throughput", "tokens/s", digits=1),
    Figure("floor_decode_1_ms", "ms", digits=2),
    Figure("floor_decode_32_ms", "ms", digits=2),
    Figure("floor_prefill_512_ms", "ms", digits=1),
    Figure("read_gb_per_s", "GB/s", digits=1),
)
"""Rows that need no peer."""
_INT8_RATIO = "int8_throughput_ratio_vs_vllm_bf16"
_STEPS = (
    ("served_over_bench_step", "tpot_c1", "bench_one"),
    ("served_over_bench_full_step", "full_step", "bench_full"),
    ("sampled_over_greedy_step", "bench_sampled", "bench_full"),
)
"""Of our own steps: the figure, and the two values that it compares."""


def figures_beside(loads: Sequence[str], *, peer: bool) -> tuple[Figure, ...]:
    """The table for these loads; without a peer, only what ours and the floor give."""
    rows = {row.name: row for row in _OURS_ALONE}
    for served in _SERVED:
        if served.load and served.load not in loads:
            continue
        name, vllm = _names(served)
        rows.setdefault(name, Figure(name, served.unit, digits=served.digits))
        if peer:
            rows[vllm] = Figure(vllm, served.unit, digits=served.digits)
            ratio = f"{served.ratio}_vs_vllm"
            rows[ratio] = Figure(ratio, target=served.target)
    if peer:
        rows[_INT8_RATIO] = Figure(_INT8_RATIO, target=Target(">=", 2.2))
    return tuple(rows.values())


def _names(served: _Served) -> tuple[str, str]:
    suffix = f"_{served.unit}" if served.unit in ("ms", "s") else ""
    return f"{served.figure}{suffix}", f"{served.figure}_vllm{suffix}"


def put_served(figures: Figures, values: Values) -> None:
    """Medians of both servers and their ratios. A value that no run has is left out.

    Where vLLM has no knee and we have one, every ratio is reached: its row leaves the table, and
    the file says why.
    """
    for served in _SERVED:
        of = values.get(served.value, {})
        for server, name in zip((OURS, VLLM), _names(served), strict=True):
            if server in of and name in figures.rows:
                figures.put(name, median(of[server]) * served.scale)
        if VLLM not in of or OURS not in of:
            continue
        ratio, ours, theirs = f"{served.ratio}_vs_vllm", median(of[OURS]), median(of[VLLM])
        if theirs:
            figures.put(ratio, ours / theirs)
        elif ours:
            del figures.rows[ratio]
            figures.notes[ratio] = f"no ratio: {served.figure} of vLLM is 0"
    if INT8 in (throughput := values.get("throughput", {})):
        figures.put("int8_throughput", median(throughput[INT8]))
        if VLLM in throughput:
            figures.put(_INT8_RATIO, median(throughput[INT8]) / median(throughput[VLLM]))
    for figure, above, below in _STEPS:
        if above in values and below in values:
            figures.put(figure, median(values[above][OURS]) / median(values[below][OURS]))


def put_floor(figures: Figures, values: Values, floor: Floor) -> None:
    """The floor, and what the served medians are beside it."""
    context = PROMPT + TOKENS // 2
    one = floor.step_s(1, sampled=1, context=context)
    prefill = floor.step_s(512, sampled=1, context=512)
    throughput = PROMPTS * TOKENS / floor.burst_s()
    full = floor.step_s(SEQUENCES, sampled=SEQUENCES, context=SEQUENCES * context)
    figures.put("floor_throughput", throughput)
    figures.put("floor_decode_1_ms", one * 1e3)
    figures.put("floor_decode_32_ms", full * 1e3)
    figures.put("floor_prefill_512_ms", prefill * 1e3)
    figures.put("read_gb_per_s", floor.read_bytes_per_s / 1e9)
    ours = {name: median(of[OURS]) for name, of in values.items() if OURS in of}
    figures.put("throughput_share_of_floor", ours["throughput"] / throughput)
    figures.put("tpot_c1_over_floor", ours["tpot_c1"] / one)
    figures.put("prefill512_over_floor", ours["ttft_512"] / prefill)
