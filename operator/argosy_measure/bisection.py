"""The highest rate at which enough requests are within the limits, by bisection of rates.

Pure: a probe is a function, and time is a number.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from argosy_measure.client import Request
from argosy_measure.score import Limits, Row, wilson

_Z = 2.576
"""Of an interval that holds the true share in 99 of 100 probes: it is looked at many times during a
probe, which makes it wrong more often than the 95 of 100 of a single look."""
_LEAST_JUDGED = 20
"""Wilson's interval of fewer requests leaves out a goal of 0.9 too often."""
_LOWEST = 1 / 64
"""Of the first rate: no lower one is probed."""
_MOST_PROBES = 24


@dataclass(frozen=True, slots=True)
class Probe:
    """What one rate came to."""

    rate: float
    """Requests per second."""
    goal: float
    met: int
    of: int
    """Requests that were judged."""
    seconds: float
    late: bool = False
    """Whether the client itself was too slow."""

    @property
    def attainment(self) -> float:
        """The share that was met; 0 of none."""
        return self.met / self.of if self.of else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the attainment."""
        return wilson(self.met, self.of, _Z)

    @property
    def verdict(self) -> bool | None:
        """Whether the goal is met; None while the interval holds it, or too few were judged."""
        if self.of < _LEAST_JUDGED:
            return None
        low, high = self.interval
        return True if low >= self.goal else False if high < self.goal else None


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    rate: float
    """The highest rate whose measured attainment is at the goal; 0: none is."""
    probes: tuple[Probe, ...]

    @property
    def high(self) -> float:
        """The lowest rate that is certainly too high; infinite: none is."""
        return min((p.rate for p in self.probes if p.verdict is False), default=math.inf)

    @property
    def low(self) -> float:
        """The highest rate below it that certainly meets the goal; 0: none does."""
        met = (p.rate for p in self.probes if p.verdict and p.rate < self.high)
        return max(met, default=0.0)

    @property
    def undecided(self) -> tuple[float, ...]:
        """Rates whose interval holds the goal, in their order."""
        return tuple(sorted(p.rate for p in self.probes if p.verdict is None))


async def search(
    probe: Callable[[float], Awaitable[Probe]],
    start: float,
    precision: float,
    most: float = math.inf,
) -> Found:
    """Double or halve the rate until one meets the goal and one does not, then bisect between them.

    It ends when they differ by the share `precision`, or when `most`, above which no rate is
    probed, meets the goal. A probe that is undecided counts by its
    measured attainment.
    """
    low, high, rate = 0.0, math.inf, min(start, most)
    probes: list[Probe] = []
    while len(probes) < _MOST_PROBES:
        got = await probe(rate)
        probes.append(got)
        meets = got.attainment >= got.goal if got.verdict is None else got.verdict
        low, high = (rate, high) if meets else (low, rate)
        if high <= low * (1 + precision) or low >= most or high < 2 * _LOWEST * start:
            break
        middle = math.sqrt(low * high) if low else high / 2
        rate = min(low * 2, most) if high == math.inf else middle
    return Found(low, tuple(probes))


def summarise(found: Found) -> Sequence[str]:
    """Say what the search does not know, in sentences; none: it knows all."""
    said = []
    if found.undecided:
        rates = ", ".join(f"{rate:.3g}" for rate in found.undecided)
        said.append(
            f"Undecided at {rates} requests/s: the interval of the attainment holds the goal. A "
            "longer --probe tells more."
        )
    if any(probe.late for probe in found.probes):
        said.append(
            "The client itself sent requests late: this machine is too slow for these rates, and "
            "the server may carry more."
        )
    if found.high == math.inf:
        said.append("No probed rate was certainly too high.")
    return said


class Judge:
    """Judges the requests of a probe in the order of sending, whatever order they end in.

    Short answers end first. A share of those that have ended would be too good, so a request counts
    when all before it are judged. One that is in flight after the last moment at which it could
    have met the limits has missed them.
    """

    def __init__(self, limits: Limits, count_from_s: float) -> None:
        self.met = self.of = 0
        self._limits, self._count_from_s = limits, count_from_s
        self._sent: list[tuple[str, float, float]] = []
        self._ended: dict[str, Row] = {}
        self._next = 0

    def note_sent(self, request: Request, at_s: float) -> None:
        """Note that a request was sent, at this time after the probe began."""
        limits = self._limits
        until_s = at_s + limits.ttft_s + limits.tpot_s * max(request.tokens - 1, 0)
        self._sent.append((request.id, at_s, until_s))

    def note_ended(self, row: Row) -> None:
        """Note that an answer ended, whole or not."""
        self._ended[row.id] = row

    def judge(self, now_s: float) -> bool:
        """Judge what can be judged; whether that is all that was sent."""
        while self._next < len(self._sent):
            id, at_s, until_s = self._sent[self._next]
            row = self._ended.pop(id, None)
            if row is None and now_s <= until_s:
                return False
            self._next += 1
            if at_s >= self._count_from_s:
                self.of += 1
                self.met += row is not None and row.meets(self._limits)
        return True
