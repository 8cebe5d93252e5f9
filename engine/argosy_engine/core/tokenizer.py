"""What a model's tokenizer does: text to token ids and back, and what answers are held to.

Only the HTTP server and the runner use it; the scheduler sees ids.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


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
