"""OpenAI request bodies to what the engine understands; everything else is refused by name.

Input: decoded JSON and header values of one request. Output: `Parsed`, or an ApiError whose
message says what to write instead. `parameters` lists what is refused by name.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.sampling import SamplingDefaults, SamplingParams
from argosy_engine.errors import ChatTemplateError
from argosy_engine.ports.tokenizer import Tokenizer
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.parameters import bad, refuse_unsupported

__all__ = ["Parsed", "parse_body", "parse_chat", "parse_completion"]

_MAX_STOPS = 16
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_DEFAULTS = SamplingDefaults()
_MOST_IDS = 1 << 31  # of a vocabulary, and of top_k
# What the server gives to a chat template; a client's own would replace it.
_TEMPLATE_NAMES = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
    "chat_template", "tokenize", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "pad_token",
}  # fmt: skip
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # or half of a whole one


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One validated request."""

    token_ids: list[int]
    sampling: SamplingParams
    stops: tuple[str, ...]
    skip_special_tokens: bool
    stream: bool
    include_usage: bool
    chat: bool


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig")
        body = json.loads(text, parse_int=_whole)
        if _HALF_PAIR.search(text):
            _refuse_half_pairs(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return body


def _whole(digits: str) -> int:
    """In Python, not in C: other threads get a turn while a million token ids are read."""
    return int(digits)


def _refuse_half_pairs(body: Any) -> None:
    """JSON can write half a surrogate pair; it is no character, and no tokenizer takes it."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "a text holds half a surrogate pair (\\ud800 to \\udfff): send whole characters"
        raise ApiError(400, message, code="invalid_value") from None


def parse_completion(
    body: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    served_name: str,
    max_model_len: int,
    defaults: SamplingDefaults = _DEFAULTS,
) -> Parsed:
    """A body of /v1/completions."""
    _check_model(body, served_name)
    refuse_unsupported(body)
    token_ids = _prompt_ids(body, tokenizer, max_model_len)
    default_max = min(_DEFAULT_COMPLETION_TOKENS, max_model_len - len(token_ids))
    return _parsed(body, token_ids, _sampling(body, default_max, defaults), chat=False)


def parse_chat(
    body: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    served_name: str,
    max_model_len: int,
    defaults: SamplingDefaults = _DEFAULTS,
) -> Parsed:
    """A body of /v1/chat/completions."""
    _check_model(body, served_name)
    refuse_unsupported(body)
    text = _chat_text(body, tokenizer)
    special = _flag(body, "add_special_tokens")
    token_ids = _encode(text, tokenizer, max_model_len, "messages", special=special)
    sampling = _sampling(body, max_model_len - len(token_ids), defaults)
    return _parsed(body, token_ids, sampling, chat=True)


def _chat_text(body: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise bad("messages", 'each must be an object with a "role" and a "content"')
        if message["role"] != "assistant" and message.get("content") is None:  # that one may call
            raise bad("messages", f'the message of role {message["role"]!r} has no "content"')
        _check_content(message.get("content"))
    try:
        return tokenizer.chat_text(
            messages,
            add_generation_prompt=_flag(body, "add_generation_prompt", default=True),
            arguments=_template_arguments(body),
        )
    except ChatTemplateError as error:
        raise bad("messages", str(error)) from None


def _template_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    arguments = body.get("chat_template_kwargs") or {}
    if not isinstance(arguments, dict):
        raise bad("chat_template_kwargs", 'must be an object, such as {"enable_thinking": false}')
    if taken := sorted(arguments.keys() & _TEMPLATE_NAMES):
        raise bad("chat_template_kwargs", f"the server gives {taken[0]!r} itself: leave it out")
    return arguments


def _check_content(content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return
    raise bad("messages", 'content must be text, or a list of {"type": "text", "text": …}')


def _parsed(
    body: Mapping[str, Any], ids: list[int], sampling: SamplingParams, *, chat: bool
) -> Parsed:
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad("stream_options", "must be an object")
    stream = _flag(body, "stream")
    if options and not stream:
        raise bad("stream_options", 'only goes with "stream": true')
    if _flag(options, "continuous_usage_stats"):
        raise bad("stream_options", "continuous_usage_stats: usage comes once, at the end")
    return Parsed(
        token_ids=ids,
        sampling=sampling,
        stops=_stops(body),
        skip_special_tokens=_flag(body, "skip_special_tokens", default=True),
        stream=stream,
        include_usage=_flag(options, "include_usage"),
        chat=chat,
    )


def _sampling(
    body: Mapping[str, Any], default_max: int, defaults: SamplingDefaults
) -> SamplingParams:
    name = (
        "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    )
    max_tokens = _integer(body, name, default_max, low=1)
    seed = _integer(body, "seed", None)
    stop_ids = body.get("stop_token_ids") or []
    if not isinstance(stop_ids, list) or not all(
        type(i) is int and 0 <= i < _MOST_IDS for i in stop_ids
    ):
        raise bad("stop_token_ids", "must be a list of token ids")
    min_tokens = _integer(body, "min_tokens", 0, low=0)
    if min_tokens > max_tokens:
        raise bad("min_tokens", f"must be at most max_tokens, {max_tokens}")
    penalty = defaults.repetition_penalty
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_number(body, "temperature", defaults.temperature, low=0.0, high=2.0),
        top_p=_number(body, "top_p", defaults.top_p, low=0.0, high=1.0),
        top_k=min(max(0, _integer(body, "top_k", defaults.top_k, low=-1)), _MOST_IDS),
        repetition_penalty=_number(body, "repetition_penalty", penalty, low=0.01, high=100.0),
        seed=random.getrandbits(31) if seed is None else seed & 0x7FFF_FFFF_FFFF_FFFF,
        ignore_eos=_flag(body, "ignore_eos"),
        stop_token_ids=tuple(stop_ids),
    )


def _check_model(body: Mapping[str, Any], served_name: str) -> None:
    model = body.get("model")
    if not isinstance(model, str):
        raise bad("model", f'name the model: "{served_name}"')
    if model != served_name:
        raise ApiError(
            404,
            f"there is no model {model!r} here: this engine serves {served_name!r}",
            param="model",
            code="model_not_found",
        )


def _prompt_ids(body: Mapping[str, Any], tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        special = _flag(body, "add_special_tokens", default=True)
        return _encode(prompt, tokenizer, max_model_len, "prompt", special=special)
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        _refuse_long(len(prompt), max_model_len, "prompt")
        if all(type(token) is int for token in prompt):
            if min(prompt) < 0 or max(prompt) >= tokenizer.vocab_size:
                raise bad("prompt", f"token ids are 0 … {tokenizer.vocab_size - 1}")
            return prompt
    raise bad("prompt", "must be a text or a list of token ids; one prompt a request")


def _encode(
    text: str, tokenizer: Tokenizer, max_model_len: int, param: str, *, special: bool
) -> list[int]:
    """Ids of a text that fits; most of those that do not are refused before they cost a second."""
    _refuse_long(tokenizer.fewest_tokens(text), max_model_len, param, about="at least ")
    token_ids = tokenizer.encode(text, add_special_tokens=special)
    if not token_ids:
        raise bad(param, "is empty: send at least one token")
    _refuse_long(len(token_ids), max_model_len, param)
    return token_ids


def _refuse_long(count: int, max_model_len: int, param: str, *, about: str = "") -> None:
    if count >= max_model_len:
        raise ApiError(
            400,
            f"this model's context is {max_model_len} tokens and the prompt has {about}{count}: "
            "shorten it so that at least one token can follow",
            param=param,
            code="context_length_exceeded",
        )


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stops = body.get("stop")
    if stops is None:
        return ()
    if isinstance(stops, str):
        stops = [stops]
    if (
        not isinstance(stops, list)
        or len(stops) > _MAX_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise bad("stop", f"must be a text or a list of at most {_MAX_STOPS} non-empty texts")
    return tuple(stops)


def _integer(body: Mapping[str, Any], name: str, default: Any, *, low: int | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise bad(name, f"must be a whole number, got {value!r:.40}")
    if low is not None and value < low:
        raise bad(name, f"must be at least {low}, got {value}")
    return value


def _number(
    body: Mapping[str, Any], name: str, default: float, *, low: float, high: float
) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not low <= value <= high:
        raise bad(name, f"must be a number from {low:g} to {high:g}, got {value!r:.40}")
    return float(value)


def _flag(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(name, f"must be true or false, got {value!r:.40}")
    return value
