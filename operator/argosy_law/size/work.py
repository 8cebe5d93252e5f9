"""What one request brings and what one replica does: the values that the pool models start from.

`signals.lengths` fills `Work`, `estimate.capacity` fills `Replica`. Times are seconds.
"""

from dataclasses import dataclass
from math import ceil, inf

from argosy_law.size.spread import Spread, alike, lognormal

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
