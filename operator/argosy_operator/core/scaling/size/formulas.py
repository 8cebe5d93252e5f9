"""From load and one replica's constants to the share of requests within the SLO.

Prefill is an M/G/n queue whose waiting time has an exponential tail (Erlang C with the Kingman /
Allen-Cunneen correction, exact for M/M/n); decode is a fixed point on the batch size; a colocated
replica does both. Called by `budget` and `decide` with constants from `capacity`.
"""

from dataclasses import dataclass, replace
from math import ceil, exp, inf, log, sqrt
from statistics import NormalDist

NORMAL = NormalDist()
POINTS = 16
"""Equal-weight quantiles that stand for the distribution of prompt lengths."""

RELAXED = 2.0
"""An SLO that a lone request misses gives no size. The pool is then sized for this many times what
a lone request takes: waiting no longer than being served, and steps at most twice as slow."""

BATCH_SMOOTHING = 0.82
"""TPOT is a mean over the answer: averaging an M/G/∞ batch over one stay keeps √(2/3) of its σ."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request brings: prompt tokens L (mean, E[L²]) and output tokens O (mean)."""

    prompt: float
    prompt_squared: float
    output: float

    @property
    def context(self) -> float:
        """Mean context of a sequence while it decodes, tokens."""
        return self.prompt + self.output / 2

    def prompt_quantiles(self) -> tuple[float, ...]:
        """Quantiles of the lognormal with these two moments; their mean is exactly `prompt`."""
        variation = max(self.prompt_squared / self.prompt**2 - 1, 0.0) if self.prompt else 0.0
        sigma = sqrt(log(1 + variation))
        raw = [exp(sigma * NORMAL.inv_cdf((i + 0.5) / POINTS)) for i in range(POINTS)]
        scale = self.prompt * POINTS / sum(raw)
        return tuple(scale * r for r in raw)


@dataclass(frozen=True, slots=True)
class Replica:
    """Learnt constants of one replica, seconds. A prompt costs `prompt_steps`·base +
    per_prompt_token·L; a decode step base + per_sequence·n + per_context_token·n·context."""

    base_s: float
    per_prompt_token_s: float
    per_sequence_s: float
    per_context_token_s: float
    prompt_steps: float = 1.0
    kv_tokens: float = 0.0
    """0: unknown, no memory bound."""

    def prefill_s(self, prompt_tokens: float) -> float:
        return self.prompt_steps * self.base_s + self.per_prompt_token_s * prompt_tokens

    def sequence_s(self, context: float) -> float:
        return self.per_sequence_s + self.per_context_token_s * context


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
    """TTFT of a prefill pool. `services_s` are equally likely service times; limit is X'."""

    services_s: tuple[float, ...]
    limit_s: float

    @property
    def mean_s(self) -> float:
        return sum(self.services_s) / len(self.services_s)

    @property
    def reachable(self) -> float:
        """Share of prompts that meet the limit without any queue."""
        return sum(s <= self.limit_s for s in self.services_s) / len(self.services_s)

    def relaxed(self, goal: float) -> "PrefillModel":
        """The same pool with a limit that the share `goal` of lone prompts meets with room."""
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
    services = tuple(replica.prefill_s(length) for length in work.prompt_quantiles())
    return PrefillModel(services, limit_s)


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """TPOT of a decode pool. `limit_s` is Y without the KV transfer's share."""

    base_s: float
    sequence_s: float
    output: float
    kv_sequences: float
    limit_s: float

    @property
    def batch_limit(self) -> float:
        """Largest batch B* that meets the limit and fits the memory; below 1: unreachable."""
        slack = self.limit_s - self.base_s
        by_time = slack / self.sequence_s if self.sequence_s > 0 else (inf if slack >= 0 else 0.0)
        return min(by_time, self.kv_sequences)

    @property
    def reachable(self) -> float:
        return 1.0 if self.batch_limit >= 1 else 0.0

    def relaxed(self, _goal: float) -> "DecodeModel":
        """The same pool with a limit and a memory that a lone sequence meets with room."""
        lone_s = self.base_s + self.sequence_s
        return replace(
            self,
            limit_s=max(self.limit_s, RELAXED * lone_s),
            kv_sequences=max(self.kv_sequences, 1.0),
        )

    def batch(self, replicas: float, rate: float) -> float:
        """Mean batch n̄ = λ(O−1)·τ(n̄)/N, ∞ when the step grows faster than it serves."""
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
        # A request always shares the batch with itself: it sees one more than the mean of others.
        return NORMAL.cdf((self.batch_limit - mean) / (BATCH_SMOOTHING * sqrt(mean)))

    def in_flight_floor(self, running: float) -> int:
        """Smallest pool in which `running` sequences still meet the limit and fit."""
        limit = max(self.batch_limit, 1.0)
        return 0 if limit == inf else ceil(running / limit - 1e-9)


def decode_model(replica: Replica, work: Work, limit_s: float) -> DecodeModel:
    context = work.context
    # A sequence holds its whole context at its end; 0.3·O more than the mean keeps room for that.
    held = context + 0.3 * work.output
    return DecodeModel(
        base_s=replica.base_s,
        sequence_s=replica.sequence_s(context),
        output=work.output,
        kv_sequences=replica.kv_tokens / held if replica.kv_tokens > 0 and held > 0 else inf,
        limit_s=limit_s,
    )


@dataclass(frozen=True, slots=True)
class ColocatedModel:
    """One pool that prefills in chunks beside its decodes: both models, slowed by each other."""

    prefill: PrefillModel
    decode: DecodeModel
    per_prompt_s: float
    """Prefill seconds of a mean prompt without the step's base, which decode pays already."""

    @property
    def reachable(self) -> float:
        return min(self.prefill.reachable, self.decode.reachable)

    def relaxed(self, goal: float) -> "ColocatedModel":
        """The same pool with limits that lone requests meet with room."""
        return replace(self, prefill=self.prefill.relaxed(goal), decode=self.decode.relaxed(goal))

    def _parts(self, replicas: float, rate: float) -> tuple[DecodeModel, float]:
        """Decode stretched by prefill's share φ of the time, and decode's own share ρ."""
        share = min(rate * self.per_prompt_s / replicas, 0.999)
        stretched = DecodeModel(
            base_s=self.decode.base_s / (1 - share),
            sequence_s=self.decode.sequence_s / (1 - share),
            output=self.decode.output,
            kv_sequences=self.decode.kv_sequences,
            limit_s=self.decode.limit_s,
        )
        batch = stretched.batch(replicas, rate)
        if batch == inf:
            return stretched, 1.0
        # While there is no prompt a step costs base + u·n; only u·n slows a chunk in the same step.
        step = self.decode.base_s + self.decode.sequence_s * batch
        return stretched, min(self.decode.sequence_s * batch / step, 0.999) if step else 0.0

    def load(self, rate: float) -> float:
        return self.decode.load(rate) + rate * self.per_prompt_s

    def attainment(self, replicas: int, rate: float) -> float:
        stretched, slowed = self._parts(replicas, rate)
        tpot = stretched.attainment(replicas, rate)
        if tpot <= 0:
            return 0.0
        inflated = tuple(s / (1 - slowed) for s in self.prefill.services_s)
        ttft = PrefillModel(inflated, self.prefill.limit_s).attainment(replicas, rate)
        return tpot * ttft

    def in_flight_floor(self, running: float) -> int:
        return self.decode.in_flight_floor(running)


def colocated_model(
    replica: Replica, work: Work, ttft_limit_s: float, tpot_limit_s: float
) -> ColocatedModel:
    return ColocatedModel(
        prefill=prefill_model(replica, work, ttft_limit_s),
        decode=decode_model(replica, work, tpot_limit_s),
        per_prompt_s=replica.per_prompt_token_s * work.prompt,
    )


Model = PrefillModel | DecodeModel | ColocatedModel

LARGEST = 10_000


def carrying(model: Model, goal: float) -> Model:
    """The model that sizes the pool: relaxed where not even a lone request meets the limit."""
    return model if model.reachable > 0 else model.relaxed(goal)


def smallest(model: Model, rate: float, goal: float) -> int:
    """Smallest number of replicas whose predicted attainment is ≥ `goal` at `rate`, at least 1.

    The goal is lowered to just below what any number could reach: an SLO that a lone request
    misses must not grow the pool without end. Where no request at all can meet it, the pool carries
    its load within a relaxed limit.
    """
    if rate <= 0:
        return 1
    model = carrying(model, goal)
    # What a lone request gets: the limit for ever more replicas.
    reachable = min(model.reachable, model.attainment(1, rate * 1e-9))
    if reachable <= 0:
        return 1
    wanted = min(goal, reachable - 0.005)
    low, high = 0, min(max(1, ceil(model.load(rate))), LARGEST)
    while model.attainment(high, rate) < wanted and high < LARGEST:
        low, high = high, min(2 * high, LARGEST)
    while high - low > 1:
        middle = (low + high) // 2
        if model.attainment(middle, rate) >= wanted:
            high = middle
        else:
            low = middle
    return high
