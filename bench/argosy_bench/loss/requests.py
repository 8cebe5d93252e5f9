"""The requests of `make test-loss`, and the exact text that each must be answered with.

A simulated engine's token depends on the first token of the prompt and on its position alone, so
the client knows every answer in advance. Every prompt has a first word of its own: one request's
text is never right for another.
"""

import random
from dataclasses import dataclass

from argosy_engine.runtime.sim.runner import SimTokenizer, token_at

_WORDS = (10, 400)
_TOKENS = (8, 120)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; everything follows from its number."""

    number: int
    words: int
    """Tokens of the prompt: a word is a token of a simulated engine."""
    tokens: int
    """Tokens of the answer."""
    stream: bool

    @property
    def prompt(self) -> str:
        return f"r{self.number}" + " word" * (self.words - 1)

    def body(self, model: str) -> dict[str, object]:
        """As it is sent to /v1/completions."""
        body: dict[str, object] = {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def text(self) -> str:
        """What a simulated engine answers, whichever engines work on it."""
        first = SimTokenizer().encode(self.prompt)[0]
        ids = (token_at(first, self.words + step) for step in range(self.tokens))
        return "".join(f"tok{token} " for token in ids)


def ask_of(number: int) -> Ask:
    """The request with this number: streamed and whole ones in turn, short and long ones mixed."""
    draw = random.Random(number)  # noqa: S311 - the same requests in every run
    return Ask(number, draw.randint(*_WORDS), draw.randint(*_TOKENS), stream=number % 2 == 0)
