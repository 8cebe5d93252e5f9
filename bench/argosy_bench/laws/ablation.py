"""What each part of the law is worth: the law without it on the same traces.

    python -m argosy_bench.laws.ablation --traces DIR [--only conv,r1] [--parts NAME,…] [--write]

`--write` puts the table into docs/figures/autoscaling.md.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean, geometric_mean

from rich.console import Console

from argosy_bench.laws import page
from argosy_bench.laws.changes import changed
from argosy_bench.laws.player import Law, Player, Point
from argosy_bench.scaling import shapes
from argosy_bench.scaling.runs import PROFILE
from argosy_bench.scaling.traces import chosen
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.estimate.capacity import Estimate
from argosy_operator.core.scaling.estimate.profiles import PRESETS
from argosy_operator.core.scaling.goals import Order, Serving
from argosy_operator.core.scaling.size.joint import Demanded
from argosy_operator.core.scaling.size.model import smallest
from argosy_operator.core.scaling.size.prefill import PrefillModel, prefill_model
from argosy_operator.core.scaling.size.work import Replica, Work
from argosy_operator.sim.laws import LAWS

PAGE = Path("docs/figures/autoscaling.md")


def each_alone(pools: tuple[Demanded, ...], goal: float) -> tuple[int, ...]:
    """Each role for the whole goal, as if the other one missed nothing."""
    return tuple(smallest(pool.model, pool.rate, goal) for pool in pools)


def learn_nothing(estimate: Estimate, *_: object) -> Estimate:
    """The prior for ever."""
    return estimate


def sized_for_arrival(
    replica: Replica, work: Work, limit_s: float, _: Order = "fifo"
) -> PrefillModel:
    """Prefill for the order of arrival, although the gateway's queue goes by deadline."""
    return prefill_model(replica, work, limit_s, "fifo")


LEARNT = capacity.replica
"""As it is without any change."""


def knowing_attention(
    estimate: Estimate, kv_tokens: float, serving: Serving | None = None
) -> Replica:
    """The learnt constants, but a prompt's time per token and that of attention, L², as they are.

    The law learns one number for both, which is right at the mean and too small for the longest
    prompts.
    """
    true = PRESETS[PROFILE]
    return replace(
        LEARNT(estimate, kv_tokens, serving),
        per_prompt_token_s=true.per_prompt_token_s,
        per_prompt_token_squared_s=true.per_prompt_token_squared_s,
    )


NOTHING_LEARNT = {"estimate.capacity.learn": learn_nothing}
NO_GROWTH = {"size.sizing.CATCHING_UP": 0.0, "size.sizing.CATCHING_UP_LEAST": 0}


@dataclass(frozen=True, slots=True)
class Part:
    """A change of the law or of how the fleet serves, beside another of those."""

    what: str
    law: Law
    beside: Law = field(default_factory=Law)


PARTS: Mapping[str, Part] = {
    "ramps": Part(
        "without following ramps", Law(changes={"estimate.changes.RISE_SIGNIFICANT": inf})
    ),
    "queue": Part("without replicas for a queue", Law(changes=NO_GROWTH)),
    "feedback": Part(
        "without feedback of attainment", Law(changes={"signals.learning.FEEDBACK_GAIN": 0.0})
    ),
    "margin": Part(
        "without a margin on the forecast",
        Law(changes={"estimate.demand.MARGIN_RANGE": (1.0, 1.0)}),
    ),
    "hysteresis": Part("without hysteresis", Law(changes={"size.sizing.HYSTERESIS": 1.0})),
    "joint goal": Part(
        "each role for the whole goal alone", Law(changes={"size.sizing.fewest": each_alone})
    ),
    "order in force": Part(
        "prefill sized for the order of arrival",
        Law(changes={"size.prefill.prefill_model": sized_for_arrival}),
    ),
    "season": Part("without the season", Law(changes={"estimate.season.ENOUGH_TESTS": inf})),
    "attention": Part(
        "with the time of attention known, which the law does not learn",
        Law(changes={"estimate.capacity.replica": knowing_attention}),
    ),
    "learning from fast": Part(
        "nothing learnt, prior 20 % too fast",
        Law(changes=NOTHING_LEARNT, flags=("--profile-error", "0.8")),
        Law(flags=("--profile-error", "0.8")),
    ),
    "learning from slow": Part(
        "nothing learnt, prior 20 % too slow",
        Law(changes=NOTHING_LEARNT, flags=("--profile-error", "1.2")),
        Law(flags=("--profile-error", "1.2")),
    ),
    "deadline order": Part("first in, first out", Law(flags=("--order", "fifo"))),
    "first token": Part(
        "first tokens held until the batch", Law(flags=("--first-token", "in-batch"))
    ),
}


def ramp_minutes(law: Law, seeds: int) -> str:
    """Minutes below the goal on the ramp of the shaped loads, the mean; "-" for another fleet."""
    if law.flags:
        return "-"
    with changed(law.changes):
        lost = [shapes.ramp_lost_minutes(LAWS[law.policy], seed) for seed in range(seeds)]
    return f"{fmean(lost):.1f}"


def row(
    name: str, traces: str, points: list[Point], beside: list[Point] | None, ramp: str, commit: str
) -> str:
    """One line of the table; "against" is against `beside`, on the same traces. `commit`: of the
    code."""
    cells = [
        name,
        traces,
        f"{min(p.attainment for p in points):.3f}",
        f"{fmean(p.attainment for p in points):.3f}",
        f"{geometric_mean(p.cost for p in points):.3f}",
        f"{fmean(p.reversals for p in points):.1f}",
        ramp,
    ]
    against = ""
    if beside is not None:
        pairs = list(zip(points, beside, strict=True))
        lost = 100 * fmean(one.attainment - other.attainment for one, other in pairs)
        hours = geometric_mean(one.gpu_hours / other.gpu_hours for one, other in pairs)
        against = f"{lost:+.1f} points, {100 * (hours - 1):+.1f} %"
    return f"| {' | '.join([*cells, against, f'`{commit}`'])} |"


HEAD = [
    "| law | traces | worst attainment | mean | GPU-hours / static | reversals/h "
    "| minutes lost on the ramp | against the whole law | commit |",
    "|---|---|---|---|---|---|---|---|---|",
]


def main() -> int:
    """Play the law without each part, print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.laws.ablation", description=__doc__
    )
    add = parser.add_argument
    add("--traces", type=Path, required=True, help="folder of traces")
    add("--only", metavar="NAME,…", help="only these traces")
    add("--parts", default=",".join(PARTS), metavar="NAME,…", help="only these")
    add("--seeds", type=int, default=1)
    add("--scratch", type=Path, default=Path("build/bench/autoscaling"))
    add("--write", action="store_true", help="write the page")
    asked = parser.parse_args()
    names = asked.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--parts {','.join(unknown)}: write some of {', '.join(PARTS)}")
    player, recordings = Player(asked.traces, asked.scratch), chosen(asked.only)

    def points(law: Law) -> list[Point]:
        return [p for one in recordings for p in player.points(one, asked.seeds, law)]

    console, commit = Console(highlight=False), page.commit()
    traces = ", ".join(one.name for one in recordings)
    ramp = ramp_minutes(Law(), asked.seeds)
    lines = [*HEAD, row("the whole law", traces, points(Law()), None, ramp, commit)]
    console.print("\n".join(lines), soft_wrap=True)
    for name in names:
        part = PARTS[name]
        ramp = ramp_minutes(part.law, asked.seeds)
        found = points(part.law), points(part.beside)
        lines.append(row(part.what, traces, *found, ramp, commit))
        console.print(lines[-1], soft_wrap=True)
    if asked.write:
        page.update(PAGE, "ablation", lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
