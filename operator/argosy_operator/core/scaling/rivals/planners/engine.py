"""What one replica does, as planners know it from a profile: `Goals.prior`.

Planners other than ours are given a profile beforehand, from a sweep of the engine. Here it is the
law's prior, exact in the simulator unless --profile-error says otherwise.
"""

from dataclasses import dataclass
from math import ceil

from argosy_operator.core.scaling.goals import Profile

BATCHED_TOKENS = 2048
"""Prompt tokens of one prefill step; the engine's default."""
SEQUENCES = 256
"""Sequences of one decode step; the engine's default."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica."""

    profile: Profile

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill so many tokens, in steps of `BATCHED_TOKENS` and a rest."""
        if tokens <= 0:
            return 0.0
        whole = ceil(tokens / BATCHED_TOKENS) - 1
        return whole * self._prefill_step_s(BATCHED_TOKENS) + self._prefill_step_s(
            tokens - whole * BATCHED_TOKENS
        )

    def _prefill_step_s(self, tokens: float) -> float:
        p = self.profile
        squared = p.per_prompt_token_squared_s * tokens * tokens
        return p.prefill_base_s + p.per_prompt_token_s * tokens + squared

    def step_s(self, sequences: float, context: float) -> float:
        """Seconds of a decode step with so many tokens of context in all sequences together."""
        p = self.profile
        return p.decode_base_s + p.per_sequence_s * sequences + p.per_context_token_s * context

    def best_batch(self, context: float, limit_s: float) -> int:
        """The most sequences of this context that fit and whose step takes at most `limit_s`; ≥ 1.

        A step of 29 ms and 0.3 ms a sequence within 60 ms: (60 - 29) / 0.3 = 103 sequences.
        """
        most = SEQUENCES
        if self.profile.kv_tokens > 0 and context > 0:
            most = min(most, int(self.profile.kv_tokens / context))
        each = self.step_s(1, context) - self.profile.decode_base_s
        if each > 0:
            most = min(most, int((limit_s - self.profile.decode_base_s) / each + 1e-9))
        return max(most, 1)
