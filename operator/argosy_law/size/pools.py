"""Models of a role's pool: from load to the share of requests within the limits.

Prefill is a queue of several servers, M/G/n, in one of two orders. In the order of arrival, waiting
times have the tail of Erlang C with the correction of Kingman, Allen and Cunneen, which is exact
for M/M/n. By deadline, a request that is late anyway waits until nothing else does (designs/0009):
for the others that is a queue whose customers give up, M/M/n+D. Both are one formula,
`share_waiting`.

Decode is a batch at its fixed point: more sequences make steps slower, and slower steps keep
sequences longer.

A colocated pool does both. Others' prompts stand between the tokens of an answer. A mean over time
does not show it: most short answers meet none, and one long prompt is a miss for those that do.
`interrupted` therefore sums over the number of prompts that an answer meets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, erfc, exp, inf, sqrt

from argosy_law.goals import Order
from argosy_law.observe import RoleName
from argosy_law.size.work import RELAXED, Replica, Spread, Work

Seconds = tuple[tuple[float, float], ...]
"""(seconds, share)."""
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


@dataclass(frozen=True)
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

    @cached_property
    def reachable(self) -> float:
        """Share of prompts that meet the limit without any queue."""
        return min(sum(share for _, share in self._slacks), 1.0)

    @cached_property
    def _slacks(self) -> Seconds:
        """(seconds that a prompt may wait, share), of those that meet the limit alone."""
        limit_s = self.limit_s
        return tuple((limit_s - s, share) for s, share in self.services if s <= limit_s)

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
        reachable, slacks = self.reachable, self._slacks
        if self.order == "fifo":
            waiting = shares_waiting(replicas, load, [slack_s / unit_s for slack_s, _ in slacks])
            late = sum(wait * share for wait, (_, share) in zip(waiting, slacks, strict=True))
        else:  # who can wait least goes first, so that all are late as often
            patience = self._patience_s / unit_s
            late = reachable * share_waiting(replicas, load, patience, patience)
        return max(min(reachable - late, 1.0), 0.0)

    @cached_property
    def _patience_s(self) -> float:
        """Mean seconds that a prompt may wait which meets the limit alone."""
        return sum(slack_s * share for slack_s, share in self._slacks) / max(self.reachable, 1e-9)


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


HELD_ABOVE_MEAN = 0.3
"""KV room per sequence above its mean context, as a share of the answer O.

Ages in a batch are spread evenly, so one context has a standard deviation of O/√12 = 0.29·O. With
prompts of 150 and answers of 200 tokens, a sequence counts 150 + 100 + 60 = 310. Ten of them hold
2,500 tokens on average with σ = √10 · 58 = 183, so 3,100 is 3.3 σ above the mean.
"""


@dataclass(frozen=True)
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
    """From when a prompt is computed until its sequence can join a batch: the KV transfer. Both the
    first token and the sequence wait for the edge of a step, so that TPOT has the whole steps whose
    edges lie between them."""
    held: float = 0.0
    """Share of the answers whose first token is held until their next one is computed, so that TPOT
    has neither the pause nor the wait."""

    @cached_property
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

    @cached_property
    def reachable(self) -> float:
        """Share of the answers that meet the limit as the only sequence of a pod."""
        bounded = (share for _, limits in self._limits for _, share in limits)
        return min(self._always + sum(bounded), 1.0)

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
        met, stays = self._always, self.typical_steps * slowed
        for steps, limits in self._limits:
            spread = sqrt(variance * kept_variance(steps / stays))
            for most, share in limits:
                met += share * _normal((most - seen) / spread)
        return min(met, 1.0)

    @cached_property
    def typical_steps(self) -> float:
        """Steps after which a batch has forgotten what it was: E[s²]/2E[s] of the answers' steps.

        It is the mean for exponential lengths and half of it for equal ones.
        """
        squares = sum(max(tokens - 1, 0.0) ** 2 * share for tokens, share in self.answers)
        return max(squares / (2 * self.decoded), 0.5) if self.decoded > 0 else 1.0

    @cached_property
    def _always(self) -> float:
        """Share of the answers that are in time in any batch, such as those of one token."""
        limits = (limit for _, limits in self._list_limits() for limit in limits)
        return sum(share for most, share in limits if most == inf)

    @cached_property
    def _limits(self) -> tuple[tuple[float, tuple[tuple[float, float], ...]], ...]:
        """What `_list_limits` says of the answers that are in time in some batches."""
        bounded = (
            (steps, tuple((most, share) for most, share in limits if 1 <= most < inf))
            for steps, limits in self._list_limits()
        )
        return tuple((steps, limits) for steps, limits in bounded if limits)

    def _list_limits(self) -> Iterator[tuple[float, list[tuple[float, float]]]]:
        """Yield, for each length, the decoded tokens and (largest mean batch with which an answer
        is in time, share of the answers)."""
        for tokens, share in self.answers:
            steps, limits = tokens - 1, list[tuple[float, float]]()
            if steps <= 0:
                yield 0.0, [(inf, share)]
                continue
            if self.held > 0:
                limits.append((self.batch_limit, share * self.held))
            limits += [
                (self.batch_within(steps * self.limit_s / (steps + missed)), share * part)
                for missed, part in self._missed
                if part > 0
            ]
            yield steps, limits

    @cached_property
    def _missed(self) -> tuple[tuple[int, float], ...]:
        """(steps that begin between a first token and its sequence's join, share of the answers
        whose first token is not held).

        A prompt is computed at any moment of a step. With steps of 60 ms and a transfer of 6 ms its
        sequence misses the next edge in a tenth of the cases. Steps are those of the limit, as in
        the smallest pool that meets it: shorter ones miss more, and have more time for it.
        """
        edges = self.pause_s / max(self.limit_s, self.base_s)
        whole, part = int(edges), edges % 1
        at_once = 1 - self.held
        return (whole, at_once * (1 - part)), (whole + 1, at_once * part)

    def in_flight_floor(self, running: float) -> int:
        """Smallest pool in which `running` sequences still meet the limit and fit."""
        limit = max(self.batch_limit, 1.0)
        return 0 if limit == inf else ceil(running / limit - 1e-9)


def kept_variance(stays: float) -> float:
    """Variance of a mean over `stays` correlation times, as a share of that of one moment.

    For a correlation that falls exponentially: 2(r − 1 + e^−r)/r². A short answer sees one batch,
    1; of an answer of four correlation times 0.38 are left.
    """
    if stays < 1e-3:
        return 1.0
    return 2 * (stays - 1 + exp(-stays)) / stays**2


def decode_model(replica: Replica, work: Work, limit_s: float, pause_s: float = 0.0) -> DecodeModel:
    """The model of a pool that decodes, with this TPOT limit in seconds.

    `pause_s`: seconds of a KV transfer; 0 if sequences stay in the pod that prefilled them.
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
        pause_s=pause_s,
    )


COUNTED = 6.0
"""Where an answer meets more prompts than this, their sum is normal."""
MOST_REGULAR = 0.01
"""Least difference from Poisson's variance that is counted; below it the number is Poisson's."""
GROUPS = 8
"""Of prompts that are about equally long; they stand for all lengths."""
LEFT_OUT, DIGITS = 1e-7, 6
"""The sums leave out less than this of a share, so only these digits of it are given: otherwise
more replicas might attain less."""


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
        seen, typical = batch + variance / batch, self.decode.typical_steps
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
    return find_fewest(lambda n: model.attainment(n, rate) >= wanted, ceil(model.load(rate)))


def find_fewest(meets: Callable[[int], bool], near: int) -> int:
    """The fewest replicas for which `meets` holds, as it then does for more; `MOST_REPLICAS` if it
    holds for none.

    The search begins at `near`, with steps that double. Where it begins changes how often `meets`
    is asked, twice if `near` is right, and not what is found.
    """
    low, high = 0, MOST_REPLICAS
    at, step = min(max(near, 1), MOST_REPLICAS), 1
    while high - low > 1:
        if meets(at):
            high, at = at, at - step
        else:
            low, at = at, at + step
        step *= 2
        if not low < at < high:
            at = (low + high) // 2
    return high
