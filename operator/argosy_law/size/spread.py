"""How long prompts and answers are: a few lengths with their shares, from means or histograms.

`signals.lengths` keeps the histograms, `work.Work` holds a `Spread`, the models of the pools sum
over it.
"""

from math import exp, log, sqrt
from statistics import NormalDist

from argosy_law.observe import Buckets

NORMAL = NormalDist()
POINTS = 16
"""Equal-weight quantiles that stand for a distribution of which only two moments are known."""
EXACT = 5
"""Up to this length every whole number of tokens of a bucket is a length of its own: an answer of
two tokens pays a pause twice as dearly as one of three."""
PLACES = (1 / 6, 3 / 6, 5 / 6)
"""Where in a wider bucket, on a logarithmic scale, the lengths are that stand for it."""
BENT = 8.0
"""How far the lengths of a bucket may lean to one of its edges, as an exponent; 1 is even on a
logarithmic scale."""
HALVINGS = 14
"""Of the interval in which that exponent is looked for."""

Spread = tuple[tuple[float, float], ...]
"""(length in tokens, its share); shares sum up to 1."""
EDGES = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))[:16]
"""Upper edges of the gateways' histograms of lengths, in tokens."""
BEYOND = 10 * EDGES[-1]
"""Upper edge of the last bucket: no model takes a longer prompt."""


def alike(tokens: float) -> Spread:
    """All are equally long."""
    return ((tokens, 1.0),)


def lognormal(mean: float, squared: float) -> Spread:
    """Quantiles of the lognormal with this mean and about this second moment.

    The mean is exact. The second moment is too small, because the quantiles leave the tail out.
    """
    variation = max(squared / mean**2 - 1, 0.0) if mean else 0.0
    sigma = sqrt(log(1 + variation))
    raw = [exp(sigma * NORMAL.inv_cdf((i + 0.5) / POINTS)) for i in range(POINTS)]
    scale = mean * POINTS / sum(raw)
    return tuple((scale * r, 1 / POINTS) for r in raw)


def of_buckets(buckets: Buckets, mean: float) -> Spread:
    """The lengths in these buckets, which lean to their edges until they have this mean.

    If no lean gives it, the nearest one is taken. `buckets` must hold a request; the lower edge of
    a bucket is the greatest smaller one of `EDGES`.
    """
    low, high = 1 / BENT, BENT
    narrow, wide = _parted(buckets)
    left = mean - mean_of(narrow)
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        if mean_of(_leaning(wide, middle)) > left:
            low = middle
        else:
            high = middle
    return (*narrow, *_leaning(wide, sqrt(low * high)))


def mean_of(spread: Spread) -> float:
    """Mean length, in tokens."""
    return sum(tokens * share for tokens, share in spread)


def _parted(buckets: Buckets) -> tuple[Spread, list[tuple[float, float, float]]]:
    """Lengths of the narrow buckets, and (lower edge, upper over lower, share) of the others."""
    total = sum(count for _, count in buckets)
    narrow: list[tuple[float, float]] = []
    wide = []
    for upper, count in buckets:
        lower = max((edge for edge in EDGES if edge < upper), default=0.0)
        if upper <= EXACT:
            lengths = range(int(lower) + 1, int(upper) + 1)
            narrow += [(float(n), count / total / len(lengths)) for n in lengths]
        else:
            wide.append((lower, upper / lower, count / total))
    return tuple(narrow), wide


def _leaning(wide: list[tuple[float, float, float]], lean: float) -> Spread:
    """Lengths of wide buckets that lean to their upper (below 1) or lower edges (above 1)."""
    places = [place**lean for place in PLACES]
    return tuple(
        (lower * ratio**place, share / len(places))
        for lower, ratio, share in wide
        for place in places
    )
