"""Calls of tools in a model's text, found while it comes.

A parser takes text and gives deltas: content, the beginning of a call with its name, and parts of
its arguments as the model writes them. Text that only looks like a call becomes content.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["PARSERS", "Delta", "NamedCall", "TextCalls", "called"]

_SPACE = " \t\r\n"
_BETWEEN = _SPACE + "[],;"
"""What may stand between calls: white space, and the signs of the list that they are in."""
_NEVER = "\0"
_ARGUMENTS = ("arguments", "parameters")


@dataclass(slots=True)
class Delta:
    """What one chunk adds to the message."""

    content: str = ""
    index: int = 0
    """Of the call, from 0."""
    call_id: str = ""
    """Set with the name, at the beginning of a call."""
    name: str = ""
    arguments: str = ""

    @property
    def calls(self) -> bool:
        return bool(self.name or self.arguments)

    def to_json(self) -> dict[str, object]:
        """A chunk's delta; a beginning without arguments has them empty, as OpenAI's."""
        if not self.calls:
            return {"content": self.content}
        function: dict[str, object] = {"arguments": self.arguments}
        call: dict[str, object] = {"index": self.index, "function": function}
        if self.name:
            function["name"] = self.name
            call |= {"id": self.call_id, "type": "function"}
        return {"tool_calls": [call]}


def called(deltas: list[Delta]) -> list[dict[str, object]]:
    """The calls of a whole message."""
    calls: dict[int, tuple[Delta, list[str]]] = {}
    for delta in deltas:
        if delta.name:
            calls[delta.index] = (delta, [])
        if delta.calls:
            calls[delta.index][1].append(delta.arguments)
    return [
        {
            "id": first.call_id,
            "type": "function",
            "function": {"name": first.name, "arguments": "".join(parts) or "{}"},
        }
        for first, parts in calls.values()
    ]


class _Call:
    """One `{"name": …, "arguments": …}`, character by character."""

    def __init__(self, name: str = "") -> None:
        """With a name the text is the arguments alone."""
        self.name = name
        self.done = False
        self.raw = ""
        self._bare = bool(name)
        self._depth = 0
        self._in_string = self._escaped = False
        self._key = ""
        self._word = ""
        """The string of the first level that is being read."""
        self._after_colon = False
        self._begun = False
        """Its arguments have."""
        self._arguments = ""
        """Those that were not taken yet."""

    def push(self, char: str) -> None:
        self.raw += char
        level, was_in_string = self._depth, self._in_string
        if was_in_string:
            self._string(char)
        elif char == '"':
            self._in_string, self._word = True, '"'
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.done = self._depth == 0
        if self._bare:
            self._arguments += char
        elif level == 1 and char in ":," and not was_in_string:
            self._after_colon = char == ":"
        elif self._is_argument and not self.done and (self._begun or char not in _SPACE):
            self._begun = True
            self._arguments += char

    def take(self) -> str:
        """The arguments that came since the last call.

        White space behind a value waits for more: at the end of the arguments it is not theirs.
        """
        given = self._arguments if self._in_string else self._arguments.rstrip(_SPACE)
        self._arguments = self._arguments[len(given) :]
        return given

    @property
    def _is_argument(self) -> bool:
        return self._after_colon and self._key in _ARGUMENTS

    def _string(self, char: str) -> None:
        self._word += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if self._depth == 1 and not self._bare:
                self._told(self._word)

    def _told(self, quoted: str) -> None:
        try:
            word = str(json.loads(quoted))
        except ValueError:
            return
        if not self._after_colon:
            self._key = word
        elif self._key == "name":
            self.name = word


class TextCalls:
    """A parser of one answer."""

    def __init__(
        self,
        *,
        begins: str = "",
        ends: str = "",
        bare_names: bool = False,
        new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
    ) -> None:
        """Calls stand after `begins`, or from the text's beginning on if that is empty, until
        `ends`. `bare_names`: a call may also be its name and its arguments."""
        self._begins, self._ends = begins, ends
        self._bare_names = bare_names
        self._new_id = new_id
        self._inside = not begins
        self._held = ""
        """Text that may yet become a mark."""
        self._name = ""
        self._call: _Call | None = None
        self._told = False
        """The name of the call has been given."""
        self.count = 0
        """Calls whose name has been given."""

    def push(self, text: str) -> list[Delta]:
        found: list[Delta] = []
        for char in text:
            if self._call is not None:
                self._read(char, found)
            elif self._inside:
                self._between(char, found)
            else:
                self._outside(char, found)
        if self._call is not None:
            found += self._progress(self._call)
        return list(_joined(found))

    def finish(self) -> list[Delta]:
        """What is still held when the text ends."""
        found = [] if self._call is None else self._given_up(self._call)
        held, self._held, self._name = self._name + self._held, "", ""
        return [*found, Delta(content=held)] if held.strip() else found

    def _outside(self, char: str, found: list[Delta]) -> None:
        self._held += char
        if self._held.endswith(self._begins):
            before = self._held.removesuffix(self._begins)
            self._held, self._inside = "", True
            if before.strip():
                found.append(Delta(content=before))
            return
        keep = _overlap(self._held, self._begins)
        cut = len(self._held) - keep
        free, self._held = self._held[:cut], self._held[cut:]
        if free.strip() or (free and not self.count):
            found.append(Delta(content=free))

    def _between(self, char: str, found: list[Delta]) -> None:
        if char == "{":
            name, self._name = (self._name + self._held).rpartition("]")[2].strip(), ""
            self._held = ""
            self._call, self._told = _Call(name), False
            self._call.push(char)
        elif self._ends and (self._held + char) == self._ends[: len(self._held) + 1]:
            self._held += char
            if self._held == self._ends:
                self._held, self._inside = "", False
        elif char in _BETWEEN and not self._held and not self._name:
            pass
        elif self._bare_names:
            self._name += char
        else:  # no call: the model's own text
            found.append(Delta(content=self._held + char))
            self._held, self._inside = "", False
            self._begins = self._begins or _NEVER

    def _read(self, char: str, found: list[Delta]) -> None:
        call = self._call
        assert call is not None
        call.push(char)
        if call.done:
            found += self._progress(call)
            if not self._told:
                found.append(Delta(content=call.raw))
            self._call = None

    def _progress(self, call: _Call) -> Iterator[Delta]:
        if not call.name:
            return
        if not self._told:
            self._told = True
            self.count += 1
            yield Delta(index=self.count - 1, call_id=self._new_id(), name=call.name)
        arguments = call.take()
        if arguments:
            yield Delta(index=self.count - 1, arguments=arguments)

    def _given_up(self, call: _Call) -> list[Delta]:
        self._call = None
        return list(self._progress(call)) if call.name else [Delta(content=call.raw)]


class NamedCall:
    """The whole text is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.count = 0

    def push(self, text: str) -> list[Delta]:
        call_id = f"call_{secrets.token_hex(12)}"
        first = [] if self.count else [Delta(call_id=call_id, name=self._name)]
        self.count = 1
        return [*first, Delta(arguments=text)]

    def finish(self) -> list[Delta]:
        return []


PARSERS: Mapping[str, Callable[[], TextCalls]] = {
    "hermes": lambda: TextCalls(begins="<tool_call>", ends="</tool_call>"),
    "llama3_json": lambda: TextCalls(),
    "mistral": lambda: TextCalls(
        begins="[TOOL_CALLS]", bare_names=True, new_id=lambda: secrets.token_hex(5)[:9]
    ),
}
"""By the name that `--tool-call-parser` takes, which is vLLM's."""


def _joined(deltas: list[Delta]) -> Iterator[Delta]:
    """Neighbouring texts and arguments as one."""
    last: Delta | None = None
    for delta in deltas:
        if last is not None and not last.calls and not delta.calls:
            last.content += delta.content
            continue
        same = last is not None and last.calls and last.index == delta.index
        if last is not None and same and delta.arguments and not delta.name:
            last.arguments += delta.arguments
            continue
        if last is not None:
            yield last
        last = delta
    if last is not None:
        yield last


def _overlap(text: str, mark: str) -> int:
    """Length of the longest proper prefix of `mark` that ends `text`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
