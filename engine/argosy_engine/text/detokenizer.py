"""Ids to text as they come, never half a character."""

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.decoders import DecodeStream

__all__ = ["StreamDetokenizer"]


class StreamDetokenizer:
    """One sequence's output. Special tokens give no text."""

    def __init__(self, tokenizer: RustTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            return ""
        self._held.clear()
        return str(text)

    def flush(self) -> str:
        """Bytes that never became a character show as U+FFFD."""
        held, self._held = self._held, []
        return str(self._tokenizer.decode(held, skip_special_tokens=True)) if held else ""
