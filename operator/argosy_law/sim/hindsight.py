"""The smallest constant fleet that would have met the goal on a trace, knowing all of it.

`cli` calls `smallest`, or `smallest_colocated` for a fleet of one role. Each try plays the trace,
and stops as soon as the answer is certain: a fleet that is too small misses a tenth of the requests
long before the end.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import ceil, inf, isnan

from argosy_law.sim import figures
from argosy_law.sim.replay import ROLES, TOGETHER, Replicas, started
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import PoolName, World
from argosy_law.sim.world.machine import Setup

MOST_OF_GUESS = 64
"""A fleet with more than so many times the replicas that the work keeps busy is not looked for:
nothing waits in it, and what misses the SLO there misses it alone."""
LOOKS = 32
"""How often in a run it is looked whether the answer is certain."""
_ROUNDING = 1e-9
"""A share this close to the goal is left to the end of the run."""


def smallest_colocated(
    setup: Setup, trace: Trace, *, warmup_s: float, goal: float, near: Replicas | None = None
) -> Replicas | None:
    """The fewest colocated replicas that meet the goal; None if none do. `near`: see `smallest`."""
    search = _Search(setup, trace, warmup_s, goal, TOGETHER)
    if not search.alone():
        return None
    guess = search.guess[0] if near is None else near["colocated"]
    fewest = _fewest(search.attained, guess, MOST_OF_GUESS * search.guess[0])
    return None if fewest is None else {"colocated": fewest}


def smallest(
    setup: Setup, trace: Trace, *, warmup_s: float, goal: float, near: Replicas | None = None
) -> Replicas | None:
    """The constant prefill and decode replicas with the fewest pods; None if none meet the goal.

    Of two fleets of equal size, the one with less prefill. It relies on two facts: more replicas of
    a role do not lower attainment, and prefill does not wait for decode. So the fewest prefill
    replicas follow from TTFT alone, and the fewest decode replicas from a fleet with prefill to
    spare. Between these, one more of prefill is tried as long as it may save two of decode.

    `near`: a fleet that may be close to the answer, such as that of another seed. The answer does
    not depend on it, only the time.
    """
    search = _Search(setup, trace, warmup_s, goal)
    guess = (
        (search.guess[0], search.guess[1]) if near is None else (near["prefill"], near["decode"])
    )
    if not search.alone():
        return None
    most = MOST_OF_GUESS * max(search.guess)
    first = _fewest(search.in_time, guess[0], most)
    if first is None:
        return None
    spare, fewest_decode = 2 * first + 2, None
    while fewest_decode is None:
        if spare > 2 * most:
            return None
        fewest_decode = _fewest(partial(search.attained, spare), guess[1], most)
        spare *= 2
    best = (spare // 2, fewest_decode)
    if near is not None and sum(guess) <= sum(best) and search.attained(*guess):
        best = guess
    prefill = first
    while prefill + fewest_decode < sum(best) + (prefill < best[0]):
        decode = sum(best) - prefill - (prefill >= best[0])
        fewest = _fewest(partial(search.attained, prefill), fewest_decode, decode)
        if fewest is not None:
            best = (prefill, fewest)
        prefill += 1
    return {"prefill": best[0], "decode": best[1]}


class _Search:
    """Constant fleets on one trace."""

    def __init__(
        self,
        setup: Setup,
        trace: Trace,
        warmup_s: float,
        goal: float,
        roles: Sequence[PoolName] = ROLES,
    ) -> None:
        self._setup, self._trace, self._warmup_s, self._goal = setup, trace, warmup_s, goal
        self._roles = roles
        self._prompts = replace(trace, output=[1] * len(trace))
        self._known: dict[tuple[int, ...], bool] = {}
        seconds = max(trace.end, 60.0)
        busy = figures.physical_pod_seconds(trace, setup, 0.0)
        self.guess = tuple(max(ceil(busy[role] / seconds), 1) for role in roles)
        """Replicas of each role that the work would keep busy, were it spread evenly."""

    def alone(self) -> bool:
        """Whether requests that never meet another one meet the goal: no fleet does better."""
        trace, work = self._trace, self._trace.computed_tokens()
        counted = [n for n, arrival in enumerate(trace.arrival) if arrival >= self._warmup_s]
        lengths = Counter((trace.prompt[n], trace.output[n], work[n]) for n in counted)
        apart, at = Trace([], [], [], []), 0.0
        for prompt, output, computed in lengths:
            apart.arrival.append(at)
            apart.prompt.append(prompt)
            apart.output.append(output)
            apart.cached.append(prompt - computed)
            at += self._longest_s(prompt, output)
        world = started(self._setup, apart, dict.fromkeys(self._roles, 1))
        world.advance(inf)
        met = figures.verdicts(world, 0.0)
        share = sum(
            count for count, (_, *both) in zip(lengths.values(), met, strict=True) if all(both)
        )
        return share / len(counted) >= self._goal

    def _longest_s(self, prompt: int, output: int) -> float:
        """More seconds than the request takes alone."""
        replica, profile = self._setup.replica, self._setup.replica.profile
        steps = ceil(prompt / replica.max_num_batched_tokens)
        prefill = steps * profile.prefill_base_s + profile.prefill_s(prompt)
        decode = output * profile.step_s(1, prompt + output)
        return prefill + replica.transfer_s(prompt) + decode + 1.0

    def in_time(self, prefill: int) -> bool:
        """Whether TTFT alone meets the goal: no answer goes to decode.

        The gateway's queue counts requests of each decode pod, so there are decode pods to spare.
        """
        return self._enough(self._prompts, (prefill, 4 * self.guess[1] + 4))

    def attained(self, *replicas: int) -> bool:
        """Whether so many replicas of each role meet both limits together."""
        for others, enough in self._known.items():
            pairs = list(zip(others, replicas, strict=True))
            if enough and all(other <= number for other, number in pairs):
                return True
            if not enough and all(other >= number for other, number in pairs):
                return False
        answer = self._known[replicas] = self._enough(self._trace, replicas)
        return answer

    def _enough(self, trace: Trace, replicas: tuple[int, ...]) -> bool:
        world = started(self._setup, trace, dict(zip(self._roles, replicas, strict=True)))
        tally = Tally(world, self._warmup_s)
        for look in range(1, LOOKS):
            world.advance(trace.end * look / LOOKS)
            tally.update()
            if tally.missed > 0 and 1 - tally.missed / tally.requests < self._goal - _ROUNDING:
                return False
        world.advance(inf)
        tally.update()
        return tally.met / tally.requests >= self._goal


class Tally:
    """Requests of a constant fleet that have met the SLO or are sure to miss it, so far."""

    def __init__(self, world: World, warmup_s: float) -> None:
        self._world = world
        self._next = bisect_left(world.trace.arrival, warmup_s)
        self._open: list[int] = []
        self.requests = len(world.trace) - self._next
        """All that count, to the end of the trace."""
        self.met = self.missed = 0

    def update(self) -> None:
        """Count what has been decided since the last call."""
        world, setup = self._world, self._world.setup
        arrival, first, last, output = (
            world.trace.arrival,
            world.first,
            world.last,
            world.trace.output,
        )
        undecided = []
        for request in chain(self._open, range(self._next, world.arrived)):
            # NaN, of what has not happened, is larger than nothing
            waited = (world.now if isnan(first[request]) else first[request]) - arrival[request]
            if waited > setup.ttft_s:
                self.missed += 1
            elif isnan(last[request]):
                undecided.append(request)
            elif (
                last[request] - first[request] <= setup.tpot_s * (output[request] - 1)
                or output[request] <= 1
            ):
                self.met += 1
            else:
                self.missed += 1
        self._open, self._next = undecided, max(world.arrived, self._next)


def _fewest(enough: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The fewest replicas that are enough, looked for around `guess`; None if `most` are not."""
    low, high, step = 0, min(guess, most), 1
    while not enough(high):
        if high == most:
            return None
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
