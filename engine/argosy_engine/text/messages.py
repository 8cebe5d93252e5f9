"""Messages and tools as a chat template reads them.

Clients send what their libraries write: null members, text in parts, arguments as a text of JSON,
the role `developer`. Templates are written for less, and each for something else. `find_reads`
tries what a template takes; `prepare` and `prepare_tools` give it that.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

Message = dict[str, Any]

TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Kinds of parts that are text, and the member that has it."""
_REASONING = ("reasoning", "reasoning_content", "thinking")
"""One thing under the names that templates have for it. Answers of ours call it by the first."""
_BETWEEN_PARTS = "\n"
_BETWEEN_SYSTEM = "\n\n"
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a template reads; the default is what most of them do."""

    developer: bool = False
    """Messages of this role, wherever they stand. Other templates are shown one of `system`."""

    parts: frozenset[str] = frozenset()
    """Roles whose content may be a list. The parts of others are joined with line breaks."""

    text_arguments: bool = False
    """Arguments of calls are to be a text of JSON, not an object."""

    null_content: bool = False
    """Calls are shown only where the content is null, not empty."""

    short_ids: bool = False
    """Ids of calls are to be nine letters and digits: Mistral's templates refuse OpenAI's."""

    whole_tools: bool = False
    """A tool without description or parameters is an error."""


Show = Callable[[Sequence[Message], Sequence[Message]], str]
"""Messages and tools to the prompt; empty if the template refuses them."""


def prepare(messages: Sequence[Message], reads: Reads) -> list[Message]:
    """Copies of `messages` without null and empty members, in the form that the template reads."""
    given = [_without_nothing(message) for message in messages]
    if not reads.developer and any(message.get("role") == "developer" for message in given):
        given = _with_developer_as_system(given)
    return [_prepare_one(message, reads) for message in given]


def prepare_tools(tools: Sequence[Message], reads: Reads) -> list[Message]:
    """Copies of `tools` without null members, and whole if the template needs that."""
    shown = []
    for tool in tools:
        function = _without_null(tool["function"])
        if reads.whole_tools:
            function.setdefault("description", "")
            function.setdefault("parameters", {"type": "object", "properties": {}})
        shown.append({**_without_null(tool), "function": function})
    return shown


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, list):
        return _BETWEEN_PARTS.join(_texts(content))
    return content or ""


def _texts(parts: Sequence[Message]) -> list[str]:
    texts = (part.get(TEXT_PARTS[part.get("type", "text")]) for part in parts)
    return [text for text in texts if text]


def _without_null(given: Message) -> Message:
    return {name: value for name, value in given.items() if value is not None}


def _without_nothing(message: Message) -> Message:
    return {name: value for name, value in message.items() if value is not None and value != []}


def _with_developer_as_system(messages: Sequence[Message]) -> list[Message]:
    """One message of the system at the beginning: many templates take no other."""
    roles = ("system", "developer")
    first = [message for message in messages if message.get("role") in roles]
    contents = [message.get("content") for message in first]
    joined = _BETWEEN_SYSTEM.join(text for each in contents if (text := text_of(each)))
    system = {"role": "system", "content": contents[0] if len(contents) == 1 else joined}
    return [system, *(message for message in messages if message.get("role") not in roles)]


def _prepare_one(message: Message, reads: Reads) -> Message:
    content, calls = message.get("content"), message.get("tool_calls")
    shown: Message = {**message, "content": text_of(content)}
    if isinstance(content, list) and message.get("role") in reads.parts:
        shown["content"] = [{"type": "text", "text": text} for text in _texts(content)]
    reasoning = [message[name] for name in _REASONING if name in message]
    if reasoning:
        shown = {**dict.fromkeys(_REASONING, reasoning[0]), **shown}
    if reads.short_ids and "tool_call_id" in message:
        shown["tool_call_id"] = _short_id(message["tool_call_id"])
    if isinstance(calls, list):
        shown["tool_calls"] = [_prepare_call(call, reads) for call in calls]
        if reads.null_content and not shown["content"]:
            shown["content"] = None
    return shown


def _prepare_call(call: Any, reads: Reads) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments: Any = _object_of(function.get("arguments"))
    if reads.text_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    shown = {**_without_null(call), "function": {**function, "arguments": arguments}}
    if reads.short_ids and "id" in shown:
        shown["id"] = _short_id(shown["id"])
    return shown


def _short_id(given: Any) -> str:
    """The same for the same id: the result of a call names it."""
    text = str(given)
    return text if _SHORT_ID.fullmatch(text) else sha256(text.encode()).hexdigest()[:9]


def _object_of(arguments: Any) -> dict[str, Any]:
    """The arguments of a call; none if the text is cut or is no object.

    A model wrote the text, and the client sends it at every later turn: an error would end the
    conversation.
    """
    for _ in range(2):  # some models write the text of JSON as a text of JSON
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return {}
    if not isinstance(arguments, dict):
        return {}
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair was escaped in it, which is no text
        whole = json.dumps(arguments, ensure_ascii=False).encode(errors="replace")
        arguments = json.loads(whole)
    except (ValueError, RecursionError):
        return {}
    return dict(arguments)


_KEY, _VALUE = "argosy-key", "argosy-value"
_ARGUMENTS = json.dumps({_KEY: _VALUE})
_OPENAI_ID, _MISTRAL_ID = "call_0123456789abcdef", "a1b2c3d4e"
_USER: Message = {"role": "user", "content": "a"}
_ASSISTANT: Message = {"role": "assistant", "content": "b"}


def find_reads(show: Show, *, names_developer: bool) -> Reads:
    """What the template takes, tried with `show`. `names_developer`: the role is in its source."""
    developer = _saying("developer")
    conversations = (
        [_saying("system", "s"), developer, _USER],
        [_USER, _ASSISTANT, developer, _USER],
    )
    null_content, text_arguments = _find_call_form(show)
    form = Reads(null_content=null_content, text_arguments=text_arguments)
    return Reads(
        developer=names_developer and all(_VALUE in show(each, ()) for each in conversations),
        parts=frozenset(role for role in _AROUND if _takes_parts(show, role)),
        text_arguments=text_arguments,
        null_content=null_content,
        short_ids=not _show_call(show, form, _OPENAI_ID) and bool(_show_call(show, form)),
        whole_tools=not show([_USER], [_tool()]) and bool(show([_USER], [_whole_tool()])),
    )


def _saying(role: str, content: Any = _VALUE) -> Message:
    return {"role": role, "content": content}


_AROUND: Mapping[str, Callable[[Message], list[Message]]] = {
    "system": lambda message: [message, _USER],
    "user": lambda message: [message],
    "assistant": lambda message: [_USER, message, _USER],
}
"""A conversation around a message. Results of tools are always given as one text."""


def _takes_parts(show: Show, role: str) -> bool:
    """Whether a list of one part is shown as its text is."""
    around = _AROUND[role]
    parts = show(around(_saying(role, [{"type": "text", "text": _VALUE}])), ())
    return _VALUE in parts and parts == show(around(_saying(role)), ())


def _find_call_form(show: Show) -> tuple[bool, bool]:
    """Whether the content is to be null, and whether the arguments are to be a text."""
    for null_content in (False, True):
        for text_arguments in (False, True):
            reads = Reads(null_content=null_content, text_arguments=text_arguments)
            prompt = _show_call(show, reads)
            # An object in Python's form is no JSON, and neither is a text of JSON within JSON.
            if f"{{'{_KEY}'" not in prompt and (_ARGUMENTS if text_arguments else _VALUE) in prompt:
                return null_content, text_arguments
    return False, False


def _show_call(show: Show, reads: Reads, id_: str = _MISTRAL_ID) -> str:
    function = {"name": _KEY, "arguments": _ARGUMENTS}
    call = {"id": id_, "type": "function", "function": function}
    messages: list[Message] = [
        _USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id_, "name": _KEY, "content": "c"},
    ]
    return show(prepare(messages, reads), [_whole_tool()])


def _tool() -> Message:
    return {"type": "function", "function": {"name": _KEY}}


def _whole_tool() -> Message:
    return prepare_tools([_tool()], Reads(whole_tools=True))[0]
