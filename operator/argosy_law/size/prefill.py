"""Prefill: from load to the share of requests whose first token comes in time.

A queue of several servers, M/G/n, in one of two orders. In the order of arrival, waiting times have
the tail of Erlang C with the correction of Kingman, Allen and Cunneen, which is exact for M/M/n. By
deadline, a request that is late anyway waits until nothing else does (designs/0009): for the others
that is a queue whose customers give up, M/M/n+D. Both are one formula, `share_waiting`. `sizing`
calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf

from argosy_law.goals import Order
from argosy_law.size.work import RELAXED, Replica, Work

LARGEST_EXPONENT = 600.0
"""Of e, in doubles; beyond it the share that waits is 0 or 1."""


def erlang_b(servers: int, load: float) -> float:
    """Probability that an arrival is lost in M/M/n/n with offered load in servers (Erlang B)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def share_waiting(servers: int, load: float, at_least: float, patience: float = inf) -> float:
    """Probability that an arrival would wait longer than `at_least` in M/M/n+D.

    Times are in mean service times. Who would wait longer than `patience` is not served among the
    others; ∞ is the plain M/M/n, whose load must be below `servers`. With the load a, n servers and
    the patience d, the virtual wait has the density a·p·e^(−(n − a)w) up to d and falls with
    e^(−nw) beyond it; p is the probability that exactly n − 1 servers are busy, and all sum up to 1
    (Gnedenko and Kovalenko, Introduction to Queueing Theory, 1989; Baccelli and Hebuterne, 1981).
    """
    return shares_waiting(servers, load, (at_least,), patience)[0]


def shares_waiting(
    servers: int, load: float, waits: Sequence[float], patience: float = inf
) -> list[float]:
    """`share_waiting` of several waits. What they have in common is computed once."""
    if load <= 0:
        return [0.0] * len(waits)
    room = servers - load
    if patience == inf and room <= 0:
        return [1.0] * len(waits)
    scale = 0.0
    """Of all densities, so that none overflows where the load exceeds the servers."""
    if room < 0:
        scale = room * patience

    def above(t: float) -> float:
        """∫ of the density above t, over a·p and scaled."""
        if t >= patience:
            return _e(scale - room * patience - servers * (t - patience)) / servers
        if patience == inf:
            return _e(-room * t) / room
        end = _e(scale - room * patience)
        if abs(room) * (patience - t) < 1e-9:
            return (patience - t) * end + end / servers
        return (_e(scale - room * t) - end) / room + end / servers

    busy = load * erlang_b(servers - 1, load)
    whole = _e(scale) + busy * above(0.0)
    return [min(busy * above(wait) / whole, 1.0) for wait in waits]


def _e(exponent: float) -> float:
    return exp(max(min(exponent, LARGEST_EXPONENT), -LARGEST_EXPONENT))


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """TTFT of a prefill pool: a queue that `replicas` servers work off."""

    services: tuple[tuple[float, float], ...]
    """(seconds to prefill a prompt alone, share of the prompts)."""
    mean_s: float
    """Mean time that a prompt takes of a replica, E[S]."""
    variation: float
    """E[S²]/E[S]²: 1 if all take as long, 2 for an exponential distribution."""
    limit_s: float
    """TTFT limit, without the time outside the engines."""
    order: Order = "fifo"
    """Which of those that wait goes next."""

    @property
    def reachable(self) -> float:
        """Share of prompts that meet the limit without any queue."""
        return min(sum(share for s, share in self.services if s <= self.limit_s), 1.0)

    def relaxed(self, goal: float) -> "PrefillModel":
        """The same pool with a limit that the share `goal` of prompts alone meets easily."""
        below, lone_s = 0.0, 0.0
        for seconds, share in sorted(self.services):
            below, lone_s = below + share, seconds
            if below >= goal - 1e-9:
                break
        return replace(self, limit_s=max(self.limit_s, RELAXED * lone_s))

    def load(self, rate: float) -> float:
        """Offered load in replicas."""
        return rate * self.mean_s

    def attainment(self, replicas: int, rate: float) -> float:
        """P(TTFT ≤ limit) with `replicas` servers at `rate` requests per second."""
        load = self.load(rate)
        if self.mean_s <= 0:
            return self.reachable
        # Waits are longer by (1 + Cs²)/2 than with exponential services (Kingman).
        unit_s = self.mean_s * self.variation / 2
        reachable, slacks = 0.0, []
        for seconds, share in self.services:
            if seconds <= self.limit_s:
                reachable += share
                slacks.append(((self.limit_s - seconds) / unit_s, share))
        if self.order == "fifo":
            waiting = shares_waiting(replicas, load, [slack for slack, _ in slacks])
            late = sum(wait * share for wait, (_, share) in zip(waiting, slacks, strict=True))
        else:  # who can wait least goes first, so that all are late as often
            patience = sum(slack * share for slack, share in slacks) / max(reachable, 1e-9)
            late = reachable * share_waiting(replicas, load, patience, patience)
        return max(min(reachable - late, 1.0), 0.0)


def prefill_model(
    replica: Replica, work: Work, limit_s: float, order: Order = "fifo"
) -> PrefillModel:
    """The model of a prefill pool with this TTFT limit, in seconds.

    A prompt that waits shares its step with others until the step is full, so that each takes only
    its part of the step's base. The second moment is that of the measured lengths: the few lengths
    that stand for all of them leave out the tail, which makes the wait.
    """
    spread, per_token = work.computed_spread, replica.per_prompt_token_s
    services = tuple((replica.prefill_s(length), share) for length, share in spread)
    shared = [(replica.shared_s(length), share) for length, share in spread]
    mean = sum(s * share for s, share in shared)
    left_out = work.computed_squared - sum(length**2 * share for length, share in spread)
    second = sum(s * s * share for s, share in shared) + per_token**2 * max(left_out, 0.0)
    return PrefillModel(services, mean, second / mean**2 if mean else 1.0, limit_s, order)
