"""Histograms of lengths: from cumulative counters to requests per bucket, and their memory.

`samples.assemble` reads them, `lengths` keeps them, `size.work` makes lengths of them. A window
holds at least `ENOUGH` requests: at a low rate it reaches further back than its time.
"""

from math import exp, inf

from argosy_law.goals import Windows
from argosy_law.observe import Buckets
from argosy_law.size.work import BEYOND

ENOUGH = 1000.0
"""Requests of a window. The share of a bucket that holds a tenth of them has a standard error of
√(0.1 · 0.9/1000) = 1 %."""
FEW = 20.0
"""Requests from which a histogram is used at all."""


def of_growth(grown: dict[float, float]) -> Buckets:
    """Requests per bucket of growths of cumulative counters, by their upper edges."""
    buckets, below = [], 0.0
    for edge in sorted(grown):
        count = grown[edge] - below
        if count > 0:
            buckets.append((edge if edge < inf else BEYOND, count))
            below = grown[edge]
    return tuple(buckets)


def remembered(before: Buckets, window: Buckets, windows: Windows) -> Buckets:
    """The buckets after a round whose last `windows.lengths_s` brought `window`.

    Each round adds the part of the window that is new and forgets as much, but keeps `ENOUGH`.
    """
    if not before:
        return window
    new = windows.interval_s / windows.lengths_s
    kept, held = exp(-new), total(before)
    by_count = (ENOUGH - new * total(window)) / held
    kept = min(max(kept, by_count), 1.0)
    sums = {edge: kept * count for edge, count in before}
    for edge, count in window:
        sums[edge] = sums.get(edge, 0.0) + new * count
    return tuple((edge, count) for edge, count in sorted(sums.items()) if count > 1e-6)


def total(buckets: Buckets) -> float:
    """Requests in all buckets."""
    return sum(count for _, count in buckets)
