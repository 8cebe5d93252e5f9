"""How the tokens of a request are drawn, and when it ends.

Made by the HTTP server from an OpenAI body, or by the KV server from a PREFILL frame. The scheduler
reads when the request ends, the runner how to draw.
"""

from dataclasses import dataclass, fields
from typing import Any

Likely = tuple[tuple[int, float, int], ...]
"""(token id, log probability, rank from 1): the token of the text first, then the likeliest. The
probabilities are the model's, before temperature, penalties and limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values for requests that leave them out.

    The runner reads them from the model's generation_config.json. The defaults here are OpenAI's.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's parameters; the servers have validated them."""

    max_tokens: int
    """Output tokens at most."""

    min_tokens: int = 0
    """Before that many output tokens, neither eos nor a stop token is drawn or ends the request."""

    temperature: float = 1.0
    """0: greedy."""

    top_p: float = 1.0
    """1: off."""

    top_k: int = 0
    """0: off."""

    repetition_penalty: float = 1.0
    """Over prompt and output; 1: off."""

    presence_penalty: float = 0.0
    """Taken from the logit of each token that the output contains."""

    frequency_penalty: float = 0.0
    """Taken from the logit of a token once for each time that the output contains it."""

    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one are not drawn; 0: off."""

    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""

    allowed_token_ids: tuple[int, ...] = ()
    """Only these are drawn; empty: all."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of token ids that the output never contains."""

    grammar: str = ""
    """What the output matches, in llguidance's form; empty: anything."""

    sent: int = 0
    """So many of the prompt's last tokens are output already, which another engine sent."""

    logprobs: int | None = None
    """How many of the likeliest tokens are told with each output token; None: nothing is told."""

    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""

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

    @property
    def plain(self) -> bool:
        """The logits are drawn from as they are, apart from temperature and the shares' limits."""
        return (
            self.repetition_penalty == 1.0
            and not self.presence_penalty
            and not self.frequency_penalty
            and not self.min_tokens
            and not self.logit_bias
            and not self.allowed_token_ids
            and not self.bad_words
        )

    @property
    def memoryless(self) -> bool:
        """A draw needs nothing but its logits: no token before it, and nothing is told of it. So
        the next step can be launched before the last one's tokens are read."""
        told = self.logprobs is not None or self.prompt_logprobs is not None
        return self.plain and not self.grammar and not told

    def to_json(self) -> dict[str, Any]:
        """The form of a PREFILL frame.

        Newer fields are left out at their default: engines of earlier releases refuse them. What is
        told of the tokens is computed by the engine that answers.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        told = ("logprobs", "prompt_logprobs")
        return {
            name: value
            for name, value in values.items()
            if name not in told and (value or name not in _LEFT_OUT)
        }


_LEFT_OUT = frozenset({
    "presence_penalty", "frequency_penalty", "min_p", "logit_bias", "allowed_token_ids",
    "bad_words", "grammar", "sent",
})  # fmt: skip
