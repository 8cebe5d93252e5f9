"""Small tokenizers of the kinds that models have, as the folders that an engine reads."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from argosy_engine.text.hf_tokenizer import HfTokenizer

BYTE_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ("<unk>", "<s>", "</s>")


def byte_level() -> Tokenizer:
    """As Llama 3's: every byte is a letter of the alphabet; three merges."""
    merges = [("a", "a"), ("aa", "aa"), ("Ġ", "Ġ")]
    words = [*SPECIAL, *BYTE_LETTERS, "aa", "aaaa", "ĠĠ"]
    model = models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made


def composed() -> Tokenizer:
    """As Qwen's: NFC before the bytes."""
    made = byte_level()
    made.normalizer = normalizers.NFC()
    return made


def metaspace() -> Tokenizer:
    """As Llama 2's and Mistral's: ▁ is a space, and what is no word is bytes."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁theca", "▁t", "▁c"]
    pieces += ["he", "▁the", "at", "▁cat"]
    merges = [("▁", "t"), ("▁", "c"), ("h", "e"), ("▁t", "he"), ("a", "t"), ("▁c", "at")]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(list(SPECIAL))
    return made


def swallowing() -> Tokenizer:
    """One of its special tokens takes the white space beside it."""
    made = byte_level()
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return made


def dropping() -> Tokenizer:
    """White space is in no token."""
    made = byte_level()
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return made


def lower_case() -> Tokenizer:
    """Three bytes of a Kelvin sign become one of a k."""
    made = byte_level()
    made.normalizer = normalizers.Lowercase()
    return made


def lacking() -> Tokenizer:
    """One byte has no token, and is dropped."""
    vocab = {letter: index for index, letter in enumerate(BYTE_LETTERS[1:])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def whole_words() -> Tokenizer:
    """A word of any length is the unknown one."""
    made = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def read(tokenizer: Tokenizer, folder: Path, **config: object) -> HfTokenizer:
    """What an engine reads; `config` is tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return HfTokenizer(folder)
