"""How a request wants its tokens chosen, and when it ends.

Made by the HTTP server from an OpenAI body, or by the KV server from a PREFILL frame; read by the
scheduler (ends) and by the runner (choice).
"""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["SamplingDefaults", "SamplingParams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What requests take that do not say it themselves: the model's own advice, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling; the values were validated where they entered.

    A runner draws position p of a sequence from a generator keyed by (`seed`, p), so that a
    preempted, chunked or handed-over request continues with the same text. `seed` is never absent:
    a request without one gets a random one at the edge.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 means off
    repetition_penalty: float = 1.0  # over prompt and output; 1 means off
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_json(self) -> dict[str, Any]:
        """As it travels in a PREFILL frame."""
        return asdict(self)
