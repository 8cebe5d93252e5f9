"""The seam between text and token ids, used by the HTTP server only; the scheduler sees ids."""

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["ChatTemplateError", "Detokenizer", "Tokenizer"]


class ChatTemplateError(ValueError):
    """The messages do not fit the model's template; the text is for the client (status 400)."""


class Detokenizer(Protocol):
    """Ids to text for one sequence; holds bytes back until they are whole characters."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token, often one word, possibly empty."""
        ...

    def flush(self) -> str:
        """What is still held back when the sequence ends."""
        ...


class Tokenizer(Protocol):
    """One model's text side. Thread-safe; `encode` runs on the HTTP thread."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Prompt text of /v1/completions to ids, special tokens as the model wants them."""
        ...

    def chat_to_ids(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Chat messages plus the generation prompt; ChatTemplateError if they do not fit."""
        ...

    def new_detokenizer(self, prompt_ids: Sequence[int]) -> Detokenizer:
        """A fresh detokenizer for the output after this prompt."""
        ...
