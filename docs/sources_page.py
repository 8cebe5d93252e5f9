"""The page of what four texts claim, with the figures of the last committed run beside each claim.

    python -m docs.sources_page build/bench/goodput.json …

takes the figures that the rows name from figures files of `make bench-…` into
`docs/figures/sources.json`, and `python -m docs.generate --write` writes the page. A verdict is
computed from figures and the bounds of its row. Nobody types it.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import Any

from argosy_bench.goodput.distserve import PAPER, WITHIN
from argosy_measure.reproduce.items import ITEMS
from argosy_measure.workloads import WORKLOADS

__all__ = ["Claim", "Figure", "Held", "Measured", "Row", "Verdict", "page", "read_runs", "take"]

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs" / "figures" / "sources.json"
GOODPUT, GATEWAY, ENGINE = "make bench-goodput", "make bench-gateway", "make bench-engine"
REPRODUCE = "argosy reproduce"


class Verdict(IntEnum):
    """What a run says about a claim. A row has the highest verdict of its claims."""

    REPRODUCED = 0
    SAME_SHAPE = 1
    NOT_MEASURED = 2
    OUTSIDE = 3
    REFUTED = 4

    def __str__(self) -> str:
        names = ("reproduced", "same shape", "not measured yet", "out of reach", "refuted")
        return names[self]


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of a run: the median of its seeds, and the lowest and the highest of them."""

    value: float
    least: float
    most: float

    def __str__(self) -> str:
        text = f"{self.value:.4g}"
        return text if self.least == self.most else f"{text} ({self.least:.4g} to {self.most:.4g})"


Runs = Mapping[str, Mapping[str, Measured]]
"""Command → its figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a command."""

    figure: str
    command: str = GOODPUT
    over: str = ""
    """The figure that it is divided by."""

    def measured(self, runs: Runs) -> Measured | None:
        """Return the figure of the run; None if it has none."""
        figures = runs.get(self.command, {})
        found = figures.get(self.figure)
        if found is None or not self.over:
            return found
        by = figures.get(self.over)
        return by and Measured(found.value / by.value, found.least / by.most, found.most / by.least)

    def shown(self, runs: Runs) -> str:
        """Write the figure of the run."""
        found = self.measured(runs)
        name = f"`{self.figure}`" + (f" over `{self.over}`" if self.over else "")
        return f"{name} {'is not measured' if found is None else found}"


@dataclass(frozen=True, slots=True)
class Claim(Figure):
    """What a text says of a figure.

    It is reproduced if the whole range is within `within` of the text's figure. It has the same
    shape if the range is above `above` and below `below`. Otherwise it is refuted.
    """

    text: tuple[float, float] | None = None
    """The text's figure twice, or the ends of its range. None if the text has none."""
    within: float = 0.05
    above: float = -inf
    below: float = inf

    def __post_init__(self) -> None:
        if self.text is None and (self.above, self.below) == (-inf, inf):
            raise ValueError(f"{self.figure}: give a text, above or below: it cannot be refuted")

    def verdict(self, runs: Runs) -> Verdict:
        """Compare the figure of the run with the text's."""
        found = self.measured(runs)
        if found is None:
            return Verdict.NOT_MEASURED
        if self.text is not None:
            low, high = self.text[0] * (1 - self.within), self.text[1] * (1 + self.within)
            if low <= found.least and found.most <= high:
                return Verdict.REPRODUCED
            if (self.above, self.below) == (-inf, inf):
                return Verdict.REFUTED
        return (
            Verdict.SAME_SHAPE
            if self.above < found.least and found.most < self.below
            else Verdict.REFUTED
        )

    def expected(self) -> str:
        """Write what the text says, and from where on the figure has its shape."""
        parts = []
        if self.text is not None:
            low, high = self.text
            figure = f"{low:.4g}" if low == high else f"{low:.3g} to {high:.3g}"
            parts.append(f"{figure} ± {self.within:.0%}")
        parts += [f"> {self.above:g}"] if self.above > -inf else []
        parts += [f"< {self.below:g}"] if self.below < inf else []
        return "; shape: ".join(parts) if self.text is not None else " and ".join(parts)

    def how(self) -> str:
        """Write the command."""
        return f"`{self.command}`"


@dataclass(frozen=True, slots=True)
class Held:
    """A claim without a figure, which the tests of a file hold whose names have a word in them."""

    file: str
    """Below `tests/`."""
    words: tuple[str, ...]

    def tests(self) -> list[str]:
        """Return the names of the tests. ValueError if a word is in none of them."""
        text = (ROOT / "tests" / self.file).read_text()
        names = re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)
        for word in self.words:
            if not any(word in name for name in names):
                raise ValueError(f"tests/{self.file} has no test with {word!r} in its name")
        return [name for name in names if any(word in name for word in self.words)]

    def verdict(self, runs: Runs) -> Verdict:  # noqa: ARG002 (as a Claim's)
        """Return that it is reproduced: `make test` fails otherwise."""
        self.tests()
        return Verdict.REPRODUCED

    def expected(self) -> str:
        """Write that there is no figure."""
        return ""

    def shown(self, runs: Runs) -> str:  # noqa: ARG002 (as a Claim's)
        """Write how many tests hold it."""
        count = len(self.tests())
        return f"holds in {count} test{'s' if count > 1 else ''}"

    def how(self) -> str:
        """Write the command."""
        return f'`pytest tests/{self.file} -k "{" or ".join(self.words)}"`'


@dataclass(frozen=True, slots=True)
class Row:
    """One item of a text."""

    id: str
    says: str
    claims: tuple[Claim | Held, ...] = ()
    """None: no command shows it yet."""
    note: str = ""
    """What the figures are, and what is left out."""
    beside: tuple[str, ...] = ()
    """Figures of the first claim's command that a reader should know, without a bound."""
    refuted_because: str = ""
    outside_because: str = ""
    """Why no run of this project can say anything about it; only for rows without claims."""

    def verdict(self, runs: Runs) -> Verdict:
        """Return the highest verdict of the claims. ValueError if it lacks a reason or has one for
        nothing."""
        if not self.claims:
            return Verdict.OUTSIDE if self.outside_because else Verdict.NOT_MEASURED
        verdict = max(claim.verdict(runs) for claim in self.claims)
        if (verdict is Verdict.REFUTED) != bool(self.refuted_because):
            raise ValueError(
                f"{self.id} is {verdict}: give refuted_because to refuted rows and to no others"
            )
        return verdict

    def figures(self) -> list[Figure]:
        """Return all figures that it names."""
        return [*(claim for claim in self.claims if isinstance(claim, Figure)), *self._beside()]

    def _beside(self) -> list[Figure]:
        command = next((one.command for one in self.claims if isinstance(one, Figure)), "")
        return [Figure(name, command) for name in self.beside]

    def line(self, runs: Runs) -> str:
        """Return the row of the table."""
        commands = "; ".join(dict.fromkeys(claim.how() for claim in self.claims))
        commands = commands.replace(f"`{REPRODUCE}`", f"`{REPRODUCE} {self.id}`")
        cells = [
            self.id,
            self.says,
            "<br>".join(filter(None, (claim.expected() for claim in self.claims))),
            "<br>".join(one.shown(runs) for one in (*self.claims, *self._beside())),
            f"*{self.verdict(runs)}*",
            ". ".join(
                filter(None, (self.refuted_because, self.outside_because, commands, self.note))
            ),
        ]
        return "| " + " | ".join(cells) + " |"


def _of_workloads(name: str, **bounds: Any) -> tuple[Claim, ...]:
    return tuple(Claim(f"{workload}_{name}", **bounds) for workload in WORKLOADS)


def _play(id_: str, *claims: Claim, note: str, beside: tuple[str, ...] = (), why: str = "") -> Row:
    """A row of `argosy reproduce`."""
    return Row(id_, ITEMS[id_].says, claims, note, beside, refuted_because=why)


_THROUGHPUT = Claim("throughput_apart_over_chunked", below=1)
"""All requests at once: chunked prefill together is better."""
_TIGHT = Claim("tight_apart_over_chunked", above=1)
"""With tight limits apart is better."""
_FIXED_GAINS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("1k", {"above": 1.1}), ("2k", {"above": 1.1}), ("4k", {"below": 1.1}), ("8k", {"below": 1.1}),
)  # fmt: skip
_LIMITS = (
    "The pool of KV ends the batch before 512 sequences, so a larger limit binds nothing, and "
    "takes only a little memory. TensorRT-LLM builds another engine for each limit"
)
_RATIOS = {"chatbot": (2.0, 3.41), "code": (3.2, 3.2), "summarization": (4.48, 4.48)}
_SCHEDULERS = "engine/core/test_peer_schedulers.py"

TEXTS: Mapping[str, tuple[Row, ...]] = {
    "DistServe (OSDI 2024): goodput, and prefill and decode apart": (
        Row(
            "A1",
            "applications differ: a chatbot needs its first token soon, code completion its end",
            (Held("gateway/server/test_classes.py", ("judged_by_the_limits_of_its_class",)),),
            "`spec.slo.classes` has limits for each ([api](../reference/api.md))",
        ),
        Row(
            "A2",
            "completed requests per second are not what counts: many may miss their SLO",
            (Claim("chatbot_gpus_for_slo_over_throughput", above=1),),
            beside=("chatbot_throughput_together", "chatbot_goodput_together"),
        ),
        Row(
            "A3",
            "an SLO may be on TTFT, on TPOT, on the whole answer, or on a moving average",
            outside_because="No limit on the whole answer or on a moving average is built. The "
            "gateway judges TTFT and TPOT; engines export the time of the whole answer "
            "(`vllm:e2e_request_latency_seconds`, [metrics](../reference/metrics.md))",
        ),
        Row(
            "A4",
            "TTFT is the time to the first token, TPOT the mean time between tokens after it",
            (
                Held("gateway/relay/test_verdicts.py", ("tpot", "ttft")),
                Held("gateway/relay/test_choices.py", ("pace",)),
            ),
        ),
        Row(
            "A5",
            "goodput is the highest rate at which 90 %, or another share, meet both limits",
            (Held("bench/test_goodput.py", ("the_highest_rate",)),),
            "`argosy simulate --goal` takes another share",
        ),
        Row(
            "A6",
            "of 10 requests a second, 3 are within both limits: the goodput is 3",
            (Held("gateway/relay/test_verdicts.py", ("of_ten_requests",)),),
        ),
        Row(
            "A7",
            "prefill computes the prompt and the first token, then a step gives one token",
            (Held(_SCHEDULERS, ("t2_", "t7_")),),
        ),
        Row(
            "A8",
            "requests enter and leave the batch between two steps",
            (Held(_SCHEDULERS, ("t2_", "t4_")),),
        ),
        Row(
            "A9",
            "prefill is bound by compute: one prompt fills the processor. Decode is bound by "
            "memory: a large batch costs little more",
            (
                Claim(
                    "prefill_512_tokens_per_s", ENGINE, over="prefill_128_tokens_per_s", below=1.5
                ),
                Claim("decode_32_tokens_per_s", ENGINE, over="decode_1_tokens_per_s", above=4),
            ),
            "On a CPU",
        ),
        Row(
            "A10",
            "a prompt that joins a batch delays every stream in it",
            (Claim("tpot_p90_isolation_ratio", GATEWAY, below=1),),
            "TPOT of streams beside bursts of prompts, apart over together",
        ),
        Row(
            "A11",
            "together, both limits are met only with more GPUs than the throughput needs",
            _of_workloads("gpus_for_slo_over_throughput", above=1),
        ),
        Row(
            "A12",
            "together, both phases share one number of GPUs and one parallelism, though a strict "
            "TTFT asks for more prefill",
            (Claim("code_best_prefill_per_decode", above=1),),
            "`spec.roles` gives each role its replicas and resources; different tensor "
            "parallelism is not measured",
            beside=("chatbot_best_prefill_per_decode", "summarization_best_prefill_per_decode"),
        ),
        Row(
            "A13",
            "prefill and decode run on different GPUs, and KV moves after prefill",
            (Held("engine_torch/test_handover.py", ("t42_",)),),
            "On a whole fleet: `make demo` ([figures](../figures/demo.md))",
        ),
        Row(
            "A14",
            "prompts of 512 and answers of 64 tokens, 13B on an A100: together 1.6 requests per "
            "second and GPU, two prefill and one decode GPU 3.3, twice as much",
            tuple(Claim(name, text=(PAPER[name],) * 2, within=WITHIN[name]) for name in PAPER),
            "Simulated; two factors are fitted to prefill alone and decode alone",
        ),
        Row(
            "A15",
            "moving the KV of 2,048 tokens takes 17.6 ms, less than a decode step of 30 to 50 ms",
            (Claim("kv_exposed_over_decode_step", GATEWAY, text=(17.6 / 50, 17.6 / 30), below=1),),
            "What a client sees of the transfer, over a decode step, on a CPU and over loopback; "
            "it needs a machine without other work ([figures]"
            "(../figures/gateway.md#the-handover-of-kv))",
        ),
        Row(
            "A16",
            "placement uses the fastest link between prefill and decode",
            outside_because="It takes two GPUs with NVLink or an RDMA adapter, and nothing was run "
            "over either. `make bench-gateway` compares the other transports "
            "([figures](../figures/gateway.md#the-handover-of-kv)), and `auto` takes the fastest "
            "one ([0008](../../designs/0008-kv-protocol-2.md))",
        ),
        Row(
            "A17",
            "against vLLM: 2.0 to 3.41 times the rate for a chatbot, 3.2 for code completion, 4.48 "
            "for summarization",
            tuple(
                Claim(f"{name}_apart_over_together", text=_RATIOS[name], above=1)
                for name in WORKLOADS
            ),
            "All three with OPT-13B on one GPU each; the text has OPT-66B and other parallelism "
            "per phase for the last two. Its tighter SLOs (1.5 and 10.2 times) are not measured",
        ),
        Row(
            "A18",
            "three workloads, each with its own SLO and lengths",
            tuple(
                Claim(f"{name}_{what}_mean", text=(getattr(of, what),) * 2)
                for name, of in WORKLOADS.items()
                for what in ("prompt", "output")
            ),
            "Mean tokens; lengths are drawn around the text's means and end at the context",
        ),
        Row(
            "A19",
            "TTFT is what code completion misses first",
            (
                Claim("code_ttft_met_above_goodput", below=0.9),
                Claim("code_tpot_met_above_goodput", above=0.9),
            ),
            "Shares of requests within each limit, a fifth above the goodput",
        ),
        Row(
            "A20",
            "chunked prefill is good for throughput, and still couples TTFT and TPOT",
            (_THROUGHPUT, _TIGHT),
        ),
        _play(
            "A21",
            Claim("ttft_of_half_chunks", REPRODUCE, text=(2, 2), above=1),
            note="OPT-13B on an A100 with 256 and 512 tokens a step. Its measured times have no "
            "edge below which a step takes no less time: half a step takes little more than half "
            "of it. A limit below the saturation is one warning: "
            "`pytest tests/engine/runtime/test_reports.py -k saturation`",
        ),
        _play(
            "A22",
            Claim("power_of_reads", REPRODUCE, text=(2, 2)),
            note="For prompts of twice as many chunks. Of one prompt in chunks of half the length, "
            "the tokens that are read only double",
            beside=("power_of_reads_of_one_prompt",),
        ),
        Row(
            "A23",
            "with both limits tight, apart is better; for throughput alone, chunked together",
            (_TIGHT, _THROUGHPUT),
            "`spec.mode` chooses. Tight is TTFT 0.4 s and TPOT 40 ms for the chatbot's lengths. "
            "With the SLOs of the three workloads, chunked together is better where "
            "`…_apart_over_chunked` is below 1",
            beside=tuple(f"{name}_apart_over_chunked" for name in WORKLOADS),
        ),
        Row(
            "A24",
            "related work: Splitwise, TetriInfer, DéjàVu; upstream in vLLM",
            outside_because="It claims nothing that a run could show",
        ),
    ),
    "vLLM and TensorRT-LLM on dynamic lengths": (
        _play(
            "B1",
            Claim("policies_on_dynamic", REPRODUCE, above=1.02),
            Claim("policies_on_fixed", REPRODUCE, text=(1, 1), within=0.01),
            note="Throughput of `MAX_UTILIZATION` over `GUARANTEED_NO_EVICT` on 2K: fixed lengths "
            "do not tell one from the other",
        ),
        _play(
            "B2",
            Claim("1k_prompt_mean", REPRODUCE, text=(512, 512)),
            Claim("1k_prompt_longest", REPRODUCE, text=(773, 773), below=1025),
            Claim("8k_prompt_mean", REPRODUCE, text=(7153, 7153)),
            Claim("8k_prompt_longest", REPRODUCE, text=(7709, 7709), below=8193),
            note="Lengths are drawn; no text is needed. The text prints those of 1K and 8K",
            beside=("2k_prompt_longest", "4k_prompt_longest"),
        ),
        _play(
            "B3",
            Claim("twin_tokens", REPRODUCE, text=(1, 1), within=0.01),
            note="Tokens of the twin over those of the subset, for the subset where it differs "
            "most. Times and KV of the A100 are in `argosy_measure/reproduce/timing.py`",
        ),
        _play(
            "B4",
            *(
                Claim(f"{name}_{engine}_fixed_throughput", REPRODUCE, **bound)
                for name, bound in _FIXED_GAINS
                for engine in ("trt", "vllm")
            ),
            note="Throughput of the twin over that of the subset. The text has no figures; far "
            "more is here at least a tenth, and alike is less",
        ),
        _play(
            "B5",
            Claim("1k_trt_fixed_batch", REPRODUCE, above=1),
            Claim("8k_trt_fixed_batch", REPRODUCE, above=1),
            note="Batch of decodes of the twin, whose reservation is exact, over that of the "
            f"subset. The policy: `pytest tests/{_SCHEDULERS} -k t13_`",
        ),
        _play(
            "B6",
            Claim("1k_vllm_fixed_batch", REPRODUCE, above=1),
            Claim("1k_vllm_fixed_batch_of_all_over_decodes", REPRODUCE, above=1),
            Claim("1k_mixed_over_prompts_first", REPRODUCE, above=1),
            note="Batch of decodes of the twin over that of the subset; how much larger that ratio "
            "is over all steps; throughput of mixed steps over prompts first, on 1K",
        ),
        Row(
            "B7",
            "the mean batch is reported over decode steps, and over all steps",
            (Held("engine/runtime/test_step_metrics.py", ("both_mean_batches",)),),
            "`argosy_batch_size{kind}`. The text's batches are not measured",
        ),
        _play(
            "B8",
            Claim("trt_tpot_of_8k", REPRODUCE, above=1),
            Claim("vllm_tpot_of_8k", REPRODUCE, above=1),
            Claim("trt_batch_of_8k", REPRODUCE, below=1),
            Claim("vllm_batch_of_8k", REPRODUCE, below=1),
            Claim("1k_vllm_fixed_tpot", REPRODUCE, below=1),
            Claim("1k_trt_fixed_tpot", REPRODUCE, below=1),
            note="8K over 1K, and the twin of 1K over 1K",
            why="TPOT grows and the batch shrinks as the text says, and vLLM's twin has the lower "
            "TPOT. TensorRT-LLM's twin has not: its batch is more than twice as large, so that "
            "each step takes longer",
        ),
        Row(
            "B9",
            "steps that compute preempted requests again count as prefill",
            (Held("engine/core/test_preemption.py", ("counts_as_prefill",)),),
        ),
        _play(
            "B10",
            Claim("policies_at_4k_over_1k", REPRODUCE, above=1),
            Claim("policies_at_4k", REPRODUCE, above=1),
            Claim("policies_batch_at_1k", REPRODUCE, above=1),
            Claim("policies_at_1k", REPRODUCE, below=1),
            note="`MAX_UTILIZATION` over `GUARANTEED_NO_EVICT` on 4K",
            beside=("policies_at_2k", "policies_batch_at_4k"),
            why="Its lead grows and its batch is larger as the text says, and it leads already at "
            "`max_tokens` of 1K. The text explains that `GUARANTEED_NO_EVICT` leads there by the "
            "time that the other one's scheduler takes, and here scheduling takes no time",
        ),
        _play(
            "B11",
            Claim("preempting_over_guaranteed", REPRODUCE, below=1),
            note="2K with answers of 1,024 tokens: `MAX_UTILIZATION` over `GUARANTEED_NO_EVICT`. "
            "Its own guard admits less for long after preemptions, so that its batch is small. "
            "`argosy_preemptions_total{mode}` counts them",
            beside=(
                "preempting_batch_over_guaranteed",
                "swapping_over_recomputing",
                "preemptions_per_request",
            ),
        ),
        _play(
            "B12",
            Claim("varying_prompts_over_varying_answers", REPRODUCE, above=1),
            Claim("1k_trt_over_vllm", REPRODUCE, above=1),
            note="Throughput on 1K. Mixed steps for vLLM and `MAX_UTILIZATION` for TensorRT-LLM "
            "lead to the same engine: the former gains more where TensorRT-LLM is ahead",
            why="Answers cost more than prompts, as the text says. Mixed steps do not help most: "
            "they and the other policy gain about as much",
        ),
    ),
    "vLLM's tuning page": (
        Row(
            "C1",
            "a warning names the preempted request, the mode, the reason, the remedy and a count",
            (
                Held("engine/core/test_capacity.py", ("each_preemption",)),
                Held("engine/runtime/test_swap.py", ("logged",)),
            ),
        ),
        Row(
            "C2",
            "more KV memory, fewer sequences or tokens in a step, more GPUs for a pod",
            (
                Held("engine/test_options.py", ("vllms_name",)),
                Held("engine_torch/test_tensor_parallel.py", ("t50_",)),
            ),
            "`--pipeline-parallel-size` above 1 is refused by name",
        ),
        Row(
            "C3",
            "the count of preemptions is in Prometheus and in a line of the log at regular times",
            (
                Held("engine/runtime/test_reports.py", ("every_10_s",)),
                Held("contract/test_metric_names.py", ("golden_list",)),
            ),
        ),
        Row(
            "C4",
            "by the old default prompts come first and never beside decodes",
            (Held(_SCHEDULERS, ("t6_",)),),
            "`--batching prefill_first`",
        ),
        Row(
            "C5",
            "with chunks all decodes come first, prompts take the rest, and the last one is cut",
            (Held(_SCHEDULERS, ("t3_", "t5_")),),
        ),
        _play(
            "C6",
            Claim("itl_p99_of_512", REPRODUCE, below=1),
            Claim("ttft_of_512", REPRODUCE, above=1),
            note="Llama-3.1-8B on an A100, four requests of the chatbot a second. The default is "
            "2,048. One stream beside prompts of 1,500 tokens: "
            "[engine](scheduling.md#how-many-prompt-tokens-a-step-has)",
        ),
        Row(
            "C7",
            "work bound by compute and work bound by memory in one step use the GPU better",
            (_THROUGHPUT,),
        ),
    ),
    "TensorRT-LLM's tuning page": (
        Row(
            "D1",
            "`max_batch_size`, `max_num_tokens` and free KV bound a step of prompts and decodes",
            (Held(_SCHEDULERS, ("t3_", "t4_")),),
        ),
        Row(
            "D2",
            "the example of four requests and twelve tokens in a step, with and without chunks",
            (Held(_SCHEDULERS, ("t4_",)),),
        ),
        Row(
            "D3",
            "decodes come first, and ended requests leave before the next step",
            (Held(_SCHEDULERS, ("t4_", "t5_")),),
        ),
        _play(
            "D4",
            Claim("best_over_default_limits", REPRODUCE, above=1.02),
            note="Throughput of the best of nine over the default. Ours are 256 and 2,048, and "
            "`PUT /limits` changes both while it serves "
            "([engine](scheduling.md#limits-that-change-while-it-serves)). `argosy tune` searches "
            "them on a live engine",
            beside=("best_step_tokens",),
            why=_LIMITS,
        ),
        _play(
            "D5",
            Claim("throughput_of_64_sequences", REPRODUCE, text=(1944.3, 1944.3)),
            Claim("throughput_of_512_sequences", REPRODUCE, text=(2466.8, 2466.8)),
            Claim("throughput_of_2048_sequences", REPRODUCE, text=(2044.3, 2044.3)),
            Claim("ttft_ms_alone", REPRODUCE, text=(147.8, 147.8)),
            Claim("itl_ms_alone", REPRODUCE, text=(14.66, 14.66)),
            note="The text says that its figures are an example",
            why="The engine of our times is slower: a decode step takes twice the text's 14.7 ms, "
            "and about the 31.3 ms that the text has before it is tuned",
        ),
        _play(
            "D6",
            Claim("throughput_of_512_over_64_sequences", REPRODUCE, text=(1.269, 1.269), above=1),
            Claim("itl_of_512_over_64_sequences", REPRODUCE, text=(1, 1)),
            Claim(
                "throughput_of_512_over_2048_sequences", REPRODUCE, text=(1.207, 1.207), above=1.02
            ),
            note="The text gives the last of them as almost 20 %",
            why="64 are a bottleneck and latency stays, as the text says. 512 are no better than "
            f"2,048. {_LIMITS}",
        ),
        Row(
            "D7",
            "chunks always: a long prompt does not block others and may be larger than a step",
            (Held(_SCHEDULERS, ("t12_", "t15_")),),
        ),
        _play(
            "D8",
            Claim("tuned_over_default_limits", REPRODUCE, text=(1.21, 1.21), above=1.02),
            note="512 sequences and 2,048 tokens over 2,048 and 8,192. The 58 % are flags of a "
            "build, which our engine does not have",
            why=_LIMITS,
        ),
        _play(
            "D9",
            Claim("best_over_worst_limits", REPRODUCE, above=1.02),
            note="The best of nine limits over the worst, which is 64 sequences. "
            "`argosy_admission_blocked_steps_total{by}` says which limit binds",
        ),
    ),
}
"""Text → its items, in its order."""

HEAD = """Argosy implements what four texts describe: DistServe's on goodput, a comparison of vLLM
and TensorRT-LLM under dynamic lengths, and the tuning pages of both. Each row is a claim of one.

- *Reproduced*: the figure of our run, with all its seeds, is the text's within the tolerance; or
  the text has no figure, and tests hold what it says.
- *Same shape*: the figure is on the text's side of the bound, and not within the tolerance, or the
  text has no figure.
- *Refuted*: neither, and the row says why.
- *Not measured yet*: no committed run has the figure.
- *Out of reach*: no run here can have one, and the row says why.

A figure is the median of the seeds, in brackets the lowest and the highest. Those of
`make bench-goodput` are per GPU and in virtual time. `argosy reproduce` plays the engine's own
scheduler in virtual time; how long its steps take comes from two published fits to measured times,
and nothing is fitted to the texts (`argosy_measure/reproduce/timing.py` has the numbers). After a
run, `python -m docs.sources_page build/bench/goodput.json` takes its figures into
[sources.json](../figures/sources.json), from which this page is generated; so it does with the file
of `argosy reproduce --all --json FILE`. That command ends with 0 whatever its studies say, with 1
if it cannot write FILE, and with 2 if its arguments are wrong.
"""

FURTHER = """## Other sources

What vLLM's, SGLang's and TensorRT-LLM's own tests expect is
[listed with ours](../reference/peer-tests.md). `pytest tests/engine -k test_t13_past` holds
LightLLM's admission by past and future (ASPLOS 2025),
`pytest tests/gateway/relay/test_failing_pods.py` Envoy's outlier detection
([0011](../../designs/0011-health-and-affinity.md)), and `pytest tests/e2e/test_flip.py` SGLang's
change of a role ([0013](../../designs/0013-role-flip.md)).
"""


def page(runs: Runs, note: str, texts: Mapping[str, tuple[Row, ...]] = TEXTS) -> str:
    """Return the page, with a table for each text."""
    return "\n".join((
        "# What the sources claim, and what runs here say", note, HEAD, _count(runs, texts),
        *(line for title, rows in texts.items() for line in _table(title, rows, runs)), FURTHER,
    ))  # fmt: skip


def _count(runs: Runs, texts: Mapping[str, tuple[Row, ...]]) -> str:
    verdicts = [row.verdict(runs) for rows in texts.values() for row in rows]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)
    return f"Of {len(verdicts)} claims: {counts}.\n"


def _table(title: str, rows: Iterable[Row], runs: Runs) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| id | the text | its figure | here | verdict | how to see it |"
    yield "|---|---|---|---|---|---|"
    yield from (row.line(runs) for row in rows)
    yield ""


def read_runs(text: str) -> Runs:
    """Read `docs/figures/sources.json`."""
    return {
        command: {
            name: Measured(value, *run["ranges"].get(name, (value, value)))
            for name, value in run["figures"].items()
        }
        for command, run in json.loads(text).items()
    }


def take(known: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known with the figures of this run that the rows name.

    A run of some parts of a command keeps the figures of the others. ValueError if the rows name
    none of the run's.
    """
    command = " ".join(run["command"].split()[:2])
    asked = {name for rows in TEXTS.values() for row in rows for figure in row.figures()
             if figure.command == command for name in (figure.figure, figure.over)}  # fmt: skip
    figures = {name: value for name, value in run["figures"].items() if name in asked}
    if not figures:
        raise ValueError(f"no row has a figure of {run['command']}")
    before = known.get(command, {"figures": {}, "ranges": {}})
    ranges = {name: ends for name, ends in before["ranges"].items() if name not in figures}
    ranges |= {name: ends for name, ends in run["ranges"].items() if name in figures}
    machine = {key: run["environment"][key] for key in ("date", "processor", "cores")}
    return {**known, command: {**machine, "figures": before["figures"] | figures, "ranges": ranges}}


def main(files: list[str]) -> None:
    """Take the figures of these files."""
    known = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    for file in files:
        known = take(known, json.loads(Path(file).read_text()))
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    RUNS.write_text(re.sub(r"\[\s+(\S+)\s+(\S+)\s+\]", r"[\1 \2]", text))


if __name__ == "__main__":
    main(sys.argv[1:])
