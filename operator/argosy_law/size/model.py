"""The model of a role's pool, and the fewest replicas with which it meets a goal."""

from dataclasses import dataclass
from math import ceil

from argosy_law.goals import Order
from argosy_law.observe import RoleName
from argosy_law.size.colocated import ColocatedModel, colocated_model
from argosy_law.size.decode import DecodeModel, decode_model
from argosy_law.size.prefill import PrefillModel, prefill_model
from argosy_law.size.work import Replica, Work

Model = PrefillModel | DecodeModel | ColocatedModel

MOST_REPLICAS = 10_000
"""Where the search for a number of replicas ends."""
BELOW_REACHABLE = 0.005
"""The goal is lowered to this much below what any number of replicas could reach."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pool must meet."""

    ttft_s: float
    """TTFT without the time outside the engines."""
    tpot_s: float
    """TPOT."""
    goal: float
    """Share of requests that must meet both limits."""
    pause_s: float = 0.0
    """Seconds of a KV transfer, which an answer loses once."""
    order: Order = "fifo"
    """In which prompts are served that wait."""


def model_of(role: RoleName, replica: Replica, work: Work, limits: Limits) -> Model:
    """The queueing model of a pool of this role."""
    match role:
        case "prefill":
            return prefill_model(replica, work, limits.ttft_s, limits.order)
        case "decode":
            return decode_model(replica, work, limits.tpot_s, limits.pause_s)
        case "colocated":
            return colocated_model(replica, work, limits.ttft_s, limits.tpot_s, limits.order)


def carrying(model: Model, goal: float) -> Model:
    """The model that sizes the pool: relaxed if no request meets the limit even alone."""
    return model if model.reachable > 0 else model.relaxed(goal)


def smallest(model: Model, rate: float, goal: float) -> int:
    """Fewest replicas whose predicted attainment is at least `goal` at `rate` requests/s; ≥ 1.

    The goal is lowered to just below what any number could reach, so that an SLO which a request
    alone misses does not grow the pool without end. If no request can meet it, the pool carries its
    load within a relaxed limit.
    """
    if rate <= 0:
        return 1
    model = carrying(model, goal)
    # What a request alone gets: no number of replicas gives more.
    reachable = min(model.reachable, model.attainment(1, rate * 1e-9))
    if reachable <= 0:
        return 1
    wanted = min(goal, reachable - BELOW_REACHABLE)
    low, high = 0, min(max(1, ceil(model.load(rate))), MOST_REPLICAS)
    while model.attainment(high, rate) < wanted and high < MOST_REPLICAS:
        low, high = high, min(2 * high, MOST_REPLICAS)
    while high - low > 1:
        middle = (low + high) // 2
        if model.attainment(middle, rate) >= wanted:
            high = middle
        else:
            low = middle
    return high
