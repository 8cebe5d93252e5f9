"""The requests of `make bench-cluster`, and the exact text that each must be answered with.

A simulated engine's token depends on the first token of the prompt and on its position alone, so
the client knows every answer in advance. Every prompt has a first word of its own: one request's
text is never right for another. For real weights both are read from a file that `answers` writes.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from argosy_engine.runtime.sim import SimTokenizer, token_at

_WORDS = (10, 400)
_TOKENS = (8, 120)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; everything follows from its number."""

    number: int
    prompt: str
    prompt_tokens: int
    tokens: int
    """Of the answer."""
    stream: bool
    text: str
    """The answer, whichever engines work on it."""

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


Asks = Callable[[int], Ask]
"""The request with a number: streamed and whole ones in turn, short and long ones mixed."""


def ask_of(number: int) -> Ask:
    """Of simulated engines, for which a word is a token."""
    draw = random.Random(number)  # noqa: S311 - the same requests in every run
    words, tokens = draw.randint(*_WORDS), draw.randint(*_TOKENS)
    prompt = f"r{number}" + " word" * (words - 1)
    first = SimTokenizer().encode(prompt)[0]
    text = "".join(f"tok{token_at(first, words + step)} " for step in range(tokens))
    return Ask(number, prompt, words, tokens, _streamed(number), text)


def asks_in(file: Path) -> Asks:
    """Of real weights; after the last one in the file the first one comes again."""
    known = json.loads(file.read_text())

    def asked(number: int) -> Ask:
        return Ask(number=number, stream=_streamed(number), **known[number % len(known)])

    return asked


def _streamed(number: int) -> bool:
    return number % 2 == 0
