"""The seam between text and token ids, used by the HTTP server only; the scheduler sees ids."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Detokenizer", "Tokenizer"]


class Detokenizer(Protocol):
    """Ids to text for one sequence; holds bytes back until they are whole characters."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token, often one word, possibly empty."""
        ...

    def flush(self) -> str:
        """What is still held back when the sequence ends."""
        ...


class Tokenizer(Protocol):
    """One model's text side. Thread-safe: prompts are encoded in threads of their own."""

    @property
    def vocab_size(self) -> int: ...

    def fewest_tokens(self, text: str) -> int:
        """`text` has no fewer tokens than this, known without encoding it; 0: no bound is known."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Prompt text to ids. `add_special_tokens` puts what the model wants around a plain text;
        the text of a chat has it already. Other threads run meanwhile."""
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
