"""The choice of the law's thresholds on traces, and the file that it is frozen in.

    python -m argosy_bench.laws.choose --traces DIR [--only conv,r1] [--held-out m-mid]
                                       [--thresholds NAME,…] [--write]
    python -m argosy_bench.laws.choose --freeze

A search along one threshold after the other. Each value of its small grid is played on each trace,
the thresholds before it with the values that were found for them. The score is the mean of
log(GPU-hours / static) + 12 · max(0, 0.9 - attainment): a point of attainment that is missing costs
as much as 13 % more GPU-hours, so that the goal comes first. The value with the least score must be
better than the code's by `WORTH`, because less is noise of the traces. It must also

- be no worse on the traces of `--held-out`, which no value is chosen on, and
- lose no minute more on the ramp, and no second more after a step and a jump
  (`argosy_bench/scaling/shapes.py`), unless it stays within their targets.

Otherwise the code's value stays. `--write` writes choice and scores to bench/chosen-thresholds.json
and the table into docs/figures/autoscaling.md; a test compares the code with the file. `--freeze`
takes the code's values for the choice, without playing anything: a value that was never tried has
no scores then.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

from rich.console import Console

from argosy_bench.laws import changes, page
from argosy_bench.laws.player import Law, Player, mean_score
from argosy_bench.scaling import shapes
from argosy_bench.scaling.traces import Recording, chosen
from argosy_operator.sim.laws import LAWS

PAGE = Path("docs/figures/autoscaling.md")
FILE = Path(__file__).parents[2] / "chosen-thresholds.json"
COMMAND = "python -m argosy_bench.laws.choose"
WORTH = 0.005
"""In logarithms of GPU-hours: half a per cent of them."""

GRIDS: Mapping[str, tuple[Any, ...]] = {
    "size.sizing.HYSTERESIS": (1.05, 1.1, 1.15, 1.25),
    "size.sizing.CATCHING_UP": (0.15, 0.25, 0.5),
    "size.sizing.CATCHING_UP_LEAST": (2, 4, 8),
    "estimate.demand.QUANTILE": (0.5, 0.6, 0.7),
    "estimate.demand.LOWER_QUANTILE": (0.3, 0.4, 0.5),
    "estimate.demand.UNEVEN": (0.03, 0.05, 0.1),
    "estimate.demand.SHORT": (0.15, 0.25, 0.35),
    "estimate.demand.ERRORS_ADDED": (0.0, 0.6, 1.2),
    "estimate.demand.ERRORS_OF_LEAP": (-2.0, -1.0, 0.0),
    "estimate.demand.MARGIN_PER_EXCESS": (0.7, 1.3, 2.0),
    "estimate.demand.RISE_LARGEST": (1.4, 1.6, 2.0),
    "estimate.changes.SIGNIFICANT": (3.0, 3.5, 4.0),
    "estimate.changes.LEAP": (4.0, 5.0, 6.0),
    "estimate.changes.RISE_SIGNIFICANT": (3.5, 4.0, 5.0),
    "signals.learning.FEEDBACK_GAIN": (0.0, 0.015, 0.03, 0.06),
    "signals.learning.HEADROOM": ((0.8, 1.1), (0.85, 1.1), (0.9, 1.1), (0.85, 1.2)),
    "Windows.down_hold_s": (180.0, 300.0, 450.0),
}
"""Values around each threshold. `laws.changes` says what the names mean."""


SHAPES = (
    ("min", shapes.ramp_lost_minutes, 3.0),
    ("s", shapes.step_back_s, shapes.COLD_S + 45),
    ("s", shapes.burst_back_s, 1.5 * shapes.COLD_S),
)
"""Unit, load and target: the ramp, the step, the jump."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One threshold."""

    value: Any
    scores: Mapping[str, float]
    """Value as JSON → mean score; empty: it was not tried."""
    traces: tuple[str, ...] = ()
    seeds: int = 0
    best: Any = None
    """The value with the least score; None: that of the code."""
    why: str = ""
    """Why `best` was not taken; empty: it was, or there is none."""
    held_out: float | None = None
    """Score of `best` less that of the code's value on the held-out traces; None: not played."""
    shaped: tuple[float, ...] = ()
    """What `best` does on each of `SHAPES`."""

    def shown(self) -> dict[str, Any]:
        """For the file."""
        return {
            "value": self.value, "scores": dict(self.scores), "traces": list(self.traces),
            "seeds": self.seeds,
        }  # fmt: skip


@dataclass
class Search:
    """Tries thresholds one after the other, and keeps what was found."""

    player: Player
    recordings: list[Recording]
    """A value is chosen on these."""
    held_out: list[Recording] = field(default_factory=list)
    """A value that was chosen must be no worse on these."""
    seeds: int = 1
    found: dict[str, Any] = field(default_factory=dict)
    """Values other than the code's that were taken so far."""

    def choose(self, name: str) -> Choice:
        """Try every value of a threshold."""
        now = changes.value(name)
        values = dict.fromkeys((now, *GRIDS[name]))
        scores = {value: self._score(self._law(name, value), self.recordings) for value in values}
        shown = {json.dumps(value): round(score, 4) for value, score in scores.items()}
        traces = tuple(one.name for one in self.recordings)
        best = min(scores, key=scores.__getitem__)
        if best == now or scores[best] > scores[now] - WORTH:
            return Choice(now, shown, traces, self.seeds)
        before, after = self._law(name, now), self._law(name, best)
        held_out = self._score(after, self.held_out) - self._score(before, self.held_out)
        shaped = self._shaped(after.changes)
        why = self._against(held_out, shaped)
        if not why:
            self.found[name] = best
        value = now if why else best
        return Choice(
            value, shown, traces, self.seeds, best, why, held_out if self.held_out else None, shaped
        )

    def _law(self, name: str, value: Any) -> Law:
        law = {**self.found, name: value}
        return Law(changes={n: v for n, v in law.items() if v != changes.value(n)})

    def _score(self, law: Law, recordings: list[Recording]) -> float:
        points = [p for one in recordings for p in self.player.points(one, self.seeds, law)]
        return mean_score(points) if points else 0.0

    def _shaped(self, changed: changes.Changes) -> tuple[float, ...]:
        """Each load with the changed law, the mean of the seeds. Windows are not changed in it."""
        with changes.changed(changed):
            runs = [[of(LAWS["goodput"], n) for n in range(self.seeds)] for _, of, _ in SHAPES]
        return tuple(sum(values) / len(values) for values in runs)

    @cached_property
    def unchanged(self) -> tuple[float, ...]:
        """What the code as it is does on the shaped loads."""
        return self._shaped({})

    def _against(self, held_out: float, shaped: tuple[float, ...]) -> str:
        if held_out > 0:
            return "worse on the held-out traces"
        loads = zip(SHAPES, shaped, self.unchanged, strict=True)
        if any(new > max(old, target) for (_, _, target), new, old in loads):
            return "slower on a ramp, step or jump"
        return ""


def read() -> dict[str, Choice]:
    """What is frozen."""
    rows = json.loads(FILE.read_text())["thresholds"] if FILE.exists() else {}
    return {
        name: Choice(row["value"], row["scores"], tuple(row["traces"]), row["seeds"])
        for name, row in rows.items()
    }


def write(choices: Mapping[str, Choice]) -> None:
    """Freeze these choices, and keep those of the other thresholds."""
    kept = {name: one for name, one in (read() | dict(choices)).items() if name in GRIDS}
    rows = {name: kept[name].shown() for name in GRIDS if name in kept}
    document = {"command": COMMAND, "thresholds": rows}
    FILE.write_text(json.dumps(document, indent=1) + "\n")


def frozen(known: Mapping[str, Choice]) -> dict[str, Choice]:
    """The code's values as the choice; scores stay where the value is one that was tried."""
    choices = {}
    for name in GRIDS:
        now, before = changes.value(name), known.get(name)
        tried = before is not None and json.dumps(now) in before.scores
        choices[name] = (
            Choice(now, before.scores, before.traces, before.seeds)
            if before is not None and tried
            else Choice(now, {})
        )
    return choices


def differing() -> dict[str, tuple[Any, Any]]:
    """Thresholds of which the code has another value than the file: (code, file)."""
    known = {name: json.dumps(one.value) for name, one in read().items()}
    code = {name: json.dumps(changes.value(name)) for name in GRIDS}
    return {name: (now, known.get(name)) for name, now in code.items() if known.get(name) != now}


HEAD = (
    "| threshold | code | best value | score as GPU-hours | held out | ramp, step, jump | chosen "
    "| commit |",
    "|---|---|---|---|---|---|---|---|",
)


def row(name: str, choice: Choice, commit: str) -> str:
    """One line of the table; differences of the score as those of GPU-hours at the same
    attainment, in per cent. `commit`: of the code."""
    now = json.dumps(changes.value(name))
    if choice.best is None:
        best = min(choice.scores, key=choice.scores.__getitem__)
        gain = choice.scores[best] - choice.scores[now]
        other = "it is the best" if best == now else f"{best}, but no more than noise"
        return f"| `{name}` | {now} | {other} | {_percent(gain)} | | | {now} | `{commit}` |"
    best = json.dumps(choice.best)
    gain = choice.scores[best] - choice.scores[now]
    held_out = "" if choice.held_out is None else _percent(choice.held_out)
    loads = ", ".join(
        f"{value:g} {unit}" for value, (unit, _, _) in zip(choice.shaped, SHAPES, strict=True)
    )
    taken = f"{now}: {best} is {choice.why}" if choice.why else best
    cells = (f"`{name}`", now, best, _percent(gain), held_out, loads, taken, f"`{commit}`")
    return f"| {' | '.join(cells)} |"


def _percent(score: float) -> str:
    return f"{100 * (exp(score) - 1):+.1f} %"


def main() -> int:
    """Choose or freeze."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, help="folder of traces")
    add("--only", metavar="NAME,…", help="choose on these traces only")
    add("--held-out", metavar="NAME,…", help="traces to check a choice on; not chosen on")
    add("--thresholds", default=",".join(GRIDS), metavar="NAME,…", help="only these")
    add("--seeds", type=int, default=1)
    add("--scratch", type=Path, default=Path("build/bench/autoscaling"))
    add("--write", action="store_true", help="freeze the choice")
    add("--freeze", action="store_true", help="freeze what the code has")
    asked = parser.parse_args()
    if asked.freeze:
        write(frozen(read()))
        return 0
    if asked.traces is None:
        parser.error("give --traces DIR, or --freeze")
    names = asked.thresholds.split(",")
    if unknown := [name for name in names if name not in GRIDS]:
        parser.error(f"--thresholds {','.join(unknown)}: write some of {', '.join(GRIDS)}")
    held_out = chosen(asked.held_out) if asked.held_out else []
    recordings = [one for one in chosen(asked.only) if one not in held_out]
    search = Search(Player(asked.traces, asked.scratch), recordings, held_out, asked.seeds)
    console = Console(highlight=False)
    for name in names:
        choice = search.choose(name)
        line = row(name, choice, page.commit())
        console.print(f"{line}  {dict(choice.scores)}", soft_wrap=True)
        if asked.write:
            write({name: choice})
            page.update(PAGE, "thresholds", [*HEAD, line])
    for name, (now, then) in differing().items():
        console.print(f"{name} is {now} in the code and {then} in {FILE.name}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
