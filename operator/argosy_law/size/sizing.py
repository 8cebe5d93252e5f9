"""One role's size from load: the formula, the queue that exists, the requests in flight.

Estimates of demand and capacity come in as a model and a `Load`; `decide` takes the `Size`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from argosy_law.decision import Rule
from argosy_law.goals import Goals
from argosy_law.observe import RoleName, RoleSupply
from argosy_law.size.joint import Demanded, fewest
from argosy_law.size.model import MOST_REPLICAS, Model, carrying
from argosy_law.size.prefill import PrefillModel

HYSTERESIS = 1.15
"""Going down is decided for this much more load. On the load and not on the count, because a band
on counts does nothing at 3 replicas and too much at 100.

A replica that carries 10 requests/s: at 19/s two are needed. They become one below 10/1.15 = 8.7/s,
and the second comes back above 10/s. Poisson noise of 40 arrivals (σ = 16 %) moves the measured
rate by about as much as the band is wide.
"""

CATCHING_UP, CATCHING_UP_LEAST = 0.25, 4
"""Most replicas that are added for a queue: a quarter of those that the load keeps busy, or
four. A burst that is shorter than a start leaves a queue that no replica reaches in time."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one role must serve."""

    rate: float
    """Planned requests per second, margins included."""
    prompt_tokens: float
    """Mean tokens of a prompt that prefill computes."""
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
    patience_s: float
    """A queue that is worked off within this time loses no request: the TTFT limit."""
    started_s: float = 0.0
    """For how long all pending replicas have been starting, at least."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Replicas of one role that its planned load asks for."""

    up: int
    down: int
    """For `HYSTERESIS` times the load."""


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
    """Work of the queued prompts in this role, in replica-seconds."""
    share: float = 1.0
    """Predicted share of requests within the role's limit, with what the load alone needs."""


def counts(
    models: Mapping[RoleName, Model],
    loads: Mapping[RoleName, Load],
    supplies: Mapping[RoleName, RoleSupply],
    goals: Goals,
    goal: float,
) -> dict[RoleName, Counts]:
    """What all roles need together for the share `goal` within the SLO, at the lowest cost."""

    def needed(factor: float) -> tuple[int, ...]:
        pools = tuple(
            Demanded(
                models[role], loads[role].rate * factor, supply.gpus_per_replica * goals.price(role)
            )
            for role, supply in supplies.items()
        )
        return fewest(pools, goal)

    pairs = zip(needed(1.0), needed(HYSTERESIS), strict=True)
    return {role: Counts(*pair) for role, pair in zip(supplies, pairs, strict=True)}


def size(
    model: Model, load: Load, needed: Counts, supply: RoleSupply, goal: float, horizon: Horizon
) -> Size:
    """Replicas of one role, at least 1: those of its load, its queue and its requests in flight."""
    rate, up, down = load.rate, needed.up, needed.down
    reachable = model.reachable >= goal
    rule = Rule.DEMAND if reachable else Rule.SLO_UNREACHABLE
    carried = carrying(model, goal)
    if not isinstance(carried, PrefillModel):
        floor = min(carried.in_flight_floor(load.running), MOST_REPLICAS)
        if floor > up:
            up, rule = floor, Rule.IN_FLIGHT
    prompts = load.outstanding_prompt_tokens / max(load.prompt_tokens, 1.0)
    queued_s = prompts * carried.load(1.0)
    floor = min(backlog(carried, queued_s, rate, supply, horizon), MOST_REPLICAS)
    if floor > up:
        up, rule = floor, Rule.BACKLOG
    share = model.attainment(needed.up, rate)
    return Size(up, max(up, down), rule, model, rate, reachable, queued_s, share)


def backlog(
    model: Model, queued_s: float, rate: float, supply: RoleSupply, horizon: Horizon
) -> int:
    """Replicas that work off the queue, 0 if it is gone before a new replica could be ready.

    `queued_s` is work of this role in replica-seconds, `rate` requests per second. The queue is the
    one that is left when a replica that is added now is ready: until then it grows by what the
    ready ones do not serve, and replicas that have been starting serve for that much longer.
    """
    load = model.load(rate)
    ahead_s = supply.pending * min(horizon.started_s, horizon.cold_s)
    left_s = queued_s + (load - supply.ready) * horizon.cold_s - ahead_s
    if left_s <= 0 or queued_s / max(supply.ready, 1) <= horizon.patience_s:
        return 0
    return ceil(load + min(left_s / horizon.drain_s, max(CATCHING_UP * load, CATCHING_UP_LEAST)))
