"""What an answer must match: checked when a request comes, asked before each token is drawn."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Grammars"]


class Grammars(Protocol):
    """Grammars of one model's tokenizer. `refusal` may be called on any thread."""

    def refusal(self, grammar: str) -> str | None:
        """Why no answer can be held to this grammar; None if it can."""
        ...

    def mask(self, request_id: str, grammar: str, output: Sequence[int]) -> bytes:
        """Which tokens may follow `output`: bit i % 8 of byte i // 8 is token i's.

        GrammarError if nothing can be said. Called by one thread at a time.
        """
        ...
