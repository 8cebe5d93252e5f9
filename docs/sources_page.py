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
    REFUTED = 3

    def __str__(self) -> str:
        return ("reproduced", "same shape", "not measured yet", "refuted")[self]


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

    def verdict(self, runs: Runs) -> Verdict:
        """Return the highest verdict of the claims. ValueError if it lacks a reason or has one for
        nothing."""
        if not self.claims:
            return Verdict.NOT_MEASURED
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
            ". ".join(filter(None, (self.refuted_because, commands, self.note))),
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
            note="The gateway judges TTFT and TPOT; engines export the time of the whole answer "
            "(`vllm:e2e_request_latency_seconds`, [metrics](../reference/metrics.md)). Nothing has "
            "a limit on that or on a moving average",
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
            note="`make bench-gateway` compares transports without an RDMA adapter "
            "([figures](../figures/gateway.md#the-handover-of-kv)), and `auto` takes the fastest "
            "one ([0008](../../designs/0008-kv-protocol-2.md)). Over an adapter nothing was run",
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
            "edge below which a step takes no less time: half a step takes 63 % of the time. A "
            "limit below the saturation is one warning: "
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
        Row("A24", "related work: Splitwise, TetriInfer, DéjàVu; upstream in vLLM"),
    ),
    "vLLM and TensorRT-LLM on dynamic lengths": (
        Row("B1", "fixed lengths hide what a scheduler does; dynamic ones must be measured"),
        Row("B2", "Dynamic-Sonnet: prompts in four subsets, of at most 1K to 8K tokens"),
        Row("B3", "Llama-3.1-8B on an A100, all requests at once, random twins of fixed length"),
        Row("B4", "with short prompts, fixed lengths give far more throughput than dynamic ones"),
        Row(
            "B5",
            "`GUARANTEED_NO_EVICT` reserves `max_tokens`, which is wasted when answers end early",
            note=f"The policy: `pytest tests/{_SCHEDULERS} -k t13_`. Its throughput is not "
            "measured",
        ),
        Row(
            "B6",
            "without mixed steps vLLM has smaller batches of decodes under dynamic lengths",
            note="`--batching` and `--capacity-policy` have both ways "
            f"(`pytest tests/{_SCHEDULERS} -k 't5_ or t6_ or t13_'`)",
        ),
        Row(
            "B7",
            "the mean batch is reported over decode steps, and over all steps",
            (Held("engine/runtime/test_step_metrics.py", ("both_mean_batches",)),),
            "`argosy_batch_size{kind}`. The text's batches are not measured",
        ),
        Row("B8", "TPOT grows with the length of prompts though the batch shrinks"),
        Row(
            "B9",
            "steps that compute preempted requests again count as prefill",
            (Held("engine/core/test_preemption.py", ("counts_as_prefill",)),),
        ),
        Row("B10", "the larger `max_tokens` is, the more `MAX_UTILIZATION` wins"),
        Row(
            "B11",
            "too many preemptions lower the throughput",
            note="`argosy_preemptions_total{mode}` counts them; the loss is not measured",
        ),
        Row("B12", "dynamic answers cost more than dynamic prompts; mixed steps help most"),
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
        Row(
            "D4",
            "2,048 requests and 8,192 tokens by default; search the grid of both",
            note="Ours are 256 and 2,048, and `PUT /limits` changes both while it serves "
            "([engine](scheduling.md#limits-that-change-while-it-serves)). Nothing searches",
        ),
        Row("D5", "Llama-3.3-70B on four H100: throughput and latency over both limits"),
        Row("D6", "64 requests in a step are a bottleneck, 512 are best, latency stays"),
        Row(
            "D7",
            "chunks always: a long prompt does not block others and may be larger than a step",
            (Held(_SCHEDULERS, ("t12_", "t15_")),),
        ),
        Row("D8", "tuned limits give 21 % more throughput, 58 % more than the baseline"),
        Row(
            "D9",
            "the limits are found by measurement",
            note="`argosy_admission_blocked_steps_total{by}` says which limit binds. Nothing "
            "searches them",
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

A figure is the median of the seeds, in brackets the lowest and the highest. Those of
`make bench-goodput` are per GPU and in virtual time. `argosy reproduce` plays the engine's own
scheduler in virtual time; how long its steps take comes from two published fits to measured times,
and nothing is fitted to the texts (`argosy_measure/reproduce/timing.py` has the numbers). After a
run, `python -m docs.sources_page build/bench/goodput.json` takes its figures into
[sources.json](../figures/sources.json), from which this page is generated; so it does with the file
of `argosy reproduce --all --json FILE`.
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
