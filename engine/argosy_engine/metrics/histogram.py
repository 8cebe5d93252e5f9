"""A histogram that takes the values of a whole step at once.

`prometheus_client`'s own takes one value a call, with a lock and a search of its buckets in Python:
for 256 tokens that costs a step as much as the scheduler does. Sequences that decode together have
equal gaps, so that here a step is mostly one search.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import accumulate
from math import inf
from threading import Lock

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from argosy_engine.metrics.table import Series

__all__ = ["StepHistogram"]


class StepHistogram:
    """One series, a collector for `CollectorRegistry.register`. Any thread may scrape it."""

    def __init__(self, row: Series, edges: list[float], labels: dict[str, str]) -> None:
        self._row, self._labels = row, labels
        self._edges = [*edges, inf]
        self._counts = [0] * len(self._edges)
        """Values in each bucket, without those of the buckets before it."""
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, values: Collection[float]) -> None:
        """All at once."""
        counted = Counter(values)
        with self._lock:
            for value, count in counted.items():
                self._counts[bisect_left(self._edges, value)] += count
                self._sum += value * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        with self._lock:
            totals, total = list(accumulate(self._counts)), self._sum
        edges = [floatToGoString(edge) for edge in self._edges]  # type: ignore[no-untyped-call]
        family = HistogramMetricFamily(self._row.name, self._row.help, labels=[*self._labels])
        buckets = list(zip(edges, totals, strict=True))
        family.add_metric([*self._labels.values()], buckets=buckets, sum_value=total)
        yield family
