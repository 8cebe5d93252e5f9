"""One role's size from load: the formula, the queue that exists, the requests in flight.

Estimates of demand and capacity come in as a model and a `Load`; `decide` takes the `Size`.
"""

from dataclasses import dataclass
from math import ceil

from argosy_operator.core.scaling.decision import Rule
from argosy_operator.core.scaling.observe import RoleSupply
from argosy_operator.core.scaling.size.model import MOST_REPLICAS, Model, carrying, smallest
from argosy_operator.core.scaling.size.prefill import PrefillModel

HYSTERESIS = 1.15
"""Going down is decided for this much more load. On the load and not on the count, because a band
on counts does nothing at 3 replicas and too much at 100.

A replica that carries 10 requests/s: at 19/s two are needed. They become one below 10/1.15 = 8.7/s,
and the second comes back above 10/s. Poisson noise of 40 arrivals (σ = 16 %) moves the measured
rate by about as much as the band is wide.
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What one role must serve."""

    rate: float
    """Planned requests per second, margins included."""
    prompt_tokens: float
    """Mean tokens of a prompt."""
    outstanding_prompt_tokens: float = 0.0
    """Prompt tokens that are queued or being prefilled now."""
    running: float = 0.0
    """Sequences in flight now."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """How long a queue may last, in seconds."""

    cold_s: float
    """Until a replica that is added now serves."""
    drain_s: float
    """The queue that is left then is worked off within this time."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many replicas one role's load needs."""

    up: int
    """Needed for `rate`."""
    down: int
    """Enough for `HYSTERESIS` times `rate`: going down is decided by this one."""
    rule: Rule
    model: Model
    rate: float
    """Planned requests per second."""
    reachable: bool
    """Whether a large enough pool meets the goal at all."""
    backlog_s: float = 0.0
    """Queued prefill work, in replica-seconds."""


def size(model: Model, load: Load, supply: RoleSupply, goal: float, horizon: Horizon) -> Size:
    """Replicas of one role for this load, at least 1. `goal` is the wanted share within the SLO."""
    rate = load.rate
    up, down = smallest(model, rate, goal), smallest(model, rate * HYSTERESIS, goal)
    reachable = model.reachable >= goal
    rule = Rule.DEMAND if reachable else Rule.SLO_UNREACHABLE
    queued_s, carried = 0.0, carrying(model, goal)
    if isinstance(carried, PrefillModel):
        prompts = load.outstanding_prompt_tokens / max(load.prompt_tokens, 1.0)
        queued_s = prompts * carried.mean_s
        floor = backlog(carried, queued_s, rate, supply, horizon)
        floor_rule = Rule.BACKLOG
    else:
        floor = carried.in_flight_floor(load.running)
        floor_rule = Rule.IN_FLIGHT
    floor = min(floor, MOST_REPLICAS)
    if floor > up:
        up, rule = floor, floor_rule
    return Size(up, max(up, down), rule, model, rate, reachable, queued_s)


def backlog(
    model: PrefillModel, queued_s: float, rate: float, supply: RoleSupply, horizon: Horizon
) -> int:
    """Replicas that work off the queue, 0 if it is gone before a new replica could be ready.

    `queued_s` is prefill work in replica-seconds, `rate` requests per second. The queue is the one
    that is left when new replicas are ready; they work it off within `horizon.drain_s`. Replicas
    that start now join halfway through the horizon on average.
    """
    load = model.load(rate)
    serving = supply.ready + supply.pending / 2
    left_s = queued_s + (load - serving) * horizon.cold_s
    if left_s <= 0 or queued_s / max(supply.ready, 1) <= model.limit_s:
        return 0
    return ceil(load + left_s / max(horizon.drain_s, horizon.cold_s))
