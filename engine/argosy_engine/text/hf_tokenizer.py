"""The text side of a Hugging Face folder: `tokenizer.json` and `tokenizer_config.json`."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer as RustTokenizer

from argosy_engine.errors import ChatTemplateError, LoadError
from argosy_engine.text.chat_template import ChatTemplate
from argosy_engine.text.detokenizer import StreamDetokenizer
from argosy_engine.text.grammars import TokenGrammars, defined_tokenizer
from argosy_engine.text.token_bytes import bytes_per_token, fewest_tokens

__all__ = ["HfTokenizer"]

_OF_FILES = {
    *("vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file"),
    *("name_or_path", "auto_map"),
}
"""Members of tokenizer_config.json that clients are not told."""


class HfTokenizer:
    """Implements `ports.tokenizer.Tokenizer`. The Rust object inside may be shared by threads."""

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
        template = _template(folder, config)
        self._chat = _chat_template(folder, template, config)
        self.info = _info(config, template)

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
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        if self._chat is None:
            raise ChatTemplateError("this model has no chat template: use /v1/completions")
        return self._chat.render(
            messages, add_generation_prompt=add_generation_prompt, arguments=arguments, tools=tools
        )

    def new_detokenizer(
        self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> StreamDetokenizer:
        return StreamDetokenizer(
            self._tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens
        )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise LoadError("WeightsInvalid", f"{path}: {error!r}") from error
    if not isinstance(config, dict):
        raise LoadError("WeightsInvalid", f"{path} is not a JSON object")
    return config


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    """From chat_template.jinja, else from the config (a text, or a list with a "default")."""
    own_file = folder / "chat_template.jinja"
    try:
        source = own_file.read_text("utf-8") if own_file.is_file() else config.get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        return source or None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError("WeightsInvalid", f"{folder}: its chat template: {error!r}") from error


def _chat_template(
    folder: Path, template: str | None, config: dict[str, Any]
) -> ChatTemplate | None:
    try:
        return ChatTemplate(template, _special_tokens(config)) if template else None
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
