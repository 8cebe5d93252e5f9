"""How the tokens of a request are drawn, and when it ends.

Made by the HTTP server from an OpenAI body, or by the KV server from a PREFILL frame. The scheduler
reads when the request ends, the runner how to draw.
"""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["SamplingDefaults", "SamplingParams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values for requests that leave them out.

    The runner reads them from the model's generation_config.json. The defaults here are OpenAI's.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's parameters; the servers have validated them."""

    max_tokens: int
    """Output tokens at most."""

    min_tokens: int = 0
    """Before that many output tokens, neither eos nor a stop token ends the request."""

    temperature: float = 1.0
    """0: greedy."""

    top_p: float = 1.0
    """1: off."""

    top_k: int = 0
    """0: off."""

    repetition_penalty: float = 1.0
    """Over prompt and output; 1: off."""

    seed: int = 0
    """A runner draws the token at position p from a generator keyed by (seed, p). So a request that
    is preempted, chunked or handed over continues with the same text. The HTTP server gives a
    request without a seed a random one."""

    ignore_eos: bool = False
    """Only `max_tokens` and `stop_token_ids` end the request; for measurements."""

    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the request, besides the model's eos."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_json(self) -> dict[str, Any]:
        """The form of a PREFILL frame."""
        return asdict(self)
