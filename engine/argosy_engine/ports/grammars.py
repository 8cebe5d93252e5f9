"""What an answer must match: checked when a request comes, asked before each token is drawn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Grammars"]


class Grammars(Protocol):
    """Grammars of one model's tokenizer. All but `mask` may be called on any thread."""

    @property
    def make(self) -> Callable[[], Any]:
        """Makes what they know of the tokenizer; can be pickled."""
        ...

    def refusal(self, grammar: str) -> str | None:
        """Why no answer can be held to this grammar; None if it can. Nothing is kept of it. With a
        hostile grammar it takes minutes, or ends the process."""
        ...

    def knows(self, grammar: str) -> bool:
        """It is compiled: its first mask comes at once."""
        ...

    def prepare(self, grammar: str) -> None:
        """Compile it, without the interpreter's lock."""
        ...

    def held(self, grammar: str) -> AbstractContextManager[None]:
        """Once compiled it stays so until the end of this: of the request that has it."""
        ...

    def mask(self, request_id: str, grammar: str, output: Sequence[int]) -> bytes:
        """Which tokens may follow `output`: bit i % 8 of byte i // 8 is token i's.

        GrammarError if nothing can be said. Called by one thread at a time.
        """
        ...
