"""Text to token ids and back. Only the HTTP server uses it; the scheduler sees ids."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Detokenizer", "Tokenizer"]


class Detokenizer(Protocol):
    """Ids to text for one sequence; keeps bytes back until they are whole characters."""

    def push(self, token_id: int) -> str:
        """Text that is complete with this token: often one word, possibly empty."""
        ...

    def flush(self) -> str:
        """What is still kept back when the sequence ends."""
        ...


class Tokenizer(Protocol):
    """One model's tokenizer. Thread-safe: prompts are encoded in threads of their own."""

    @property
    def vocab_size(self) -> int: ...

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of `text`'s tokens, known without encoding it; 0 if there is none."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Prompt text to ids, without holding the interpreter's lock.

        `add_special_tokens` adds what the model expects around a plain text; the text of a chat
        has it already.
        """
        ...

    def chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat; ChatTemplateError if the messages do not fit the model's template.

        `arguments` are the client's own for the template, which may read some and not others.
        """
        ...

    def new_detokenizer(
        self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """A fresh detokenizer for the output after this prompt."""
        ...
