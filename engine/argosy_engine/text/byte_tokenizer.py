"""Bytes as tokens, for `--load-format dummy` where a folder holds nothing but a config.json."""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ByteTokenizer"]


class ByteTokenizer:
    """Ids 0 … 255 are bytes; a larger vocabulary's ids are taken modulo 256."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def fewest_tokens(self, text: str) -> int:
        return len(text.encode())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        return [byte % self.vocab_size for byte in text.encode()]

    def chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,  # noqa: ARG002
        arguments: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> str:
        return "".join(f"{m.get('role')}: {m.get('content')}\n" for m in messages)

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
