"""What one fleet asks of a GPU budget that fleets share.

Made in each round by `core/reconcile/bids.py`, collected by `shell/boards/budgets.py`, read by
`share.py` and `allocate.py`. All numbers are GPUs, unless said otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Fleet = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Bid:
    least: int
    """What a budget never takes: the minimum replicas of the spec, or all that the fleet runs if
    the scaling law does not size it or has no metrics."""
    wanted: int
    """What the fleet would hold without a shared budget; `least` or more."""
    held: int
    """What its pods hold now, those of old revisions and those that drain included, or will hold
    once the replicas that were written have their pods."""
    unit: int = 1
    """GPUs of the fleet's smallest replica: fewer are of no use to it."""
    worth: tuple[tuple[int, float], ...] = ()
    """(GPUs, requests per second within the SLO that the law predicts with them), more of both in
    each pair. Empty: unknown, and the fleet shares what the others' predicted gains leave over."""
    weight: float = 1.0
    """A good request of this fleet counts as so many: `gpuBudget.weight`."""
    hold_s: float = 0.0
    """How long GPUs that it was given stay with it, in seconds: its hold before going down."""

    def good(self, gpus: int) -> float:
        """Weighted requests per second within the SLO, with so many GPUs."""
        return self.weight * max((good for at, good in self.worth if at <= gpus), default=0.0)


Bids = Mapping[Fleet, Bid]
