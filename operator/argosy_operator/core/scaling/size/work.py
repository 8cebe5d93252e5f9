"""What one request brings and what one replica does: the values that the pool models start from.

`signals.lengths` fills `Work`, `estimate.capacity` fills `Replica`. Times are seconds.
"""

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

NORMAL = NormalDist()
POINTS = 16
"""Equal-weight quantiles that represent the distribution of prompt lengths."""
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

    @property
    def context(self) -> float:
        """Mean context of a sequence in a decode step, in tokens.

        Long answers are in more steps, so it is E[O(L + O/2)]/E[O] and not E[L] + E[O]/2. The
        second is less than half of the first where short requests are many; it is only the guess
        before engines have counted.
        """
        return self.seen_context if self.seen_context is not None else self.prompt + self.output / 2

    def prompt_quantiles(self) -> tuple[float, ...]:
        """Quantiles of the lognormal with these two moments; their mean is exactly `prompt`."""
        variation = max(self.prompt_squared / self.prompt**2 - 1, 0.0) if self.prompt else 0.0
        sigma = sqrt(log(1 + variation))
        raw = [exp(sigma * NORMAL.inv_cdf((i + 0.5) / POINTS)) for i in range(POINTS)]
        scale = self.prompt * POINTS / sum(raw)
        return tuple(scale * r for r in raw)


@dataclass(frozen=True, slots=True)
class Replica:
    """Learnt constants of one replica.

    A prompt of L tokens takes prompt_steps·base + per_prompt_token·L. A decode step of n sequences
    takes base + per_sequence·n + per_context_token·n·context.
    """

    base_s: float
    per_prompt_token_s: float
    per_sequence_s: float
    per_context_token_s: float
    prompt_steps: float = 1.0
    """Steps that one prompt takes: more than 1 if it is prefilled in chunks."""
    kv_tokens: float = 0.0
    """0: unknown, so memory sets no bound."""

    def prefill_s(self, prompt_tokens: float) -> float:
        """Seconds to prefill a prompt."""
        return self.prompt_steps * self.base_s + self.per_prompt_token_s * prompt_tokens

    def sequence_s(self, context: float) -> float:
        """What one more sequence of this context adds to a decode step."""
        return self.per_sequence_s + self.per_context_token_s * context
