"""The floor: the least time that a step can take on this machine with these weights.

It is the time of the step's matrix products, each by whichever product was the fastest in this run
(torch's with packed weights, or the native library's), plus the bytes of KV that it reads over the
bandwidth that this run measured. Attention's products, norms and sampling are left out, so no
engine of this type reaches it.
"""

from dataclasses import dataclass

from argosy_bench.peer.loads import PROMPT, PROMPTS, TOKENS
from argosy_bench.peer.servers import SEQUENCES

__all__ = ["ROWS", "Floor"]

ROWS = (1, 8, SEQUENCES, 512, 1536)
"""Tokens of the steps whose products are timed."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of the fastest products of a step, and what reads cost."""

    trunk_s: dict[int, float]
    """Products of all layers, by rows."""
    head_s: dict[int, float]
    """Product of the head, by sampled rows; at most SEQUENCES."""
    products: list[dict[str, object]]
    """Time of each product of all layers, by matrix and rows: `torch_ms` and `native_ms`."""
    read_bytes_per_s: float
    kv_bytes: int
    """Of one token."""

    def step_s(self, rows: int, *, sampled: int, context: int) -> float:
        """A step of `rows` tokens that samples `sampled` rows and reads `context` tokens of KV."""
        return self.trunk_s[rows] + self.head_s[sampled] + self._read_s(context)

    def burst_s(self) -> float:
        """Every request of the load `burst`, in full batches and without a step too many."""
        row_s = min(self.trunk_s[rows] / rows for rows in ROWS)
        waves = PROMPTS // SEQUENCES
        prompts_s = PROMPTS * PROMPT * row_s + waves * self.head_s[SEQUENCES]
        context = SEQUENCES * (PROMPT + TOKENS // 2)
        step_s = self.step_s(SEQUENCES, sampled=SEQUENCES, context=context)
        return prompts_s + waves * (TOKENS - 1) * step_s

    def _read_s(self, tokens: int) -> float:
        return tokens * self.kv_bytes / self.read_bytes_per_s
