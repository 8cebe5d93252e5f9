"""The text side of a Hugging Face folder: `tokenizer.json` and `tokenizer_config.json`.

Only whole characters leave a detokenizer. A prompt of more bytes than a model's context can hold is
refused without being tokenised, which costs a second of a core for each megabyte. The bound
(`bytes_per_token`) must never refuse a prompt that fits, so it is given only where every byte
of the text is known to be in some token.
"""

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import pre_tokenizers
from tokenizers.decoders import DecodeStream

from argosy_engine.errors import ChatTemplateError, LoadError
from argosy_engine.text.chat_template import ChatTemplate
from argosy_engine.text.grammars import TokenGrammars, defined_tokenizer

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


_OF_FILES = {
    *("vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file"),
    *("name_or_path", "auto_map"),
}
"""Members of tokenizer_config.json that clients are not told."""
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
"""Names of templates. Some models have one more for chats with tools."""
_MORE_TEMPLATES = "additional_chat_templates"
"""Folder of templates by name."""


class HfTokenizer:
    """Implements `core.tokenizer.Tokenizer`. The Rust object inside may be shared by threads."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise LoadError("ModelNotFound", f"{path} does not exist: copy the model's own file")
        # One text is encoded in the calling thread; more threads of the library would be idle.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            definition = path.read_text("utf-8")
            self._tokenizer = RustTokenizer.from_str(definition)
            self._bytes_per_token = bytes_per_token(json.loads(definition))
        except Exception as error:  # the Rust side raises bare Exception
            raise LoadError("WeightsInvalid", f"{path} is not a tokenizer: {error}") from error
        # A file may enable both; a prompt that is too long is refused, not truncated.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._definition = definition
        config = _config(folder)
        end = self._tokenizer.token_to_id(_special_tokens(config).get("eos_token", ""))
        self.eos_token_ids: frozenset[int] = frozenset() if end is None else frozenset({end})
        templates = _templates(folder, config)
        self._chats = {
            name: _chat_template(folder, source, config) for name, source in templates.items()
        }
        self.info = _info(config, templates.get(_DEFAULT))

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def fewest_tokens(self, text: str) -> int:
        return fewest_tokens(text, self._bytes_per_token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # The library's `encode` holds the GIL all the time; this call releases it.
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        decoded = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return str(decoded)

    def grammars(self, vocab_size: int, eos: Collection[int]) -> TokenGrammars:
        # Some folders define tokens beyond the model's ids. No such token is ever drawn.
        n_vocab = max([vocab_size, *(id_ + 1 for id_ in self._tokenizer.get_vocab().values())])
        return TokenGrammars(partial(defined_tokenizer, self._definition, n_vocab, sorted(eos)))

    def chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        chat = (self._chats.get(_WITH_TOOLS) if tools else None) or self._chats.get(_DEFAULT)
        if chat is None:
            raise ChatTemplateError("this model has no chat template: use /v1/completions")
        return chat.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            arguments=arguments,
            tools=tools,
        )

    def new_detokenizer(
        self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> StreamDetokenizer:
        return StreamDetokenizer(
            self._tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens
        )


def _config(folder: Path) -> dict[str, Any]:
    config = _read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in config:
        return config
    # Written by older versions of transformers, where it has what the other file lacks.
    return config | _read_object(folder / "special_tokens_map.json")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise LoadError("WeightsInvalid", f"{path}: {error!r}") from error
    if not isinstance(config, dict):
        raise LoadError("WeightsInvalid", f"{path} is not a JSON object")
    return config


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name: from *.jinja files, else from the config, which has one text or a list of them."""
    try:
        files = {path.stem: path for path in (folder / _MORE_TEMPLATES).glob("*.jinja")}
        files[_DEFAULT] = folder / "chat_template.jinja"
        found = {name: path.read_text("utf-8") for name, path in files.items() if path.is_file()}
        if _DEFAULT in found:
            return found
        given = config.get("chat_template")
        if isinstance(given, list):
            return {str(entry["name"]): entry["template"] for entry in given}
        return {_DEFAULT: given} if given else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError("WeightsInvalid", f"{folder}: its chat template: {error!r}") from error


def _chat_template(folder: Path, source: str, config: dict[str, Any]) -> ChatTemplate:
    try:
        return ChatTemplate(source, _special_tokens(config))
    except (TypeError, RecursionError, MemoryError, jinja2.TemplateError) as error:
        path = folder / "tokenizer_config.json"
        raise LoadError("WeightsInvalid", f"{path}: {error!r}") from error


def _info(config: dict[str, Any], template: str | None) -> dict[str, Any]:
    """tokenizer_config.json as vLLM shows it: each added token is its text, and no name is that of
    a file or of a program."""
    told = {name: _as_text(value) for name, value in config.items() if name not in _OF_FILES}
    for name in ("bos_token", "eos_token", "pad_token"):
        told.setdefault(name, None)
    told.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    return {**told, "chat_template": template}


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        if "content" in value:
            return value["content"]
        return {name: _as_text(each) for name, each in value.items()}
    return [_as_text(each) for each in value] if isinstance(value, list) else value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and its kind, which templates name; each is a text or {"content": text}."""
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None:
            tokens[name] = str(value)
    return tokens
