"""What one request brings and what one replica does: the values that the pool models start from.

`signals.lengths` fills `Work`, `estimate.capacity` fills `Replica`. Times are seconds.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, exp, inf, log, sqrt
from statistics import NormalDist

from argosy_law.observe import Buckets

NORMAL = NormalDist()
POINTS = 16
"""Equal-weight quantiles that stand for a distribution of which only two moments are known."""
EXACT = 5
"""Up to this length every whole number of tokens of a bucket is a length of its own: an answer of
two tokens pays a pause twice as dearly as one of three."""
PLACES = (1 / 6, 3 / 6, 5 / 6)
"""Where in a wider bucket, on a logarithmic scale, the lengths are that stand for it."""
BENT = 8.0
"""How far the lengths of a bucket may lean to one of its edges, as an exponent; 1 is even on a
logarithmic scale."""
HALVINGS = 14
"""Of the interval in which that exponent is looked for."""

Spread = tuple[tuple[float, float], ...]
"""(length in tokens, its share); shares sum up to 1."""
EDGES = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))[:16]
"""Upper edges of the gateways' histograms of lengths, in tokens."""
BEYOND = 10 * EDGES[-1]
"""Upper edge of the last bucket: no model takes a longer prompt."""


def alike(tokens: float) -> Spread:
    """All are equally long."""
    return ((tokens, 1.0),)


def lognormal(mean: float, squared: float) -> Spread:
    """Quantiles of the lognormal with this mean and about this second moment.

    The mean is exact. The second moment is too small, because the quantiles leave the tail out.
    """
    variation = max(squared / mean**2 - 1, 0.0) if mean else 0.0
    sigma = sqrt(log(1 + variation))
    raw = [exp(sigma * NORMAL.inv_cdf((i + 0.5) / POINTS)) for i in range(POINTS)]
    scale = mean * POINTS / sum(raw)
    return tuple((scale * r, 1 / POINTS) for r in raw)


def of_buckets(buckets: Buckets, mean: float) -> Spread:
    """The lengths in these buckets, which lean to their edges until they have this mean.

    If no lean gives it, the nearest one is taken. `buckets` must hold a request; the lower edge of
    a bucket is the greatest smaller one of `EDGES`.
    """
    low, high = 1 / BENT, BENT
    narrow, wide = _part(buckets)
    left = mean - mean_of(narrow)
    sums: dict[float, float] = {}
    for lower, ratio, share in wide:
        sums[ratio] = sums.get(ratio, 0.0) + lower * share
    # Buckets that are as wide as each other have the mean of one: most have one of three widths.
    few = [(lower, ratio, 1.0) for ratio, lower in sums.items()]
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        if mean_of(_lean(few, middle)) > left:
            low = middle
        else:
            high = middle
    return (*narrow, *_lean(wide, sqrt(low * high)))


def mean_of(spread: Spread) -> float:
    """Mean length, in tokens."""
    return sum(tokens * share for tokens, share in spread)


def _part(buckets: Buckets) -> tuple[Spread, list[tuple[float, float, float]]]:
    """Lengths of the narrow buckets, and (lower edge, upper over lower, share) of the others."""
    total = sum(count for _, count in buckets)
    narrow: list[tuple[float, float]] = []
    wide = []
    for upper, count in buckets:
        at = bisect_left(EDGES, upper)
        lower = EDGES[at - 1] if at else 0.0
        if upper <= EXACT:
            lengths = range(int(lower) + 1, int(upper) + 1)
            narrow += [(float(n), count / total / len(lengths)) for n in lengths]
        else:
            wide.append((lower, upper / lower, count / total))
    return tuple(narrow), wide


def _lean(wide: list[tuple[float, float, float]], lean: float) -> Spread:
    """Lengths of wide buckets that lean to their upper (below 1) or lower edges (above 1)."""
    places = [place**lean for place in PLACES]
    return tuple(
        (lower * ratio**place, share / len(places))
        for lower, ratio, share in wide
        for place in places
    )


RELAXED = 2.0
"""A request that misses the SLO alone gives no size. Its pool is sized for this many times what
it takes alone: it waits no longer than it is served, and its steps are at most twice as slow."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request brings, in tokens."""

    prompt: float
    """Mean length of a prompt, E[L]."""
    prompt_squared: float
    """Second moment E[L²]."""
    output: float
    """Mean length of an answer, O."""
    seen_context: float | None = None
    """Mean context of a sequence in a decode step, as engines count it; None: not measured."""
    prompts: Spread = ()
    """Lengths of prompts with their shares; empty: not counted."""
    answers: Spread = ()
    """Lengths of answers with their shares; empty: not counted."""
    cached: float = 0.0
    """Share of the prompts' tokens that prefix caches have, 0..1."""

    @property
    def computed(self) -> float:
        """Mean tokens of a prompt that prefill computes, at least 1: the last token always is."""
        return max((1 - self.cached) * self.prompt, 1.0)

    @property
    def context(self) -> float:
        """Mean context of a sequence in a decode step, in tokens.

        Long answers are in more steps, so it is E[O(L + O/2)]/E[O] and not E[L] + E[O]/2. The
        second is less than half of the first where short requests are many; it is only the guess
        before engines have counted.
        """
        return self.seen_context if self.seen_context is not None else self.prompt + self.output / 2

    @property
    def computed_spread(self) -> Spread:
        """What prefill computes of the prompts: of each length the same share.

        Lengths are those that were counted, or a lognormal's with these moments.
        """
        part = self.computed / self.prompt
        lengths = self.prompts or lognormal(self.prompt, self.prompt_squared)
        return tuple((part * tokens, share) for tokens, share in lengths)

    @property
    def computed_squared(self) -> float:
        """Second moment of the computed tokens."""
        return self.prompt_squared * (self.computed / self.prompt) ** 2

    @property
    def answer_spread(self) -> Spread:
        """Lengths of answers: those that were counted, or all alike."""
        return self.answers or alike(self.output)


@dataclass(frozen=True, slots=True)
class Replica:
    """Learnt constants of one replica.

    A prompt of L tokens takes steps(L)·base + per_prompt_token·L + per_prompt_token_squared·L². A
    decode step of n sequences takes base + per_sequence·n + per_context_token·n·context.
    """

    base_s: float
    per_prompt_token_s: float
    per_sequence_s: float
    per_context_token_s: float
    per_prompt_token_squared_s: float = 0.0
    """Attention over the prompt; 0 if it is only known as a part of `per_prompt_token_s`."""
    step_tokens: float = inf
    """Prompt tokens in one step, `max_num_batched_tokens`; ∞: unknown."""
    kv_tokens: float = 0.0
    """0: unknown, so memory sets no bound."""
    most_sequences: float = inf
    """Sequences in one step, `max_num_seqs`; ∞: unknown."""

    def prefill_s(self, prompt_tokens: float) -> float:
        """Seconds to prefill a prompt alone, in as many steps as its chunks."""
        squared = self.per_prompt_token_squared_s * prompt_tokens**2
        steps = max(ceil(prompt_tokens / self.step_tokens), 1)
        return steps * self.base_s + self.per_prompt_token_s * prompt_tokens + squared

    def shared_s(self, prompt_tokens: float) -> float:
        """Seconds of full steps that a prompt takes while others wait."""
        squared = self.per_prompt_token_squared_s * prompt_tokens**2
        steps = prompt_tokens / self.step_tokens if self.step_tokens < inf else 1.0
        return steps * self.base_s + self.per_prompt_token_s * prompt_tokens + squared

    def sequence_s(self, context: float) -> float:
        """What one more sequence of this context adds to a decode step."""
        return self.per_sequence_s + self.per_context_token_s * context
