"""Laws beside each other at equal attainment: each is played with several aims, and read at 0.90.

    python -m argosy_bench.laws.equal --traces DIR [--only conv,r1] [--rivals wva,keda] [--write]

Ours is given several goals; a rival its chosen thresholds, all of them times several factors.
`--write` puts the table and the picture into `docs/measured`. `suites.autoscaling` puts the figure.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from rich.console import Console

from argosy_bench.laws import page, picture
from argosy_bench.laws.player import GOAL, Law, Player, Point
from argosy_bench.scaling.traces import Recording, chosen
from argosy_operator.sim.laws import LAWS

OURS = "goodput"
OTHERS = sorted(LAWS.keys() - {OURS})
GOALS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.94)
FACTORS = (0.6, 0.8, 1.0, 1.25, 1.6, 2.0)
RIVALS = ("hpa", "keda", "wva")
"""Those with 0.90 on most traces, by the table of docs/how-to/simulate.md."""
PAGE, PICTURE = Path("docs/figures/autoscaling.md"), Path("docs/figures/autoscaling.svg")

Curve = list[Point]
"""What one law reached with each aim; the mean over the seeds."""


def aims(law: str, order: str) -> list[Law]:
    """A law with each of its aims. `order` is that of the rivals' fleets; ours has its own."""
    if law == OURS:
        return [Law(flags=("--goal", f"{goal:g}")) for goal in GOALS]
    setting = thresholds(law)
    return [
        Law(law, {name: value * by for name, value in setting.items()}, {}, ("--order", order))
        for by in FACTORS
    ]


def thresholds(law: str) -> dict[str, float]:
    """Return what the owner of another autoscaler sets, by name."""
    made: Any = LAWS[law]
    return {of.name: getattr(made, of.name) for of in fields(made) if of.init}


def curves(
    player: Player, recording: Recording, laws: Sequence[str], seeds: int, order: str
) -> dict[str, Curve]:
    """The curve of each law on one trace."""
    return {
        law: [mean_of(player.points(recording, seeds, aim)) for aim in aims(law, order)]
        for law in laws
    }


def mean_of(points: list[Point]) -> Point:
    """The mean over the seeds."""
    of = [(p.attainment, p.gpu_hours, p.static, p.reversals) for p in points]
    return Point(*(fmean(column) for column in zip(*of, strict=True)))


def front(curve: Curve) -> Curve:
    """Without points for whose attainment another needs less; the lowest attainment first."""
    best = [
        one
        for one in curve
        if not any(other.attainment >= one.attainment and other.cost < one.cost for other in curve)
    ]
    return sorted(best, key=lambda one: (one.attainment, one.cost))


def cost_at(curve: Curve, attainment: float = GOAL) -> tuple[float, bool] | None:
    """(GPU-hours over static at this attainment, whether it lies between two points).

    Between two points of the front, the logarithm of the cost is linear in the attainment. If all
    have more attainment, the cheapest is taken as it is: the law may need less. None if all have
    less.
    """
    best = front(curve)
    for worse, better in pairwise(best):
        if worse.attainment <= attainment <= better.attainment:
            span = better.attainment - worse.attainment
            part = (attainment - worse.attainment) / span if span > 0 else 0.0
            return exp((1 - part) * log(worse.cost) + part * log(better.cost)), True
    if best and best[0].attainment >= attainment:
        return best[0].cost, best[0].attainment == attainment
    return None


def against_best(of: Mapping[str, Curve]) -> tuple[float, str] | None:
    """(our GPU-hours over those of the cheapest rival at 0.90, that rival); None if we or all
    rivals have no such point."""
    ours = cost_at(of[OURS])
    rivals = {law: cost_at(curve) for law, curve in of.items() if law != OURS}
    reached = {law: cost[0] for law, cost in rivals.items() if cost is not None}
    if ours is None or not reached:
        return None
    best = min(reached, key=reached.__getitem__)
    return ours[0] / reached[best], best


def table(found: Mapping[str, Mapping[str, Curve]]) -> list[str]:
    """Markdown: GPU-hours over static at 0.90, a row for each trace."""
    laws = list(next(iter(found.values())))
    lines = [
        f"| trace | {' | '.join(f'`{law}`' for law in laws)} | ours / best rival |",
        "|---" * (len(laws) + 2) + "|",
    ]
    for name, of in found.items():
        cells = [_cell(cost_at(of[law])) for law in laws]
        ratio = against_best(of)
        last = "-" if ratio is None else f"{ratio[0]:.2f} (`{ratio[1]}`)"
        lines.append(f"| {name} | {' | '.join(cells)} | {last} |")
    ratios = [ratio[0] for of in found.values() if (ratio := against_best(of)) is not None]
    if ratios:
        blank = " |" * len(laws)
        lines.append(f"| geometric mean |{blank} {geometric_mean(ratios):.2f} |")
    return lines


def _cell(cost: tuple[float, bool] | None) -> str:
    if cost is None:
        return "below 0.90"
    return f"{cost[0]:.2f}" if cost[1] else f"≤ {cost[0]:.2f}"


def main() -> int:
    """Play, print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m argosy_bench.laws.equal", description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, required=True, help="folder of traces")
    add("--only", metavar="NAME,…", help="only these traces")
    add("--rivals", default=",".join(RIVALS), help=f"of {', '.join(OTHERS)}")
    add("--rival-order", default="fifo", choices=("fifo", "deadline"), help="of their fleets")
    add("--seeds", type=int, default=1)
    add("--scratch", type=Path, default=Path("build/bench/autoscaling"))
    add("--write", action="store_true", help="write the page and the picture")
    asked = parser.parse_args()
    rivals = asked.rivals.split(",")
    if unknown := [law for law in rivals if law not in OTHERS]:
        parser.error(f"--rivals {','.join(unknown)}: write some of {', '.join(OTHERS)}")
    player, laws = Player(asked.traces, asked.scratch), (OURS, *rivals)
    found: dict[str, dict[str, Curve]] = {}
    console = Console(highlight=False)
    for recording in chosen(asked.only):
        found[recording.name] = curves(player, recording, laws, asked.seeds, asked.rival_order)
        for line in table({recording.name: found[recording.name]})[2:3]:
            console.print(line, soft_wrap=True)
    lines = table(found)
    console.print("\n".join(lines), soft_wrap=True)
    if asked.write:
        PICTURE.write_text(picture.svg(found))
        page.write(PAGE, "equal attainment", [*page.measured(asked.seeds), "", *lines])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
