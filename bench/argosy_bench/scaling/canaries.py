"""Canaries in virtual time: how soon one that misses the SLO is found, and how often another is.

A set of a new revision gets its share of the requests beside the sets of the old one, on a constant
fleet. The product's own `compare` reads the verdicts of both every 15 s, as in an operator that
scrapes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from argosy_bench.scaling.shapes import LENGTHS, OBJECTIVE, PROFILE
from argosy_law.canary import BIN_S, Bin, Tally, Verdict, compare
from argosy_law.sim import rates
from argosy_law.sim.figures import verdicts
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import Pair, World
from argosy_law.sim.world.machine import Replica, Revision, Setup
from argosy_law.sim.world.pods import Request
from local.figures import Figure, Figures, Target

CANARIES = 20
SLOWEST, QUICKEST = 0.3, 0.8
"""How quickly those compute that miss the SLO, beside the old revision."""
NEAR = (0.805, 0.84)
"""How quickly those compute that miss the goal by little. From 20 seeds those with an attainment of
0.80 and more, and below the goal, are counted."""
SETS, SHARE, FOR_S, RATE = 9, 0.1, 900.0, 36.0
"""Sets of the old revision; the canary's share of the requests and its time, the example's of the
documentation; requests per second, 70 % of what ten sets carry."""
WARMUP_S = 120.0
LEVEL = 0.05

FIGURES = (
    Figure("canaries_missing_caught", target=Target("==", CANARIES), digits=0),
    Figure("canaries_missing_cost", target=Target("<=", 0.02)),
    Figure("canaries_missing_attainment"),
    Figure("canaries_caught_after_s", "s", digits=0),
    Figure("canaries_alike_lost", target=Target("<=", 1), digits=0),
    Figure("canaries_alike_won", digits=0),
    Figure("canaries_near_lost", digits=0),
    Figure("canaries_near_undecided", digits=0),
    Figure("canaries_near_won", digits=0),
)
"""Of the canaries that miss: how many are found, the share of all requests in the canary's time
that missed because of the costliest, the largest attainment of one, and when the last is found. Of
the canaries of the same engine, and of those near the goal: how many are rolled back and promoted,
or wait for a person."""


class Shared(World):
    """A fleet whose gateway sends a revision its share of the requests."""

    __slots__ = ("_due",)

    def __init__(self, setup: Setup, trace: Trace) -> None:
        super().__init__(setup, trace)
        self._due = 0.0

    def _least_loaded(self, pairs: Mapping[int, Pair]) -> Pair:
        self._due += SHARE
        if self._due >= 1:
            self._due -= 1
            return pairs[1]
        return pairs[0]

    def of_canary(self, request: Request) -> bool:
        """Whether a request was the canary's."""
        head = self._head[request]
        return head is not None and head.revision == 1


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one canary."""

    verdict: Verdict
    after_s: float
    cost: float
    """Share of all requests in the canary's time that missed because of it, until it was found."""
    attainment: float
    """Of the canary's requests, over its whole time."""


def play(speed: float, seed: int) -> Found:
    """One canary at a speed beside the old revision's."""
    setup = Setup(
        Replica.preset(PROFILE), OBJECTIVE.ttft_s, OBJECTIVE.tpot_s, seed=seed, resumes=True
    )
    trace = rates.drawn([(0.0, RATE), (WARMUP_S + FOR_S, RATE)], LENGTHS, 1.0, seed)
    world = Shared(setup, trace)
    for role in world.roles:
        world.scale(role, SETS, warm=True)
    world.edit(Revision(speed))
    for role in world.roles:
        world.scale(role, 1, warm=True)
    world.advance(inf)
    return _judge(world)


def _judge(world: Shared) -> Found:
    bins = [Bin() for _ in range(int(FOR_S / BIN_S))]
    missed, met = list[float](), 0
    count = old_missed = old_count = 0
    for request, (arrival, ttft, tpot) in enumerate(verdicts(world, 0.0)):
        ok, new, ended = ttft and tpot, world.of_canary(request), world.last[request]
        if arrival >= WARMUP_S:
            count += 1
            if new:
                met += ok
                missed += [] if ok else [arrival]
            else:
                old_count, old_missed = old_count + 1, old_missed + (not ok)
        place = int((ended - WARMUP_S) // BIN_S)
        if 0 <= place < len(bins):
            tally = Tally(met=1) if ok else Tally(missed=1)
            bins[place] += Bin(new=tally) if new else Bin(old=tally)
    verdict, after = Verdict.UNDECIDED, FOR_S
    for n in range(1, len(bins) + 1):
        verdict = compare(bins[:n], level=LEVEL, ended=n == len(bins)).verdict
        if verdict is Verdict.LOST:
            after = n * BIN_S
            break
    new_count = count - old_count
    by_then = sum(at - WARMUP_S <= after for at in missed)
    expected = old_missed / old_count * new_count * after / FOR_S
    cost = max(by_then - expected, 0.0) / count
    return Found(verdict, after, cost, met / new_count)


def measure(figures: Figures) -> Iterator[str]:
    """Play canaries that miss the SLO, some of the same engine, and some near the goal, each with a
    seed."""
    slow = [SLOWEST + (QUICKEST - SLOWEST) * n / (CANARIES - 1) for n in range(CANARIES)]
    missing = [play(speed, seed) for seed, speed in enumerate(slow)]
    yield "missing: " + "; ".join(
        f"{one.attainment:.2f} {one.verdict} {one.after_s:.0f} s {one.cost:.4f}" for one in missing
    )
    alike = [play(1.0, seed) for seed in range(CANARIES)]
    yield "alike: " + "; ".join(f"{one.attainment:.2f} {one.verdict}" for one in alike)
    caught = [one for one in missing if one.verdict is Verdict.LOST]
    figures.put("canaries_missing_caught", len(caught))
    figures.put("canaries_missing_cost", max(one.cost for one in missing))
    figures.put("canaries_missing_attainment", max(one.attainment for one in missing))
    figures.put("canaries_caught_after_s", max((one.after_s for one in caught), default=0.0))
    figures.put("canaries_alike_lost", sum(one.verdict is Verdict.LOST for one in alike))
    figures.put("canaries_alike_won", sum(one.verdict is Verdict.WON for one in alike))
    least, most = NEAR
    close = [least + (most - least) * n / (CANARIES - 1) for n in range(CANARIES)]
    near = [play(speed, 100 + n) for n, speed in enumerate(close)]
    near = [one for one in near if 0.8 <= one.attainment < OBJECTIVE.attainment]
    yield "near the goal: " + "; ".join(f"{one.attainment:.2f} {one.verdict}" for one in near)
    figures.put("canaries_near_lost", sum(one.verdict is Verdict.LOST for one in near))
    figures.put("canaries_near_undecided", sum(one.verdict is Verdict.UNDECIDED for one in near))
    figures.put("canaries_near_won", sum(one.verdict is Verdict.WON for one in near))
