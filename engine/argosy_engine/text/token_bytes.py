"""Upper bound on the bytes of a prompt that one token covers.

A prompt of more bytes than a model's context can hold is then refused without being tokenised,
which costs a second of a core for each megabyte. The bound must never refuse a prompt that fits,
so it is given only where every byte of the text is known to be in some token: byte-pair encoding
over bytes, or with a token for each byte to fall back on, and nothing before it that drops text.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import pre_tokenizers

__all__ = ["bytes_per_token", "fewest_tokens"]

# Most bytes of text that one byte of its Unicode normal form can come from. The worst cases are
# U+1FBE U+0308 U+0301 (7 bytes), which NFC makes U+0390 (2), and letters for mathematics (4
# bytes), which NFKC makes ASCII (1).
_NORMAL_FORMS = {"NFC": 4.0, "NFD": 4.0, "NFKC": 4.0, "NFKD": 4.0}
_WHOLE_SPLITS = {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation"}
_BYTE_LETTERS = set(pre_tokenizers.ByteLevel.alphabet())
_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


def bytes_per_token(definition: Mapping[str, Any]) -> tuple[int, float] | None:
    """From a `tokenizer.json`: the longest token's bytes, and what normalising may shrink.

    A text that is not ASCII has at least bytes / (longest · shrink) tokens, an ASCII one at least
    bytes / longest. None: no bound is known.
    """
    model = definition.get("model") or {}
    splits = list(_flat(definition.get("pre_tokenizer"), "pretokenizers"))
    added = definition.get("added_tokens") or []
    shrink = _shrink(_flat(definition.get("normalizer"), "normalizers"))
    if (
        model.get("type") != "BPE"
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or shrink is None
        or not all(map(_keeps_all, splits))
        # Such a token swallows all white space beside it, of any length.
        or any(token.get("lstrip") or token.get("rstrip") for token in added)
    ):
        return None
    longest = _longest(model, any(split.get("type") == "ByteLevel" for split in splits))
    if longest is None:
        return None
    return max([longest, *(len(str(token["content"]).encode()) for token in added)]), shrink


def _flat(part: Mapping[str, Any] | None, inner: str) -> Iterable[Mapping[str, Any]]:
    if part is None:
        return
    if part.get("type") == "Sequence":
        for each in part[inner]:
            yield from _flat(each, inner)
    else:
        yield part


def _shrink(normalizers: Iterable[Mapping[str, Any]]) -> float | None:
    """Bytes of text that one byte after normalising can come from; None: no bound is known."""
    product = 1.0
    for normalizer in normalizers:
        kind = normalizer.get("type")
        if kind in _NORMAL_FORMS:
            product *= _NORMAL_FORMS[kind]
        elif kind == "Replace":
            text = normalizer["pattern"].get("String")  # else a regular expression
            if text is None or len(text.encode()) > len(normalizer["content"].encode()):
                return None
        elif kind != "Prepend":
            return None
    return product


def _keeps_all(split: Mapping[str, Any]) -> bool:
    return split.get("type") in _WHOLE_SPLITS and split.get("behavior") != "Removed"


def _longest(model: Mapping[str, Any], byte_level: bool) -> int | None:
    """Bytes of the longest token; None where a byte may have no token and is dropped."""
    vocab = model["vocab"]
    if byte_level:  # a character of a token is a byte of text, by an alphabet of 256 letters
        return max(map(len, vocab)) if vocab.keys() >= _BYTE_LETTERS else None
    if model.get("byte_fallback") and vocab.keys() >= _BYTE_TOKENS:
        return max(len(word.encode()) for word in vocab)
    return None


def fewest_tokens(text: str, bound: tuple[int, float] | None) -> int:
    """Lower bound of the tokens of `text`; 0 where no bound is known."""
    if bound is None:
        return 0
    longest, shrink = bound
    each = longest if text.isascii() else longest * shrink  # normal forms leave ASCII alone
    return math.ceil(len(text.encode()) / each)
