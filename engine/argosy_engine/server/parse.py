"""OpenAI request bodies to what the engine understands; everything else is refused by name.

Input: decoded JSON and header values of one request. Output: `Parsed`, or an ApiError whose
message says what to write instead. Parameters that would change the text and that this engine does
not have are refused rather than ignored; unknown ones are ignored, as OpenAI's clients expect.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.text import ChatTemplateError, Tokenizer
from argosy_engine.server.errors import ApiError

__all__ = ["Parsed", "parse_body", "parse_chat", "parse_completion"]

_MAX_STOPS = 16
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # or half of a whole one


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One validated request."""

    token_ids: list[int]
    sampling: SamplingParams
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    chat: bool


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig")
        body = json.loads(text, parse_int=_whole)
        if _HALF_PAIR.search(text):
            _refuse_half_pairs(body)
    except (ValueError, RecursionError) as fault:
        raise ApiError(400, f"the body is not JSON: {fault}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return body


def _whole(digits: str) -> int:
    """A function of Python's, so that other threads get a turn amid a million token ids."""
    return int(digits)


def _refuse_half_pairs(body: Any) -> None:
    """JSON can write half a surrogate pair; it is no character, and no tokenizer takes it."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "a text holds half a surrogate pair (\\ud800 to \\udfff): send whole characters"
        raise ApiError(400, message, code="invalid_value") from None


def parse_completion(
    body: Mapping[str, Any], tokenizer: Tokenizer, *, served_name: str, max_model_len: int
) -> Parsed:
    """A body of /v1/completions."""
    _refuse_unsupported(body, served_name)
    token_ids = _prompt_ids(body, tokenizer, max_model_len)
    default_max = min(_DEFAULT_COMPLETION_TOKENS, max_model_len - len(token_ids))
    return _parsed(body, token_ids, default_max=default_max, chat=False)


def parse_chat(
    body: Mapping[str, Any], tokenizer: Tokenizer, *, served_name: str, max_model_len: int
) -> Parsed:
    """A body of /v1/chat/completions."""
    _refuse_unsupported(body, served_name)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad("messages", 'each must be an object with a "role" and a "content"')
        if message["role"] != "assistant" and message.get("content") is None:  # that one may call
            raise _bad("messages", f'the message of role {message["role"]!r} has no "content"')
        _check_content(message.get("content"))
    try:
        text = tokenizer.chat_text(messages)
    except ChatTemplateError as fault:
        raise _bad("messages", str(fault)) from None
    token_ids = _encode(text, tokenizer, max_model_len, "messages", special=False)
    return _parsed(body, token_ids, default_max=max_model_len - len(token_ids), chat=True)


def _check_content(content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return
    raise _bad("messages", 'content must be text, or a list of {"type": "text", "text": …}')


def _parsed(body: Mapping[str, Any], ids: list[int], *, default_max: int, chat: bool) -> Parsed:
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _bad("stream_options", "must be an object")
    stream = _flag(body, "stream")
    if options and not stream:
        raise _bad("stream_options", 'only goes with "stream": true')
    return Parsed(
        token_ids=ids,
        sampling=_sampling(body, default_max),
        stops=_stops(body),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        chat=chat,
    )


def _sampling(body: Mapping[str, Any], default_max: int) -> SamplingParams:
    name = (
        "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    )
    max_tokens = _integer(body, name, default_max, low=1)
    seed = _integer(body, "seed", None)
    stop_ids = body.get("stop_token_ids") or []
    if not isinstance(stop_ids, list) or not all(type(i) is int for i in stop_ids):
        raise _bad("stop_token_ids", "must be a list of token ids")
    min_tokens = _integer(body, "min_tokens", 0, low=0)
    if min_tokens > max_tokens:
        raise _bad("min_tokens", f"must be at most max_tokens, {max_tokens}")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_number(body, "temperature", 1.0, low=0.0, high=2.0),
        top_p=_number(body, "top_p", 1.0, low=0.0, high=1.0),
        top_k=max(0, _integer(body, "top_k", 0, low=-1)),
        seed=random.getrandbits(31) if seed is None else seed & 0x7FFF_FFFF_FFFF_FFFF,
        ignore_eos=_flag(body, "ignore_eos"),
        stop_token_ids=tuple(stop_ids),
    )


def _refuse_unsupported(body: Mapping[str, Any], served_name: str) -> None:
    model = body.get("model")
    if not isinstance(model, str):
        raise _bad("model", f'name the model: "{served_name}"')
    if model != served_name:
        raise ApiError(
            404,
            f"there is no model {model!r} here: this engine serves {served_name!r}",
            param="model",
            code="model_not_found",
        )
    if _integer(body, "n", 1) != 1 or _integer(body, "best_of", 1) != 1:
        raise _bad("n", "only one choice a request is made: send the request n times")
    if body.get("logprobs") not in (None, False) or body.get("top_logprobs"):
        raise _bad("logprobs", "are not returned by this engine: leave the parameter out")
    for name in ("presence_penalty", "frequency_penalty", "min_p"):
        if body.get(name):
            raise _bad(name, "is not supported: leave it out or write 0")
    if body.get("repetition_penalty") not in (None, 1, 1.0):
        raise _bad("repetition_penalty", "is not supported: leave it out or write 1")
    for name in ("logit_bias", "suffix", "echo", "tools", "functions"):
        if body.get(name):
            raise _bad(name, "is not supported: leave it out")
    form = body.get("response_format")
    if form and form != {"type": "text"}:
        raise _bad("response_format", 'only {"type": "text"} is supported')


def _prompt_ids(body: Mapping[str, Any], tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _encode(prompt, tokenizer, max_model_len, "prompt", special=True)
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        _refuse_long(len(prompt), max_model_len, "prompt")
        if all(type(token) is int for token in prompt):
            if min(prompt) < 0 or max(prompt) >= tokenizer.vocab_size:
                raise _bad("prompt", f"token ids are 0 … {tokenizer.vocab_size - 1}")
            return prompt
    raise _bad("prompt", "must be a text or a list of token ids; one prompt a request")


def _encode(
    text: str, tokenizer: Tokenizer, max_model_len: int, param: str, *, special: bool
) -> list[int]:
    """Ids of a text that fits; most of those that do not are refused before they cost a second."""
    _refuse_long(tokenizer.fewest_tokens(text), max_model_len, param, about="at least ")
    token_ids = tokenizer.encode(text, add_special_tokens=special)
    if not token_ids:
        raise _bad(param, "is empty: send at least one token")
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
        raise _bad("stop", f"must be a text or a list of at most {_MAX_STOPS} non-empty texts")
    return tuple(stops)


def _integer(body: Mapping[str, Any], name: str, default: Any, *, low: int | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _bad(name, f"must be a whole number, got {value!r:.40}")
    if low is not None and value < low:
        raise _bad(name, f"must be at least {low}, got {value}")
    return value


def _number(
    body: Mapping[str, Any], name: str, default: float, *, low: float, high: float
) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not low <= value <= high:
        raise _bad(name, f"must be a number from {low:g} to {high:g}, got {value!r:.40}")
    return float(value)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _bad(name, f"must be true or false, got {value!r:.40}")
    return value


def _bad(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
