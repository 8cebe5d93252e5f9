"""Colocated: one pool that prefills and decodes, from load to the share within both limits.

Others' prompts stand between the tokens of an answer. A mean over time does not show it: most short
answers meet none, and one long prompt is a miss for those that do. `interrupted` therefore sums
over the number of prompts that an answer meets.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, erfc, inf, sqrt

from argosy_law.goals import Order
from argosy_law.size.decode import DecodeModel, decode_model, kept_variance
from argosy_law.size.prefill import PrefillModel, prefill_model
from argosy_law.size.work import Replica, Work

COUNTED = 6.0
"""Where an answer meets more prompts than this, their sum is normal."""
MOST_REGULAR = 0.01
"""Least difference from Poisson's variance that is counted; below it the number is Poisson's."""
GROUPS = 8
"""Of prompts that are about equally long; they stand for all lengths."""
LEFT_OUT, DIGITS = 1e-7, 6
"""The sums leave out less than this of a share, so only these digits of it are given: otherwise
more replicas might attain less."""

Seconds = tuple[tuple[float, float], ...]
"""(seconds, share); shares sum up to 1."""


@dataclass(frozen=True, slots=True)
class ColocatedModel:
    """One pool that prefills in chunks beside its decodes: both models, slowed by each other."""

    prefill: PrefillModel
    decode: DecodeModel
    prompts: Seconds
    """What prompts add to steps: without the base, which decode pays already."""

    @property
    def per_prompt_s(self) -> float:
        """What a mean prompt adds to steps."""
        return _moments(self.prompts)[0]

    @property
    def reachable(self) -> float:
        """Share of requests that meet both limits without any other load."""
        return min(self.prefill.reachable, self.decode.reachable)

    def relaxed(self, goal: float) -> "ColocatedModel":
        """The same pool with limits that single requests meet with room."""
        return replace(self, prefill=self.prefill.relaxed(goal), decode=self.decode.relaxed(goal))

    def _parts(self, replicas: float, rate: float) -> tuple[DecodeModel, float]:
        """Decode slowed by prefill's share φ of the time; and by what share it slows prefill."""
        share = min(rate * self.per_prompt_s / replicas, 0.999)
        stretched = replace(
            self.decode,
            base_s=self.decode.base_s / (1 - share),
            sequence_s=self.decode.sequence_s / (1 - share),
        )
        batch = stretched.batch(replicas, rate)
        if batch == inf:
            return stretched, 1.0
        # While there is no prompt a step costs base + u·n; only u·n slows a chunk in the same step.
        step = self.decode.base_s + self.decode.sequence_s * batch
        return stretched, min(self.decode.sequence_s * batch / step, 0.999) if step else 0.0

    def load(self, rate: float) -> float:
        """Offered load in replicas."""
        return self.decode.load(rate) + rate * self.per_prompt_s

    def attainment(self, replicas: int, rate: float) -> float:
        """Share of requests within both limits at `rate` requests per second."""
        stretched, slowed = self._parts(replicas, rate)
        tpot = self._tpot(stretched, replicas, rate)
        if tpot <= 0:
            return 0.0
        inflated = replace(
            self.prefill,
            services=tuple((s / (1 - slowed), share) for s, share in self.prefill.services),
            mean_s=self.prefill.mean_s / (1 - slowed),
        )
        ttft = inflated.attainment(replicas, rate)
        return tpot * ttft

    def _tpot(self, stretched: DecodeModel, replicas: int, rate: float) -> float:
        """Share of answers whose steps, with the prompts in them, are in time.

        An answer of s steps has s·limit seconds for its steps, s·(base + c·n), and for the prompts
        that are computed in these: those that came to its pod since the step before its first.
        """
        batch, decode = stretched.batch(replicas, rate), self.decode
        if batch == inf:
            return 0.0
        if batch <= 0:
            return decode.reachable
        grown_s = decode.sequence_s * batch
        slowed = 1 + grown_s / decode.base_s if decode.base_s > 0 else 1.0
        variance = batch * slowed / replicas
        seen, typical = batch + variance / batch, stretched.typical_steps()
        step_s = decode.base_s + grown_s
        prompt_s, pod_rate = self.per_prompt_s, rate / replicas
        met_rate = pod_rate * _met_by_others(
            batch + pod_rate * (step_s + prompt_s), slowed / replicas
        )
        mean_steps = decode.decoded
        uneven = min(max(2 * typical / mean_steps - 1, 0.0), 1.0)
        room = _normal((decode.held_sequences - seen) / sqrt(variance))
        met = 0.0
        for tokens, share in decode.answers:
            steps = tokens - 1
            if steps <= 0:
                met += share
                continue
            left_s = steps * (decode.limit_s - decode.base_s - decode.sequence_s * seen)
            spread = variance * kept_variance(steps / typical / slowed)
            window_s = (steps - 1) * decode.limit_s + step_s + prompt_s
            noise = (steps * decode.sequence_s) ** 2 * spread
            # Pods are kept equal, so prompts come as others leave: evenly where all stay as long.
            passed = min(steps / mean_steps, 1.0) * (1 - 1 / replicas)
            dispersion = 1 - passed * (1 - uneven)
            count = met_rate * window_s
            within = interrupted(self.prompts, count, dispersion, left_s, noise)
            met += share * room * within
        return min(round(met, DIGITS), 1.0)

    def in_flight_floor(self, running: float) -> int:
        """Smallest pool in which `running` sequences still meet the limit and fit."""
        return self.decode.in_flight_floor(running)


def interrupted(
    prompts: Seconds, count: float, dispersion: float, left_s: float, variance: float
) -> float:
    """Probability that prompts take at most `left_s`, a normal variable with this variance in s².

    Their number has the mean `count` and the variance `dispersion` · `count`, at most Poisson's: it
    is binomial.
    """
    mean, spread = _moments(prompts)
    if count > COUNTED:
        noise = variance + count * (spread + dispersion * mean**2)
        return _normal(_ratio(left_s - count * mean, noise))
    most = max(ceil(count / max(1 - dispersion, MOST_REGULAR)), 1)
    chance = min(count / most, 0.999)
    met, rest, weight = 0.0, 1.0, (1 - chance) ** most
    for number in range(most + 1):
        if number:
            weight *= (most - number + 1) / number * chance / (1 - chance)
        if number == 1:  # one prompt alone is as long as it is, not as normal ones
            within = sum(_normal(_ratio(left_s - s, variance)) * share for s, share in prompts)
        else:
            within = _normal(_ratio(left_s - number * mean, variance + number * spread))
        met, rest = met + weight * within, rest - weight
        if rest < LEFT_OUT or within < LEFT_OUT:
            break
    return min(met, 1.0)


def _met_by_others(present: float, noise: float) -> float:
    """How much of a pod's share of the arrivals comes while a request is in it.

    A request goes to the pod with the fewest. Where all have the same number, a pod gets one when
    one of the others in it has left. `present` is the mean number of a pod's requests, of which a
    request meets itself and `present` + `noise` − 1 others. One pod gets all: noise is 1 there.
    """
    return min(max(present + noise - 1, 0.0) / present, 1.0) if present > 0 else 0.0


@lru_cache(maxsize=8)
def _moments(prompts: Seconds) -> tuple[float, float]:
    """Mean and variance."""
    mean = sum(s * share for s, share in prompts)
    return mean, max(sum(s * s * share for s, share in prompts) - mean**2, 0.0)


def _ratio(left: float, variance: float) -> float:
    return left / sqrt(variance) if variance > 0 else (inf if left >= 0 else -inf)


def _normal(deviations: float) -> float:
    """The normal distribution's share below; `statistics` takes three times as long."""
    return 0.5 * erfc(-deviations / sqrt(2))


def _grouped(seconds: Seconds) -> Seconds:
    """Groups with about equal shares, with the mean of each: the mean of all is kept."""
    groups: list[tuple[float, float]] = []
    total = weight = passed = 0.0
    for s, share in sorted(seconds):
        total, weight = total + s * share, weight + share
        if passed + weight >= (len(groups) + 1) / GROUPS - 1e-9:
            groups.append((total / weight, weight))
            passed, total, weight = passed + weight, 0.0, 0.0
    if weight > 0:
        groups.append((total / weight, weight))
    return tuple(groups)


def colocated_model(
    replica: Replica, work: Work, ttft_limit_s: float, tpot_limit_s: float, order: Order = "fifo"
) -> ColocatedModel:
    """The model of a colocated pool. Limits are seconds."""
    token_s, squared_s = replica.per_prompt_token_s, replica.per_prompt_token_squared_s
    spread = work.computed_spread
    return ColocatedModel(
        prefill=prefill_model(replica, work, ttft_limit_s, order),
        decode=decode_model(replica, work, tpot_limit_s),
        prompts=_grouped(tuple((token_s * n + squared_s * n * n, share) for n, share in spread)),
    )
