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
