"""Prefill: from load to the share of requests whose first token comes in time.

An M/G/n queue whose waiting time has an exponential tail: Erlang C with the Kingman and
Allen-Cunneen correction, exact for M/M/n. `sizing` calls it.
"""

from dataclasses import dataclass, replace
from math import ceil, exp

from argosy_operator.core.scaling.size.work import RELAXED, Replica, Work


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/n with offered load in servers (Erlang C)."""
    if load >= servers:
        return 1.0
    if load <= 0:
        return 0.0
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """TTFT of a prefill pool: a queue that `replicas` servers work off."""

    services_s: tuple[float, ...]
    """Equally likely times to prefill one prompt."""
    limit_s: float
    """TTFT limit, without the time outside the engines."""

    @property
    def mean_s(self) -> float:
        """Mean time to prefill one prompt."""
        return sum(self.services_s) / len(self.services_s)

    @property
    def reachable(self) -> float:
        """Share of prompts that meet the limit without any queue."""
        return sum(s <= self.limit_s for s in self.services_s) / len(self.services_s)

    def relaxed(self, goal: float) -> "PrefillModel":
        """The same pool with a limit that the share `goal` of prompts alone meets easily."""
        lone_s = sorted(self.services_s)[ceil(goal * len(self.services_s)) - 1]
        return replace(self, limit_s=max(self.limit_s, RELAXED * lone_s))

    def load(self, rate: float) -> float:
        """Offered load in replicas."""
        return rate * self.mean_s

    def attainment(self, replicas: int, rate: float) -> float:
        """P(TTFT ≤ limit) with `replicas` servers at `rate` requests per second."""
        load = self.load(rate)
        if load >= replicas:
            return 0.0
        mean = self.mean_s
        second = sum(s * s for s in self.services_s) / len(self.services_s)
        variability = 1.0 + (second / mean**2 - 1) if mean else 1.0
        waits = erlang_c(replicas, load)
        met = 0.0
        for service in self.services_s:
            slack = self.limit_s - service
            if slack >= 0:
                tail = exp(-2 * (replicas - load) * slack / (mean * variability)) if mean else 0.0
                met += 1 - waits * tail
        return met / len(self.services_s)


def prefill_model(replica: Replica, work: Work, limit_s: float) -> PrefillModel:
    """The model of a prefill pool with this TTFT limit, in seconds."""
    services = tuple(replica.prefill_s(length) for length in work.prompt_quantiles())
    return PrefillModel(services, limit_s)
