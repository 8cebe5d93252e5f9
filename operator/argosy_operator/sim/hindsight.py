"""The smallest constant fleet that would have met the goal on a trace, knowing all of it.

What every law is compared with. `cli` calls `smallest`; each try is a run of `replay.static`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil

from argosy_operator.sim import figures, replay
from argosy_operator.sim.replay import Replicas
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import Setup

MOST_OF_GUESS = 64
"""A fleet with more than so many times the replicas that the work keeps busy is not looked for:
nothing waits in it, and what misses the SLO there misses it alone."""


def smallest(setup: Setup, trace: Trace, *, warmup_s: float, goal: float) -> Replicas | None:
    """The constant prefill and decode replicas with the fewest pods; None if none meet the goal.

    More replicas of a role never make its own latency worse, and prefill does not wait for decode.
    So the fewest prefill replicas follow from TTFT alone. One more is tried as long as it may save
    two decode replicas. Of two fleets of equal size, the one with less prefill.
    """
    search = _Search(setup, trace, warmup_s, goal)
    many_prefill, many_decode = (MOST_OF_GUESS * n for n in search.guess)
    if not search.attained(many_prefill, many_decode):
        return None
    first = _fewest(search.in_time, search.guess[0], many_prefill)
    while not search.attained(first, many_decode):
        first += 1
    decode = _fewest(partial(search.attained, first), search.guess[1], many_decode)
    best = (first, decode)
    for prefill in range(first + 1, first + decode - 1):
        most = sum(best) - 1 - prefill
        if most < 1 or not search.attained(many_prefill, most):
            break
        if search.attained(prefill, most):
            best = (prefill, _fewest(partial(search.attained, prefill), most, most))
    return {"prefill": best[0], "decode": best[1]}


class _Search:
    """Constant fleets on one trace."""

    def __init__(self, setup: Setup, trace: Trace, warmup_s: float, goal: float) -> None:
        self._setup, self._trace, self._warmup_s, self._goal = setup, trace, warmup_s, goal
        self._prompts = replace(trace, output=[1] * len(trace))
        seconds = max(trace.end, 60.0)
        busy = figures.physical_pod_seconds(trace, setup, 0.0)
        self.guess = tuple(max(ceil(pod_seconds / seconds), 1) for pod_seconds in busy)
        """(prefill, decode) replicas that the work would keep busy, were it spread evenly."""

    def in_time(self, prefill: int) -> bool:
        """Whether TTFT alone meets the goal: no answer goes to decode."""
        run = replay.static(self._setup, self._prompts, {"prefill": prefill, "decode": 1})
        return figures.attainment(run.world, self._warmup_s)["attainment_ttft"] >= self._goal

    def attained(self, prefill: int, decode: int) -> bool:
        """Whether both limits together meet the goal."""
        run = replay.static(self._setup, self._trace, {"prefill": prefill, "decode": decode})
        return figures.attainment(run.world, self._warmup_s)["attainment"] >= self._goal


def _fewest(enough: Callable[[int], bool], guess: int, most: int) -> int:
    """The fewest replicas that are enough, looked for around `guess`. `most` are known to be."""
    low, high, step = 0, min(guess, most), 1
    while high < most and not enough(high):
        low, high, step = high, min(high + step, most), 2 * step
    if low == 0:  # the guess is enough: fewer by one, two, four …
        step = 1
        while high - step > 0 and enough(high - step):
            high, step = high - step, 2 * step
        low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
