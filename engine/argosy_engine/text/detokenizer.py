"""Token ids to text as they arrive; only whole characters leave."""

from collections.abc import Sequence

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.decoders import DecodeStream

__all__ = ["StreamDetokenizer"]

_LONGEST_CHARACTER = 4  # bytes of UTF-8, and so tokens of byte fallback
_CONTEXT = 16  # last tokens of the prompt: enough for an unfinished character and a word before it


class StreamDetokenizer:
    """One sequence's output, as it reads after the prompt's end.

    Without the prompt every output would begin a text, and decoders of the Metaspace kind take the
    first space of a text away.
    """

    def __init__(
        self, tokenizer: RustTokenizer, prompt_ids: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._held: list[int] = []  # tokens whose text is not out yet
        for token_id in self._context(prompt_ids):
            self.push(token_id)
        self._held.clear()

    def _context(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """The prompt's last tokens, from the beginning of a character on.

        Decoders with byte fallback give up a whole run of bytes when it begins in the middle of a
        character, and the output's own characters with it. They do so when it ends in one, which
        the output completes: so the end is tried with up to three tokens less.
        """
        tails = [list(prompt_ids[-(_CONTEXT + more) :]) for more in range(_LONGEST_CHARACTER)]
        for tail in tails:
            ends = (tail[: len(tail) - less] for less in range(_LONGEST_CHARACTER))
            if any(not self._whole(ids).startswith("\ufffd") for ids in ends):
                return tail
        return tails[0]

    def _whole(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip))

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception:  # the Rust side raises bare Exception
            text = self._restart()
        if text is None:
            return ""
        self._held.clear()
        return str(text)

    def _restart(self) -> str | None:
        """Drop the earlier tokens: with them the decoder would change text that was sent."""
        self._stream = DecodeStream(skip_special_tokens=self._skip)
        texts = [self._stream.step(self._tokenizer, token_id) for token_id in self._held]
        return "".join(filter(None, texts)) or None

    def flush(self) -> str:
        """Bytes that never became a character appear as U+FFFD."""
        held, self._held = self._held, []
        return self._whole(held) if held else ""
