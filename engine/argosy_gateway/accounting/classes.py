"""The classes of requests of one fleet: their limits and their order. Pure.

`cli` makes them, a request names one in `x-argosy-class`; `metrics` judges by its limits, the queue
and the engines serve by its priority.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from argosy_gateway.accounting.verdicts import Slo

__all__ = ["DEFAULT_CLASS", "SloClass", "classes_of"]

DEFAULT_CLASS = "default"
"""Of requests that name none: the SLO itself, with priority 0."""


@dataclass(frozen=True, slots=True)
class SloClass:
    """One class of requests."""

    name: str
    slo: Slo | None
    """None only for DEFAULT_CLASS of a fleet without an SLO."""
    priority: int = 0
    """Lower goes first."""


def classes_of(slo: Slo | None, more: Iterable[SloClass] = ()) -> Mapping[str, SloClass]:
    """All classes by name, DEFAULT_CLASS first."""
    return {one.name: one for one in (SloClass(DEFAULT_CLASS, slo), *more)}
