"""Bytes as tokens, for `--load-format dummy` where a folder holds nothing but a config.json."""

import codecs
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from argosy_engine.text.grammars import TokenGrammars
from argosy_engine.text.messages import Reads, prepare

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class ByteTokenizer:
    """Ids 0 … 255 are bytes; a larger vocabulary's ids are taken modulo 256."""

    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def info(self) -> dict[str, Any]:
        return {"tokenizer_class": "ByteTokenizer", "eos_token": None, "chat_template": None}

    def fewest_tokens(self, text: str) -> int:
        return len(text.encode())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        return [byte % self.vocab_size for byte in text.encode()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:  # noqa: ARG002
        return bytes(token_id % 256 for token_id in token_ids).decode(errors="replace")

    def grammars(self, vocab_size: int, eos: Collection[int]) -> TokenGrammars:
        return TokenGrammars(partial(_for_grammars, vocab_size, sorted(eos)))

    def chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,  # noqa: ARG002
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,  # noqa: ARG002
        tools: Sequence[dict[str, Any]] = (),  # noqa: ARG002
    ) -> str:
        shown = prepare(messages, Reads())
        text = "".join(f"{m.get('role')}: {m.get('content')}\n" for m in shown)
        return text.removesuffix("\n") if continue_final_message else text

    def new_detokenizer(
        self,
        prompt_ids: Sequence[int],  # noqa: ARG002
        *,
        skip_special_tokens: bool = True,  # noqa: ARG002
    ) -> "ByteDetokenizer":
        return ByteDetokenizer()


class ByteDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id % 256]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def _for_grammars(vocab_size: int, eos: list[int]) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapped = TokenizerWrapper(_Bytes(vocab_size, min(eos, default=0)))
    return LLTokenizer(wrapped, eos_token=eos)


class _Bytes:
    """The bytes of each id, as llguidance asks for them."""

    bos_token_id = None

    def __init__(self, vocab_size: int, eos: int) -> None:
        self.eos_token_id = eos
        self.tokens = [bytes([token_id % 256]) for token_id in range(vocab_size)]
        self.special_token_ids = [eos]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
