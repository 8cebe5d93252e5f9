"""The page on when to split: what `argosy plan` finds for pods together and apart.

    python -m docs.split_page

plans each row of `ROWS` anew and writes `docs/figures/split.json`, in 20 minutes of one core;
`python -m docs.generate --write` writes the page. Its sentences of who wins are computed.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ROWS", "Row", "page", "read_runs"]

RUNS = Path(__file__).resolve().parents[1] / "docs" / "figures" / "split.json"

ROLES = "colocated", "prefill", "decode"


@dataclass(frozen=True, slots=True)
class Row:
    """A question to `argosy plan`."""

    profile: str
    gpus: int
    workload: str
    ttft_ms: int
    tpot_ms: int
    published: bool = False
    """Whether these are the limits of DistServe's evaluation."""

    @property
    def argv(self) -> list[str]:
        """The command line, without the file of the answer."""
        return [
            "--profile", self.profile, "--gpus", str(self.gpus), "--workload", self.workload,
            "--ttft", f"{self.ttft_ms}ms", "--tpot", f"{self.tpot_ms}ms",
        ]  # fmt: skip


def _rows() -> Iterator[Row]:
    for profile, gpus in (("opt-13b-a100", 8), ("llama-70b-h100-tp4", 32)):
        yield Row(profile, gpus, "chatbot", 250, 100, published=True)
        yield Row(profile, gpus, "chatbot", 1000, 60)
        yield Row(profile, gpus, "chatbot", 1000, 40)
        yield Row(profile, gpus, "code", 125, 200, published=True)
        yield Row(profile, gpus, "code", 500, 60)
        yield Row(profile, gpus, "code", 500, 40)
        yield Row(profile, gpus, "summarization", 15000, 150, published=True)
        yield Row(profile, gpus, "summarization", 4000, 60)
        yield Row(profile, gpus, "summarization", 4000, 40)
    yield Row("llama-70b-h100-tp4", 32, "6000,200", 4000, 150)
    yield Row("llama-70b-h100-tp4", 32, "6000,200", 4000, 60)
    yield Row("llama-70b-h100-tp4", 32, "6000,200", 4000, 40)


ROWS = tuple(_rows())


INTRO = """\
`spec.mode` chooses whether pods compute prompts and answers together (`colocated`) or apart
(`disaggregated`). [`argosy plan`](../how-to/plan.md) answers for your pods, workload and SLO. This
page has its answers for two profiles. `python -m docs.split_page` plans them anew.

Goodput is the highest rate at which 90 % of the requests meet both limits, here per GPU and second:
the median of three seeds, the lowest and the highest. For apart it is that of the best split of the
GPUs. Together means chunked prefill, as our engine computes it: prompts take what decodes leave of
a step's tokens. The better one is the one whose whole range is above the other's.

The workloads are DistServe's three and one with long prompts (mean tokens of prompts and answers);
`published` marks the limits of DistServe's evaluation. DistServe compares with an engine that
computes prompts before any decode goes on, without chunks: against that, apart wins more often
([sources](sources.md), A17)."""
OUTRO = """\
## What to make of it

Apart, no prompt delays the tokens of an answer, so a tight TPOT is met at a high rate. It costs
a fixed split: a GPU that has nothing to prefill cannot decode. Together, any GPU takes any work,
and a step with prompts and decodes reads the weights once; a loose TPOT leaves room for both.

All figures are predictions of the simulator; [the plan's page](../how-to/plan.md#how-near-it-is)
says how near they are."""


@dataclass(frozen=True, slots=True)
class Found:
    """The goodput per GPU of pods together, or apart."""

    fleet: str
    value: float
    least: float
    most: float
    binds: str

    def __str__(self) -> str:
        if not self.most:
            return "goal not met"
        return f"{self.value:.3g} ({self.least:.3g} to {self.most:.3g})"


NOTHING = Found("", 0.0, 0.0, 0.0, "")


def found_of(answer: Mapping[str, Any], mode: str) -> Found:
    """Return the best option of a mode; `NOTHING` where none meets the goal."""
    for option in answer["options"]:
        if option["mode"] == mode:
            goodput, gpus = option["goodput"], option["gpus"]
            counts = option["replicas"]
            fleet = " + ".join(f"{counts[role]} {role}" for role in ROLES if role in counts)
            binds = f"{option['limit']}: {option['binds'] or 'several together'}"
            value, least, most = (goodput[of] / gpus for of in ("median", "low", "high"))
            return Found(fleet, value, least, most, binds)
    return NOTHING


def winner(together: Found, apart: Found) -> str:
    """Say which is better: the one whose whole range is above the other's."""
    if not together.most and not apart.most:
        return "neither"
    if together.least > apart.most:
        return "together"
    return "apart" if apart.least > together.most else "about equal"


def read_runs(text: str) -> dict[Row, Mapping[str, Any]]:
    """Return the committed answers. KeyError if a row was not planned."""
    answers = json.loads(text)
    return {row: answers[shlex.join(row.argv)] for row in ROWS}


def page(runs: Mapping[Row, Mapping[str, Any]], note: str) -> str:
    """Return the page."""
    pairs = {
        row: (found_of(answer, "colocated"), found_of(answer, "disaggregated"))
        for row, answer in runs.items()
    }
    parts = ["# When to split", note, INTRO, "", *_sentences(pairs)]
    for profile in dict.fromkeys(row.profile for row in pairs):
        gpus = next(row.gpus for row in pairs if row.profile == profile)
        parts += ["", f"## {profile}, {gpus} GPUs", ""]
        parts += [
            "| workload | TTFT, TPOT | together | binds first | apart | split | binds first "
            "| better |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row, (together, apart) in pairs.items():
            if row.profile == profile:
                limits = f"{row.ttft_ms} ms, {row.tpot_ms} ms"
                limits += " (published)" if row.published else ""
                parts.append(
                    f"| {row.workload} | {limits} | {together} | {together.binds} | {apart} | "
                    f"{apart.fleet} | {apart.binds} | {winner(together, apart)} |"
                )
    return "\n".join([*parts, "", OUTRO]) + "\n"


def _sentences(pairs: Mapping[Row, tuple[Found, Found]]) -> Iterator[str]:
    """Say who wins where, as the figures have it."""
    for profile in dict.fromkeys(row.profile for row in pairs):
        of = {row: winner(*pair) for row, pair in pairs.items() if row.profile == profile}
        published = {row.workload: better for row, better in of.items() if row.published}
        shown = _list_verdicts(published)
        yield f"- **{profile}**, better with the published limits: {shown}."
        others = {
            f"{row.workload} with {row.ttft_ms} and {row.tpot_ms} ms": better
            for row, better in of.items()
            if not row.published
        }
        yield f"- **{profile}**, better with the other limits: {_list_verdicts(others)}."


def _list_verdicts(found: Mapping[str, str]) -> str:
    """Write each verdict with what it holds for."""
    verdicts = ("together", "apart", "about equal", "neither")
    if len({*found.values()}) == 1:
        return f"{next(iter(found.values()))} for all {len(found)}"
    shown = []
    for verdict in verdicts:
        names = [name for name, better in found.items() if better == verdict]
        if names:
            shown.append(f"{verdict} for {', '.join(names)}")
    return "; ".join(shown)


def main() -> None:
    """Plan each row and write the answers."""
    from argosy_measure.plan import main as plan

    answers = {}
    for row in ROWS:
        status = plan([*row.argv, "--json", str(RUNS)])
        if status == 2:
            raise SystemExit(status)
        answers[shlex.join(row.argv)] = json.loads(RUNS.read_text())
    RUNS.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
