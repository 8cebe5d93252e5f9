"""What one fleet asks of a GPU budget that fleets share.

Made in each round by `core/reconcile/bids.py`, collected by `shell/budgets.py`, read by
`allocate.py`. All numbers are GPUs.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bid:
    least: int
    """Held at the minimum replicas of the spec. A budget never takes these."""
    wanted: int
    """What the fleet would hold without a shared budget; `least` or more."""
    held: int
    """What its pods hold now, those of old revisions and those that drain included, or will hold
    once the replicas that were written have their pods."""
    unit: int = 1
    """GPUs of the fleet's smallest replica: fewer are of no use to it."""
