"""OpenAI request bodies to what the engine understands; everything else is refused by name.

Input: decoded JSON and header values of one request. Output: `Parsed`, or an ApiError whose
message says what to write instead. `parameters` lists what is refused by name.

`tokenize` and `detokenize` are vLLM's endpoints: a prompt's token ids, and the text of ids.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.sampling import SamplingDefaults, SamplingParams
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.errors import ChatTemplateError
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.parameters import (
    bad,
    flag,
    integer,
    limit_name,
    refuse_unsupported,
    texts,
    whole,
    wholes,
)
from argosy_engine.server.openai.sampling import MOST_CHOICES, Form, form_of, sampling_of
from argosy_engine.server.openai.structure import Structure, structure_of
from argosy_engine.server.openai.tool_calls import thinks_at_its_end
from argosy_engine.server.openai.tools import NO_TOOLS, Tools, shown_tools, tools_of
from argosy_engine.text.messages import TEXT_PARTS

_CONTEXTS = 4
_FEWEST_VAST = 16_384
"""A text is tokenised to be cut or counted up to four contexts, and always up to 16,384 tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt."""

    token_ids: list[int]
    text: str | None = None
    """As the client wrote it; None if it wrote token ids, or if the text was cut."""


def prompts_of(
    body: Mapping[str, Any], tokenizer: Tokenizer, max_model_len: int
) -> tuple[Prompt, ...]:
    """Of a body of /v1/completions: a text, token ids, or a list of either."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or whole(prompt[0]) is not None:
        return (_prompt(body, prompt, tokenizer, max_model_len, "prompt"),)
    if len(prompt) > MOST_CHOICES:
        raise bad("prompt", f"a request has at most {MOST_CHOICES} prompts, got {len(prompt)}")
    return tuple(
        _prompt(body, each, tokenizer, max_model_len, f"prompt[{at}]")
        for at, each in enumerate(prompt)
    )


def _prompt(
    body: Mapping[str, Any], prompt: Any, tokenizer: Tokenizer, max_model_len: int, param: str
) -> Prompt:
    if isinstance(prompt, str):
        special = flag(body, "add_special_tokens", default=True)
        return encode(body, prompt, tokenizer, max_model_len, param, special=special)
    ids = wholes(prompt)
    if not ids:
        raise bad(param, "must be a text, a list of token ids, or a list of these")
    most = _most_tokens(body, max_model_len)
    if most is None:
        _refuse_long(len(ids), max_model_len, param)
    if min(ids) < 0 or max(ids) >= tokenizer.vocab_size:
        raise bad(param, f"token ids are 0 … {tokenizer.vocab_size - 1}")
    return Prompt(_truncate(ids, most))


def refuse_long_answer(body: Mapping[str, Any], prompt: int, answer: int, context: int) -> None:
    """ApiError 400 where an answer as long as it may be has no room behind the longest prompt."""
    if prompt + answer > context:
        name = limit_name(body)
        raise ApiError(
            400,
            f"{name}: this model's context is {context} tokens; the prompt has {prompt} and "
            f"{answer!r:.40} tokens are to be generated: shorten the prompt or lower {name}",
            param=name,
            code="context_length_exceeded",
        )


def encode(
    body: Mapping[str, Any],
    text: str,
    tokenizer: Tokenizer,
    max_model_len: int,
    param: str,
    *,
    special: bool,
) -> Prompt:
    """Ids of a text that fits; most of those that do not are refused before they cost a second."""
    most = _most_tokens(body, max_model_len)
    if most is None:
        _refuse_long(tokenizer.fewest_tokens(text), max_model_len, param, about="at least ")
    else:
        refuse_vast(text, tokenizer, max_model_len, param)
    token_ids = tokenizer.encode(text, add_special_tokens=special)
    if not token_ids:
        raise bad(param, "is empty: send at least one token")
    if most is None:
        _refuse_long(len(token_ids), max_model_len, param)
    cut = _truncate(token_ids, most)
    return Prompt(cut, text if len(cut) == len(token_ids) else None)


def refuse_vast(text: str, tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    """ApiError 400 before a text that may be longer than the context costs seconds."""
    most = max(_CONTEXTS * max_model_len, _FEWEST_VAST)
    fewest = tokenizer.fewest_tokens(text)
    if fewest > most:
        raise bad(param, f"has at least {fewest} tokens: a text of at most {most} is tokenised")


def _most_tokens(body: Mapping[str, Any], max_model_len: int) -> int | None:
    """`truncate_prompt_tokens`: a longer prompt loses its beginning. -1: what the context holds."""
    most = integer(body, "truncate_prompt_tokens", None, low=-1)
    if most == 0 or (most is not None and most >= max_model_len):
        raise bad("truncate_prompt_tokens", f"must be -1, or 1 to {max_model_len - 1}")
    return max_model_len - 1 if most == -1 else most


def _truncate(token_ids: list[int], most: int | None) -> list[int]:
    return token_ids if most is None else token_ids[-most:]


def _refuse_long(count: int, max_model_len: int, param: str, *, about: str = "") -> None:
    if count >= max_model_len:
        raise ApiError(
            400,
            f"this model's context is {max_model_len} tokens and the prompt has {about}{count}: "
            "shorten it so that at least one token can follow",
            param=param,
            code="context_length_exceeded",
        )


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
    return _parse(body, prompts, sampling, form, structure, chat=False)


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
    return _parse(body, (prompt,), sampling, form, structure, chat=True)


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


def _parse(
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


def tokenize(
    body: Mapping[str, Any], tokenizer: Tokenizer, *, served_name: str, max_model_len: int
) -> bytes:
    """The answer: of a `prompt`, or of `messages` through the chat template. ApiError 400, 404."""
    check_model(body, served_name)
    refuse_unsupported(body)
    if body.get("truncate_prompt_tokens") is not None:
        raise bad("truncate_prompt_tokens", "all tokens are returned: leave it out")
    chat = body.get("messages") is not None
    tools = Tools(shown=shown_tools(body))
    text = chat_text(body, tokenizer, tools) if chat else body.get("prompt")
    if not isinstance(text, str):
        raise bad("prompt", "must be a text; or write messages")
    refuse_vast(text, tokenizer, max_model_len, "messages" if chat else "prompt")
    special = flag(body, "add_special_tokens", default=not chat)
    ids = tokenizer.encode(text, add_special_tokens=special)
    answer: dict[str, object] = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}
    answer["token_strs"] = None
    if flag(body, "return_token_strs"):
        answer["token_strs"] = [tokenizer.decode([token]) for token in ids]
    return json.dumps(answer).encode()


def detokenize(
    body: Mapping[str, Any], tokenizer: Tokenizer, *, served_name: str, max_model_len: int
) -> bytes:
    """The answer: the text of `tokens`. ApiError 400, 404."""
    check_model(body, served_name)
    ids, last = wholes(body.get("tokens")), tokenizer.vocab_size - 1
    if ids is None or not all(0 <= each <= last for each in ids):
        raise bad("tokens", f"must be a list of token ids, which are 0 … {last}")
    if len(ids) > max_model_len:
        raise bad("tokens", f"must be at most {max_model_len}, got {len(ids)}")
    return json.dumps({"prompt": tokenizer.decode(ids)}).encode()
