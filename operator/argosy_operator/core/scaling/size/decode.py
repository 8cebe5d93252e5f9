"""Decode: from load to the share of answers whose tokens come in time.

The batch is a fixed point: more sequences make steps slower, and slower steps keep sequences
longer. `sizing` calls it.
"""

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

from argosy_operator.core.scaling.size.work import NORMAL, RELAXED, Replica, Work

BATCH_SMOOTHING = 0.82
"""TPOT is a mean over the answer: averaging an M/G/∞ batch over one stay keeps √(2/3) of its σ.

Mean batch 16, largest batch 20: the batch has σ = 4, its mean over one answer 0.82 · 4 = 3.3, and
Φ((20 − 16)/3.3) = 89 % of the answers meet the limit.
"""
HELD_ABOVE_MEAN = 0.3
"""KV room per sequence above its mean context, as a share of the answer O.

Ages in a batch are spread evenly, so one context has a standard deviation of O/√12 = 0.29·O. With
prompts of 150 and answers of 200 tokens, a sequence counts 150 + 100 + 60 = 310. Ten of them hold
2,500 tokens on average with σ = √10 · 58 = 183, so 3,100 is 3.3 σ above the mean.
"""


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """TPOT of a decode pool: a step of n sequences takes base + sequence·n seconds."""

    base_s: float
    """Step without sequences."""
    sequence_s: float
    """What one more sequence adds."""
    output: float
    """Mean tokens of an answer."""
    kv_sequences: float
    """Sequences that fit the memory of one replica."""
    limit_s: float
    """TPOT limit, without the share of the KV transfer."""

    @property
    def batch_limit(self) -> float:
        """Largest batch B* that meets the limit and fits the memory; below 1: unreachable."""
        slack = self.limit_s - self.base_s
        by_time = slack / self.sequence_s if self.sequence_s > 0 else (inf if slack >= 0 else 0.0)
        return min(by_time, self.kv_sequences)

    @property
    def reachable(self) -> float:
        """1 if a single sequence meets the limit, otherwise 0."""
        return 1.0 if self.batch_limit >= 1 else 0.0

    def relaxed(self, _goal: float) -> "DecodeModel":
        """The same pool with a limit and a memory that a single sequence meets with room."""
        lone_s = self.base_s + self.sequence_s
        return replace(
            self,
            limit_s=max(self.limit_s, RELAXED * lone_s),
            kv_sequences=max(self.kv_sequences, 1.0),
        )

    def batch(self, replicas: float, rate: float) -> float:
        """Mean batch n̄ = λ(O−1)·τ(n̄)/N, ∞ if steps grow faster than they serve."""
        tokens = rate * max(self.output - 1, 0.0) / replicas
        room = 1 - tokens * self.sequence_s
        return tokens * self.base_s / room if room > 0 else inf

    def load(self, rate: float) -> float:
        """Smallest (fractional) pool whose mean batch is B*."""
        limit = max(self.batch_limit, 1.0)
        if limit == inf:
            return 0.0
        return rate * max(self.output - 1, 0.0) * (self.base_s + self.sequence_s * limit) / limit

    def attainment(self, replicas: int, rate: float) -> float:
        """P(mean batch over one answer ≤ B*), the batch being about Poisson around n̄."""
        if self.batch_limit < 1:
            return 0.0
        mean = self.batch(replicas, rate)
        if mean == inf:
            return 0.0
        if mean <= 0 or self.batch_limit == inf:
            return 1.0
        # A request is part of its own batch: it sees one sequence more than the mean of the others.
        return NORMAL.cdf((self.batch_limit - mean) / (BATCH_SMOOTHING * sqrt(mean)))

    def in_flight_floor(self, running: float) -> int:
        """Smallest pool in which `running` sequences still meet the limit and fit."""
        limit = max(self.batch_limit, 1.0)
        return 0 if limit == inf else ceil(running / limit - 1e-9)


def decode_model(replica: Replica, work: Work, limit_s: float) -> DecodeModel:
    """The model of a decode pool with this TPOT limit, in seconds."""
    context = work.context
    held = context + HELD_ABOVE_MEAN * work.output
    return DecodeModel(
        base_s=replica.base_s,
        sequence_s=replica.sequence_s(context),
        output=work.output,
        kv_sequences=replica.kv_tokens / held if replica.kv_tokens > 0 and held > 0 else inf,
        limit_s=limit_s,
    )
