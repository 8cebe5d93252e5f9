"""One role's size from load: the formula, the queue that exists, the requests in flight.

Between the estimators (`demand`, `capacity`) and the chain of `decide`.
"""

from dataclasses import dataclass
from math import ceil

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Rule
from argosy_operator.core.scaling.observe import RoleSupply
from argosy_operator.core.scaling.size.formulas import (
    Model,
    PrefillModel,
    Replica,
    Work,
    carrying,
    colocated_model,
    decode_model,
    prefill_model,
    smallest,
)
from argosy_operator.core.scaling.state import Gauges

HYSTERESIS = 1.15
"""Going down is decided for this much more load. On the load, not on the count: a band on counts
does nothing at 3 replicas and too much at 100."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pool must meet: X' = TTFT without the control round trip, Y' = TPOT without the KV
    transfer's share, and the share of requests that must meet this pool's limit."""

    ttft_s: float
    tpot_s: float
    goal: float


@dataclass(frozen=True, slots=True)
class Size:
    """`up`: needed for `rate` requests per second. `down`: enough for 15 % more.

    `reachable`: a pool large enough meets the goal, whatever rule bound the number."""

    up: int
    down: int
    rule: Rule
    model: Model
    rate: float
    reachable: bool
    backlog_s: float = 0.0


def model_of(role: RoleName, replica: Replica, work: Work, limits: Limits) -> Model:
    match role:
        case "prefill":
            return prefill_model(replica, work, limits.ttft_s)
        case "decode":
            return decode_model(replica, work, limits.tpot_s)
        case "colocated":
            return colocated_model(replica, work, limits.ttft_s, limits.tpot_s)


def size(
    model: Model,
    work: Work,
    rate: float,
    gauges: Gauges,
    supply: RoleSupply,
    *,
    goal: float,
    cold_s: float,
    drain_s: float,
) -> Size:
    """Replicas of one role for `rate` requests per second (margins included), at least 1."""
    up, down = smallest(model, rate, goal), smallest(model, rate * HYSTERESIS, goal)
    reachable = model.reachable >= goal
    rule = Rule.DEMAND if reachable else Rule.SLO_UNREACHABLE
    queued_s, carried = 0.0, carrying(model, goal)
    if isinstance(carried, PrefillModel):
        prompts = (gauges.outstanding_prompt_tokens or 0.0) / max(work.prompt, 1.0)
        queued_s = prompts * carried.mean_s
        floor = backlog(carried, queued_s, supply, rate, cold_s=cold_s, drain_s=drain_s)
        floor_rule = Rule.BACKLOG
    else:
        floor = carried.in_flight_floor(gauges.running or 0.0)
        floor_rule = Rule.IN_FLIGHT
    if floor > up:
        up, rule = floor, floor_rule
    return Size(up, max(up, down), rule, model, rate, reachable, queued_s)


def backlog(
    model: PrefillModel,
    queued_s: float,
    supply: RoleSupply,
    rate: float,
    *,
    cold_s: float,
    drain_s: float,
) -> int:
    """Replicas that work off, within `drain_s`, the queue there will be when they are ready.

    `queued_s` is prefill work in replica-seconds. A queue that is gone before a new replica could
    be ready buys nothing: 0. Starting replicas join halfway through the horizon on average.
    """
    load = model.load(rate)
    serving = supply.ready + supply.pending / 2
    left_s = queued_s + (load - serving) * cold_s
    if left_s <= 0 or queued_s / max(supply.ready, 1) <= model.limit_s:
        return 0
    return ceil(load + left_s / max(drain_s, cold_s))
