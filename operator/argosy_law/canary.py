"""Whether a new revision meets the SLO as the old one does, by the verdicts of both in a canary.

Two questions about one number, the share of requests that miss in the new revision less that in the
old one: has it exceeded TOLERANCE (LOST), or is it shown to be below (WON)? While neither is shown
the canary is UNDECIDED, and goes on. Everything is computed anew from the samples in each round, so
nothing has to be kept.

LOST is asked again with every sample for as long as the canary lasts, so it must be valid at any
time: it is a test by betting (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random
variables by betting"). In each bin the difference d of both shares is one bet against "the new one
misses at most TOLERANCE more". The wealth, the mean over STAKES λ of the product of all
1 + λ·(d - TOLERANCE), exceeds 1/level with a probability of at most `level` if that holds. Requests
of one bin may depend on each other in any way: a pod that stalls for a bin loses one bet, not one
for each request. What hits both revisions in a bin, such as a burst, is in neither's favour.

A worked number: of a new revision whose requests all miss beside an old one without misses, each
bin multiplies the wealth of λ = 0.9 by 1 + 0.9 · 0.95 = 1.855, so that 1/0.05 = 20 is reached
after 6 bins, 90 s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import floor, sqrt
from statistics import NormalDist

from argosy_law.signals.samples import VERDICTS, Series

FAULTS = "argosy_gateway_faults_total"
TOLERANCE = 0.05
"""How much more often requests of the new revision may miss. Less could not be shown by the few
hundred requests that a canary of a small fleet gets in a quarter of an hour."""
STAKES = (0.3, 0.6, 0.9)
"""Shares of the wealth that are bet in each bin. Small ones win of small differences."""
BIN_S = 15.0
"""The shortest bin: a scrape interval is not shorter in most clusters."""
LONGEST_S = 6 * 3600.0
"""Verdicts of a canary count for so long after it began: what holds for longer waits for people."""


class Verdict(StrEnum):
    """What a comparison says."""

    LOST = "Lost"
    WON = "Won"
    UNDECIDED = "Undecided"


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests of one revision. One that it failed and other pods made good has missed."""

    met: float = 0.0
    missed: float = 0.0

    @property
    def count(self) -> float:
        """All of them."""
        return self.met + self.missed

    @property
    def share(self) -> float:
        """Share of them that missed; 0 of none."""
        return self.missed / self.count if self.count else 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.met + other.met, self.missed + other.missed)


@dataclass(frozen=True, slots=True)
class Bin:
    """The requests of both revisions that ended in the same interval."""

    new: Tally = Tally()
    old: Tally = Tally()

    @property
    def compares(self) -> bool:
        """Whether it has requests of both."""
        return bool(self.new.count and self.old.count)

    def __add__(self, other: "Bin") -> "Bin":
        return Bin(self.new + other.new, self.old + other.old)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict and its figures."""

    verdict: Verdict
    new: Tally
    old: Tally
    wealth: float
    """The most that was won so far by betting that the new one is worse; LOST from 1/level on."""
    worst: float
    """How much more often the new one misses, at most, with the confidence 1 - level."""

    @property
    def message(self) -> str:
        """The figures, for people."""
        return describe(self.new, self.old)


def describe(new: Tally, old: Tally) -> str:
    """Return how many requests of both revisions met the SLO, for people."""
    return (
        f"{new.met:.0f} of {new.count:.0f} requests of the new revision met the SLO, and "
        f"{old.met:.0f} of {old.count:.0f} of the old one in the same time"
    )


def compare(bins: Iterable[Bin], *, level: float, ended: bool) -> Comparison:
    """Compare both revisions. `ended`: the canary has lasted as long as it was to, and may win."""
    counted = [one for one in bins if one.compares]
    total = sum(counted, Bin())
    wealth = _wealth([one.new.share - one.old.share for one in counted])
    worst = _worst(total.new, total.old, NormalDist().inv_cdf(1 - level))
    verdict = Verdict.UNDECIDED
    if wealth >= 1 / level:
        verdict = Verdict.LOST
    elif ended and counted and worst < TOLERANCE:
        verdict = Verdict.WON
    return Comparison(verdict, total.new, total.old, wealth, worst)


def _wealth(differences: Sequence[float]) -> float:
    """Return the most that the bets have won at any time."""
    purses, most = [1.0] * len(STAKES), 1.0
    for difference in differences:
        bet = difference - TOLERANCE
        purses = [purse * (1 + stake * bet) for purse, stake in zip(purses, STAKES, strict=True)]
        most = max(most, sum(purses) / len(purses))
    return most


def _worst(new: Tally, old: Tally, z: float) -> float:
    """Return the upper end of Newcombe's interval for the difference of two shares (1998, method
    10), which is sound also for few requests and shares near 0."""
    if not new.count or not old.count:
        return 1.0
    above = _wilson(new, z) - new.share
    below = old.share - _wilson(old, -z)
    return new.share - old.share + sqrt(above**2 + below**2)


def _wilson(tally: Tally, z: float) -> float:
    """Return one end of Wilson's interval of the share: the upper one for a positive z."""
    n, p = tally.count, tally.share
    spread = z * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return (p + z**2 / (2 * n) + spread) / (1 + z**2 / n)


def read_bins(series: Iterable[Series], new: str, *, since: float, bin_s: float) -> list[Bin]:
    """Return the verdicts of both revisions since then, by interval; `new` is the one that comes.

    An interval in which a gateway was not scraped, or began anew, has nothing of that gateway, of
    either revision.
    """
    total: dict[int, Bin] = {}
    for samples in _by_gateway(series).values():
        levels = _levels(samples, since, bin_s)
        for at in sorted(levels):
            if (grown := _grown(levels.get(at - 1, {}), levels[at], samples, new)) is not None:
                total[at] = total.get(at, Bin()) + grown
    return [total[at] for at in sorted(total)]


def counts_by_revision(series: Iterable[Series]) -> bool:
    """Whether a gateway counts verdicts by revision. Those of older releases do not, and their
    series look like those of requests that no pod was asked for."""
    return any(one.name == VERDICTS and one.labels.get("revision") for one in series)


def _by_gateway(series: Iterable[Series]) -> Mapping[str, list[Series]]:
    found: dict[str, list[Series]] = {}
    for one in series:
        if one.name in (VERDICTS, FAULTS) and one.labels.get("revision") and one.usable:
            found.setdefault(one.labels.get("pod", ""), []).append(one)
    return found


def _levels(series: list[Series], since: float, bin_s: float) -> dict[int, dict[int, float]]:
    """Return the last value in each interval, by the place of the series."""
    found: dict[int, dict[int, float]] = {}
    for place, one in enumerate(series):
        for at, value in one.samples:
            if since - bin_s <= at <= since + LONGEST_S:
                found.setdefault(floor(at / bin_s), {})[place] = value
    return found


def _grown(
    before: Mapping[int, float], after: Mapping[int, float], series: list[Series], new: str
) -> Bin | None:
    """Return what one gateway counted in an interval; None if a counter began or fell in it."""
    if any(place not in before or value < before[place] for place, value in after.items()):
        return None
    total = Bin()
    for place, value in after.items():
        labels, grown = series[place].labels, value - before[place]
        met = series[place].name == VERDICTS and labels.get("ttft") == labels.get("tpot") == "ok"
        tally = Tally(met=grown) if met else Tally(missed=grown)
        total += Bin(new=tally) if labels["revision"] == new else Bin(old=tally)
    return total
