"""OpenAI request bodies to what the engine understands; everything else is refused by name.

Input: decoded JSON and header values of one request. Output: `Parsed`, or an ApiError whose
message says what to write instead. `parameters` lists what is refused by name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.sampling import SamplingDefaults, SamplingParams
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.errors import ChatTemplateError
from argosy_engine.server.openai.asked.fields import flag, texts
from argosy_engine.server.openai.asked.form import Form, form_of
from argosy_engine.server.openai.asked.prompts import (
    Prompt,
    encode,
    prompts_of,
    refuse_long_answer,
)
from argosy_engine.server.openai.asked.sampling import sampling_of
from argosy_engine.server.openai.asked.structure import Structure, structure_of
from argosy_engine.server.openai.asked.tools import NO_TOOLS, Tools, tools_of
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.parameters import bad, refuse_unsupported
from argosy_engine.server.openai.reply.shaping import thinks_at_its_end
from argosy_engine.text.messages import TEXT_PARTS

__all__ = ["Parsed", "chat_text", "check_model", "parse_body", "parse_chat", "parse_completion"]

_MAX_STOPS = 64
_LONGEST_SALT = 1024
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_DEFAULTS = SamplingDefaults()
# What the server gives to a chat template; a client's own would replace it.
_TEMPLATE_NAMES = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
    "chat_template", "tokenize", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "pad_token",
}  # fmt: skip
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NO_TEXT = (
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "input_file",
)
"""Kinds of parts of a message, in OpenAI's API and vLLM's."""
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # or half of a whole one


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One validated request."""

    prompts: tuple[Prompt, ...]
    """At least one; each gets `form.n` choices."""

    sampling: SamplingParams
    stops: tuple[str, ...]
    include_stops: bool
    """What ends the answer stands at its end."""
    skip_special_tokens: bool
    stream: bool
    include_usage: bool
    chat: bool
    form: Form

    structure: Structure
    """What its answers match."""

    cache_salt: str
    """Only requests with the same salt share KV blocks with this one; empty: all without one."""

    @property
    def token_ids(self) -> list[int]:
        """The only prompt, or the first of several."""
        return self.prompts[0].token_ids

    @property
    def prompt_name(self) -> str:
        """The member that holds the prompt, as errors name it."""
        return "messages" if self.chat else "prompt"

    @property
    def resumable(self) -> bool:
        """A stream of it can go on at another engine: all that its client has is text."""
        return len(self.prompts) == 1 and self.form.only_text


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
    tool_parser: str = "",  # noqa: ARG001 - chats only
    reasons: bool = False,  # noqa: ARG001
) -> Parsed:
    """A body of /v1/completions."""
    check_model(body, served_name)
    refuse_unsupported(body)
    prompts = prompts_of(body, tokenizer, max_model_len)
    longest = max(len(prompt.token_ids) for prompt in prompts)
    default_max = min(_DEFAULT_COMPLETION_TOKENS, max_model_len - longest)
    form = form_of(body, chat=False, prompts=len(prompts))
    structure = structure_of(body)
    sampling = sampling_of(body, default_max, defaults, tokenizer, form, structure.grammar)
    refuse_long_answer(body, longest, sampling.max_tokens, max_model_len)
    return _parsed(body, prompts, sampling, form, structure, chat=False)


def parse_chat(
    body: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    served_name: str,
    max_model_len: int,
    defaults: SamplingDefaults = _DEFAULTS,
    tool_parser: str = "",
    reasons: bool = False,
) -> Parsed:
    """A body of /v1/chat/completions. `tool_parser` and `reasons` are the engine's options."""
    check_model(body, served_name)
    refuse_unsupported(body)
    tools = tools_of(body, tool_parser)
    text = chat_text(body, tokenizer, tools)
    special = flag(body, "add_special_tokens")
    prompt = encode(body, text, tokenizer, max_model_len, "messages", special=special)
    structure = tools.structure if tools.structure.grammar else structure_of(body)
    if structure.grammar:
        # A grammar leaves room for reasoning only where the template has begun it.
        reasons = reasons and thinks_at_its_end(text)
        structure = structure.after_thought() if reasons else structure
    form = form_of(body, chat=True, prompts=1, tools=tools, reasons=reasons)
    length = len(prompt.token_ids)
    most = max_model_len - length
    sampling = sampling_of(body, most, defaults, tokenizer, form, structure.grammar)
    refuse_long_answer(body, length, sampling.max_tokens, max_model_len)
    return _parsed(body, (prompt,), sampling, form, structure, chat=True)


def chat_text(body: Mapping[str, Any], tokenizer: Tokenizer, tools: Tools = NO_TOOLS) -> str:
    """The prompt of `messages`. ApiError 400."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "must be a list with at least one message")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise bad(f"messages[{at}]", 'must be an object with a "role" and a "content"')
        if not isinstance(message.get("role"), str):
            raise bad(f"messages[{at}].role", 'must be a text, such as "user"')
        content = message.get("content")
        if message["role"] != "assistant" and content is None:  # that one may call
            raise bad(f"messages[{at}].content", f"is missing, of role {message['role']!r:.40}")
        _check_content(content, f"messages[{at}].content")
        _check_calls(message.get("tool_calls"), f"messages[{at}].tool_calls")
    continues = flag(body, "continue_final_message")
    if continues and flag(body, "add_generation_prompt"):
        raise bad("continue_final_message", "does not go with add_generation_prompt: write one")
    try:
        return tokenizer.chat_text(
            messages,
            tools=tools.shown,
            add_generation_prompt=flag(body, "add_generation_prompt", default=not continues),
            continue_final_message=continues,
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
    effort = body.get("reasoning_effort")
    if effort is None:
        return arguments
    if effort not in _EFFORTS:
        raise bad("reasoning_effort", f"must be one of {', '.join(_EFFORTS)}, got {effort!r:.40}")
    # As in vLLM: some templates read the one, some the other.
    return {"enable_thinking": effort != "none", **arguments, "reasoning_effort": effort}


def _check_content(content: Any, path: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise bad(path, 'must be text, or a list of {"type": "text", "text": …}')
    for at, part in enumerate(content):
        if _is_text(part):
            continue
        if isinstance(part, dict) and part.get("type") in _NO_TEXT:
            raise bad(
                f"{path}[{at}]",
                "only text is read: images, sound and files are out of scope, as "
                'SCOPE.md says; write {"type": "text", "text": …}',
            )
        raise bad(f"{path}[{at}]", 'must be {"type": "text", "text": …}')


def _is_text(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return isinstance(part.get(TEXT_PARTS.get(part["type"])), str)


def _check_calls(calls: Any, path: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise bad(path, "must be a list of calls")
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            form = '{"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
            raise bad(f"{path}[{at}]", f"must be {form}")


def _parsed(
    body: Mapping[str, Any],
    prompts: tuple[Prompt, ...],
    sampling: SamplingParams,
    form: Form,
    structure: Structure,
    *,
    chat: bool,
) -> Parsed:
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad("stream_options", "must be an object")
    stream = flag(body, "stream")
    if options and not stream:
        raise bad("stream_options", 'only goes with "stream": true')
    return Parsed(
        prompts=prompts,
        sampling=sampling,
        stops=texts(body, "stop", _MAX_STOPS),
        include_stops=flag(body, "include_stop_str_in_output"),
        # Mistral's mark of a call is a special token.
        skip_special_tokens=flag(body, "skip_special_tokens", default=True)
        and form.tools.reads != "mistral",
        stream=stream,
        include_usage=flag(options, "include_usage", within="stream_options"),
        chat=chat,
        form=form,
        structure=structure,
        cache_salt=_salt(body),
    )


def _salt(body: Mapping[str, Any]) -> str:
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 1 <= len(salt) <= _LONGEST_SALT:
        raise bad("cache_salt", f"must be a text of 1 to {_LONGEST_SALT} characters")
    return salt


def check_model(body: Mapping[str, Any], served_name: str) -> None:
    """ApiError 400 or 404 for another model. A body that names none means the one that is here."""
    model = body.get("model")
    if model is None or model == "":
        return
    if not isinstance(model, str):
        raise bad("model", f'must be a text: "{served_name}"')
    if model != served_name:
        raise ApiError(
            404,
            f"there is no model {model!r:.80} here: this engine serves {served_name!r}",
            param="model",
            code="model_not_found",
        )
