"""Text to token ids and back. Only the HTTP server uses it; the scheduler sees ids."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from argosy_engine.ports.grammars import Grammars

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

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The end of a text as the tokenizer's own files name it; empty if they name none."""
        ...

    @property
    def info(self) -> dict[str, Any]:
        """What clients are told of it, as JSON: `tokenizer_class`, special tokens as texts, and the
        `chat_template`; None where there is none."""
        ...

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of `text`'s tokens, known without encoding it; 0 if there is none."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Prompt text to ids, without holding the interpreter's lock.

        `add_special_tokens` adds what the model expects around a plain text; the text of a chat
        has it already.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of these ids by themselves, with U+FFFD for bytes that are no character."""
        ...

    def grammars(self, vocab_size: int, eos: Collection[int]) -> Grammars | None:
        """What answers in this tokenizer's ids can be held to; `vocab_size` is the model's. None:
        nothing."""
        ...

    def chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        """The prompt of a chat; ChatTemplateError if the messages do not fit the model's template.

        `messages` and `tools` are as the client wrote them. `arguments` are the client's own for
        the template, which may read some and not others. With `continue_final_message` the prompt
        ends within the last message.
        """
        ...

    def new_detokenizer(
        self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """A fresh detokenizer for the output after this prompt."""
        ...
