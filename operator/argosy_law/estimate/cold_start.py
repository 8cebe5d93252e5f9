"""How long a new replica takes from "wanted" to "ready", and the durations that follow from it.

The snapshot's measured starts come in with `RoleSupply`; `decide`, `pace` and `size` use the rest.
"""

from argosy_law.goals import Windows
from argosy_law.observe import RoleSupply

NEWEST = 20
"""Starts that count: enough for a 90th percentile, few enough to follow a faster image."""


def cold_start_s(supply: RoleSupply, windows: Windows) -> float:
    """90th percentile of a role's newest measured starts, in seconds.

    `autoscaling.coldStart` is used until one was measured. The percentile is by nearest rank: of
    20 starts the 18th, so that two slow starts in twenty do not raise it.
    """
    starts = sorted(supply.cold_starts_s[-NEWEST:])
    return starts[int(0.9 * (len(starts) - 1) + 0.5)] if starts else windows.cold_start_s


def forecast_horizon_s(supply: tuple[RoleSupply, ...], windows: Windows) -> float:
    """How far ahead demand is forecast: until a replica that is added now would serve.

    The slowest role's start, the interval until the next decision, and the age of a sample.
    """
    slowest_s = max(cold_start_s(role, windows) for role in supply)
    return slowest_s + windows.interval_s + windows.scrape_s


def removal_hold_s(supply: RoleSupply, windows: Windows) -> float:
    """How long fewer replicas must suffice before one is removed.

    At least two cold starts: a replica that is missed takes one to come back, and the load must
    have been seen for longer than that.
    """
    return max(windows.down_hold_s, 2 * cold_start_s(supply, windows))
