"""Decode: from load to the share of answers whose tokens come in time.

The batch is a fixed point: more sequences make steps slower, and slower steps keep sequences
longer. `sizing` calls it.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, inf, sqrt

from argosy_law.size.work import NORMAL, RELAXED, Replica, Spread, Work

HELD_ABOVE_MEAN = 0.3
"""KV room per sequence above its mean context, as a share of the answer O.

Ages in a batch are spread evenly, so one context has a standard deviation of O/√12 = 0.29·O. With
prompts of 150 and answers of 200 tokens, a sequence counts 150 + 100 + 60 = 310. Ten of them hold
2,500 tokens on average with σ = √10 · 58 = 183, so 3,100 is 3.3 σ above the mean.
"""
EDGE_WAITS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""A sequence joins at the edge of a step, so it waits for an evenly spread part of one."""
EDGE_COUNTS = 12
"""Answers with more tokens than this wait for half a step: of twelve steps, the rest of the spread
is less than 4 %."""


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """TPOT of a decode pool: a step of n sequences takes base + sequence·n seconds."""

    base_s: float
    """Step without sequences."""
    sequence_s: float
    """What one more sequence adds."""
    answers: Spread
    """Lengths of answers with their shares. The first token is not decoded."""
    held_sequences: float
    """Sequences that one replica holds, by its memory and the engine's limit."""
    limit_s: float
    """TPOT limit."""
    pause_s: float = 0.0
    """What an answer loses once, before its second token: the KV transfer."""
    joins: bool = False
    """Whether a sequence comes from another pod and waits for the edge of a step."""
    held: float = 0.0
    """Share of the answers whose first token is held until their next one is computed, so that TPOT
    has neither the pause nor the wait."""

    @property
    def decoded(self) -> float:
        """Mean tokens of an answer that decode generates, O − 1."""
        return sum(max(tokens - 1, 0.0) * share for tokens, share in self.answers)

    @property
    def batch_limit(self) -> float:
        """Largest batch B* with which the steps of a long answer meet the limit; below 1: none."""
        return self.batch_within(self.limit_s)

    def batch_within(self, step_s: float) -> float:
        """Largest batch whose steps take at most so long, and that the pod holds."""
        slack = step_s - self.base_s
        by_time = slack / self.sequence_s if self.sequence_s > 0 else (inf if slack >= 0 else 0.0)
        return min(by_time, self.held_sequences)

    @property
    def reachable(self) -> float:
        """Share of the answers that meet the limit as the only sequence of a pod."""
        return min(sum(share for _, most, share in _limits(self) if most >= 1), 1.0)

    def relaxed(self, _goal: float) -> "DecodeModel":
        """The same pool with a limit and a memory that a single sequence meets with room."""
        lone_s = self.base_s + self.sequence_s
        return replace(
            self,
            limit_s=max(self.limit_s, RELAXED * lone_s + self.pause_s),
            held_sequences=max(self.held_sequences, 1.0),
        )

    def batch(self, replicas: float, rate: float) -> float:
        """Mean batch n̄ = λ(O−1)·τ(n̄)/N, ∞ if steps grow faster than they serve."""
        tokens = rate * self.decoded / replicas
        room = 1 - tokens * self.sequence_s
        return tokens * self.base_s / room if room > 0 else inf

    def load(self, rate: float) -> float:
        """Smallest (fractional) pool whose mean batch is B*."""
        limit = max(self.batch_limit, 1.0)
        if limit == inf:
            return 0.0
        return rate * self.decoded * (self.base_s + self.sequence_s * limit) / limit

    def attainment(self, replicas: int, rate: float) -> float:
        """Share of answers during which the mean batch leaves their tokens in time.

        Sequences of all pods together are about normal with the mean N·n̄ and the variance
        N·n̄·τ/base: they slow each other, so they spread more than Poisson's N·n̄. The gateway keeps
        pods equally full, so the variance of one pod's batch is the N-th part of n̄·τ/base. The mean
        over one answer varies less the longer the answer is. A sequence sees itself, too, so its
        batch is larger than the mean over time by variance/n̄.
        """
        mean = self.batch(replicas, rate)
        if mean == inf:
            return 0.0
        if mean <= 0:
            return self.reachable
        slowed = (self.base_s + self.sequence_s * mean) / self.base_s if self.base_s > 0 else 1.0
        variance = mean * slowed / replicas
        seen = mean + variance / mean
        typical = self.typical_steps()
        met = 0.0
        for steps, most, share in _limits(self):
            if most == inf:
                met += share
            elif most >= 1:
                spread = sqrt(variance * kept_variance(steps / typical / slowed))
                met += share * NORMAL.cdf((most - seen) / spread)
        return min(met, 1.0)

    def typical_steps(self) -> float:
        """Steps after which a batch has forgotten what it was: E[s²]/2E[s] of the answers' steps.

        It is the mean for exponential lengths and half of it for equal ones.
        """
        squares = sum(max(tokens - 1, 0.0) ** 2 * share for tokens, share in self.answers)
        return max(squares / (2 * self.decoded), 0.5) if self.decoded > 0 else 1.0

    def in_flight_floor(self, running: float) -> int:
        """Smallest pool in which `running` sequences still meet the limit and fit."""
        limit = max(self.batch_limit, 1.0)
        return 0 if limit == inf else ceil(running / limit - 1e-9)


@lru_cache(maxsize=8)
def _limits(model: DecodeModel) -> tuple[tuple[float, float, float], ...]:
    """(decoded tokens, largest mean batch with which they are in time, share of answers)."""
    limits = []
    for tokens, share in model.answers:
        steps = tokens - 1
        if steps <= 0:
            limits.append((0.0, inf, share))
            continue
        waits: tuple[float, ...] = (0.0,)
        if model.joins:
            waits = EDGE_WAITS if tokens <= EDGE_COUNTS else (0.5,)
        at_once, left_s = share * (1 - model.held), steps * model.limit_s - model.pause_s
        if model.held > 0:
            limits.append((steps, model.batch_limit, share * model.held))
        if at_once > 0:
            limits += [
                (steps, model.batch_within(left_s / (steps + wait)), at_once / len(waits))
                for wait in waits
            ]
    return tuple(limits)


def kept_variance(stays: float) -> float:
    """Variance of a mean over `stays` correlation times, as a share of that of one moment.

    For a correlation that falls exponentially: 2(r − 1 + e^−r)/r². A short answer sees one batch,
    1; of an answer of four correlation times 0.38 are left.
    """
    if stays < 1e-3:
        return 1.0
    return 2 * (stays - 1 + exp(-stays)) / stays**2


def decode_model(
    replica: Replica, work: Work, limit_s: float, pause_s: float | None = None
) -> DecodeModel:
    """The model of a pool that decodes, with this TPOT limit in seconds.

    `pause_s`: seconds of a KV transfer; None if sequences stay in the pod that prefilled them.
    """
    context = work.context
    held = context + HELD_ABOVE_MEAN * work.output
    by_memory = replica.kv_tokens / held if replica.kv_tokens > 0 and held > 0 else inf
    return DecodeModel(
        base_s=replica.base_s,
        sequence_s=replica.sequence_s(context),
        answers=work.answer_spread,
        held_sequences=min(by_memory, replica.most_sequences),
        limit_s=limit_s,
        pause_s=pause_s or 0.0,
        joins=pause_s is not None,
    )
