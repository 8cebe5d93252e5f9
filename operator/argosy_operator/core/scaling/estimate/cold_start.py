"""How long a new replica takes from "wanted" to "ready".

The snapshot's measured starts come in with `RoleSupply`; horizons and holds are derived from it.
"""

from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import RoleSupply

NEWEST = 20
"""Starts that count: enough for a 90th percentile, few enough to follow a faster image."""


def cold_start_s(supply: RoleSupply, windows: Windows) -> float:
    """90th percentile of a role's newest measured starts, in seconds.

    `autoscaling.coldStart` is used until one was measured. The percentile is the nearest rank: of
    20 starts the 18th, so that two slow starts in twenty do not move it.
    """
    starts = sorted(supply.cold_starts_s[-NEWEST:])
    return starts[int(0.9 * (len(starts) - 1) + 0.5)] if starts else windows.cold_start_s
