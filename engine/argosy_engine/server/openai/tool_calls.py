"""Calls of tools in a model's text, found while it comes.

A parser takes text and gives deltas: content, the beginning of a call with its name, and parts of
its arguments as the model writes them. A call names one of the request's functions and has an
object of arguments, or a text that is one. Text that only looks like a call is held until that
shows, and becomes content.

`Shaper` divides a chat's text into reasoning, content and calls.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

_SPACE = " \t\r\n"
_BETWEEN = _SPACE + "[],;"
"""What may stand between calls: white space, and the signs of the list that they are in."""
_ARGUMENTS = ("arguments", "parameters")
_BEHIND_NAME = re.compile(r"\s*(\[CALL_ID\][^\[\]{}]{0,64})?(\[ARGS\]\s*)?")
"""Between a name and its arguments in Mistral's newer form; all of it may be left out."""
_MORE = ["", *(mark[at:] for mark in ("[CALL_ID]", "[ARGS]") for at in range(len(mark)))]
"""Ends of what `_BEHIND_NAME` may go on with."""
_LONGEST_HEAD = 256
"""Characters from a name to its arguments."""


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


def join_calls(deltas: list[Delta]) -> list[dict[str, object]]:
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
    """One `{"name": …, "arguments": {…}}`, character by character."""

    def __init__(self, name: str = "") -> None:
        """With a name the text is the arguments alone."""
        self.name = name
        self.done = False
        self._bare = bool(name)
        self._raw: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self._key = ""
        self._word = ""
        """The string of the first level that is being read."""
        self._after_colon = False
        self._begun = self._reading = self._bare
        """Its arguments have begun, and have not ended."""
        self._other = False
        """What stands for its arguments is not an object."""
        self._arguments = ""
        """Those that were not taken yet."""

    def push(self, char: str) -> None:
        self._raw.append(char)
        if self._depth == 1 and not self._bare and not self._in_string:
            self._first_level(char)
        if self._in_string:
            self._string(char)
        elif char == '"':
            self._in_string, self._word = True, '"'
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.done = self._depth == 0
        if self._reading:
            self._arguments += char
            self._reading = self._in_string or self._depth > (0 if self._bare else 1)

    def calls(self, names: Collection[str]) -> bool:
        """It names one of these functions, and its arguments have begun."""
        return self._begun and not self._other and self.name in names

    def take(self) -> str:
        """The arguments that came since the last call."""
        given, self._arguments = self._arguments, ""
        return given

    @property
    def text(self) -> str:
        return "".join(self._raw)

    def _first_level(self, char: str) -> None:
        if char in ":,":
            self._after_colon = char == ":"
        elif self._after_colon and self._key in _ARGUMENTS and not self._begun:
            self._begun = self._reading = char == "{"
            self._other = self._other or char not in _SPACE + '{"'

    def _string(self, char: str) -> None:
        self._word += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if self._depth == 1 and not self._bare:
                self._read_string(self._word)

    def _read_string(self, quoted: str) -> None:
        try:
            word = str(json.loads(quoted))
        except ValueError:
            return
        if not self._after_colon:
            self._key = word
        elif self._key == "name" and not self.name:
            self.name = word
        elif self._key in _ARGUMENTS and not self._begun:
            self._arguments = word or "{}"
            self._begun = _is_object(self._arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class TextCalls:
    """A parser of one answer. Without a call its contents together are the text."""

    def __init__(
        self,
        names: Collection[str],
        *,
        begins: str = "",
        ends: str = "",
        bare_names: bool = False,
        new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
    ) -> None:
        """Calls of the functions `names` stand after `begins`, or from the text's beginning on if
        that is empty, until `ends`. `bare_names`: a call may also be its name and its arguments."""
        self._names = frozenset(names)
        self._begins, self._ends = begins, ends
        self._marks = [mark for mark in (begins, ends) if mark]
        self._bare_names = bare_names
        self._new_id = new_id
        self._inside = not begins
        self._over = False
        """The rest of the text is content."""
        self._held = ""
        """Text that is content unless a call follows it."""
        self._word = ""
        """Text behind that which may yet become a mark or a function's name."""
        self._blank = True
        """Nothing but white space has come, or nothing else since the last call."""
        self._called = False
        """What came last is a call."""
        self._call: _Call | None = None
        self._told = False
        """The name of the call has been given."""
        self.count = 0
        """Calls whose name has been given."""

    def push(self, text: str) -> list[Delta]:
        found: list[Delta] = []
        at = 0
        while at < len(text):
            plain = self._plain_until(text, at)
            if plain > at:
                found.append(Delta(content=text[at:plain]))
                at = plain
            else:
                self._take(text[at], found)
                at += 1
        if self._call is not None:
            found += self._progress(self._call)
        return list(_join(found))

    def finish(self) -> list[Delta]:
        """What is still held when the text ends."""
        call, self._call = self._call, None
        if call is not None and call.calls(self._names):
            return list(self._progress(call))
        held = self._held + self._word + (call.text if call else "")
        self._held = self._word = ""
        if self._called and not held.strip(_BETWEEN):
            return []
        return [Delta(content=held)] if held else []

    def _plain_until(self, text: str, at: int) -> int:
        """Where the text may begin to be something else than content."""
        if self._over:
            return len(text)
        if self._inside or self._held or self._blank:
            return at
        mark = text.find(self._begins[0], at)
        return len(text) if mark < 0 else mark

    def _take(self, char: str, found: list[Delta]) -> None:
        if self._over:
            found.append(Delta(content=char))
        elif self._call is not None:
            self._read(self._call, char, found)
        elif self._inside:
            self._between(char, found)
        else:
            self._outside(char, found)

    def _outside(self, char: str, found: list[Delta]) -> None:
        self._held += char
        if self._held.endswith(self._begins):
            self._inside, self._called = True, False
            return
        cut = len(self._held) - _overlap(self._held, self._begins)
        if not self._blank or self._held[:cut].strip():
            rest = self._held[cut:]
            self._held = self._held[:cut]
            self._give_back(found)
            self._held = rest

    def _between(self, char: str, found: list[Delta]) -> None:
        self._word += char
        while self._word:
            word = self._word
            name = self._name_before_arguments(word)
            if word == "{" or name:
                self._held, self._word = self._held + word[:-1], ""
                self._call, self._told = _Call(name), False
                self._call.push("{")
                return
            if word in self._marks:
                self._mark(found)
                return
            if self._may_become_more(word):
                return
            if word[0] not in _BETWEEN:
                self._free(found)
                return
            self._held, self._word = self._held + word[0], word[1:]

    def _mark(self, found: list[Delta]) -> None:
        is_end = self._word == self._ends
        self._held, self._word = self._held + self._word, ""
        if is_end:
            self._inside = False
            if self._called:
                self._held = ""
            else:
                self._give_back(found)
        self._called = self._called and is_end

    def _free(self, found: list[Delta]) -> None:
        """No call follows: what was held is content, and its end may begin a mark."""
        word, self._word = self._word, ""
        before, closed, behind = self._held.partition("]")
        if self._called and closed and not before.strip():  # of the list that the call stood in
            self._held = behind
        self._inside, self._called, self._over = False, False, not self._begins
        self._give_back(found)
        for char in word:
            self._take(char, found)

    def _give_back(self, found: list[Delta]) -> None:
        if self._held:
            found.append(Delta(content=self._held))
            self._held, self._blank, self._called = "", False, False

    def _may_become_more(self, word: str) -> bool:
        if any(mark.startswith(word) for mark in self._marks):
            return True
        if not self._bare_names or len(word) > _LONGEST_HEAD:
            return False
        return any(
            name.startswith(word)
            or (
                word.startswith(name)
                and any(_BEHIND_NAME.fullmatch(word[len(name) :] + more) for more in _MORE)
            )
            for name in self._names
        )

    def _name_before_arguments(self, word: str) -> str:
        if not self._bare_names or not word.endswith("{"):
            return ""
        head = word[:-1]
        fits = (
            name
            for name in self._names
            if head.startswith(name) and _BEHIND_NAME.fullmatch(head[len(name) :])
        )
        return max(fits, key=len, default="")

    def _read(self, call: _Call, char: str, found: list[Delta]) -> None:
        call.push(char)
        if not call.done:
            return
        self._call = None
        if call.calls(self._names):
            found += self._progress(call)
            self._called = self._blank = True
        else:
            self._held += call.text
            self._give_back(found)

    def _progress(self, call: _Call) -> Iterator[Delta]:
        if not call.calls(self._names):
            return
        if not self._told:
            self._told, self._held = True, ""
            self.count += 1
            yield Delta(index=self.count - 1, call_id=self._new_id(), name=call.name)
        arguments = call.take()
        if arguments:
            yield Delta(index=self.count - 1, arguments=arguments)


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


PARSERS: Mapping[str, Callable[[Collection[str]], TextCalls]] = {
    "hermes": lambda names: TextCalls(names, begins="<tool_call>", ends="</tool_call>"),
    "llama3_json": TextCalls,
    "mistral": lambda names: TextCalls(
        names, begins="[TOOL_CALLS]", bare_names=True, new_id=lambda: secrets.token_hex(5)[:9]
    ),
}
"""By the name that `--tool-call-parser` takes, which is vLLM's; made with the functions' names."""


def _join(deltas: list[Delta]) -> Iterator[Delta]:
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


_BEGIN, _END = "<think>", "</think>"


def thinks_at_its_end(prompt: str) -> bool:
    """The chat template has begun the reasoning."""
    return prompt.rfind(_BEGIN) > prompt.rfind(_END)


class Shaper:
    """Of one choice; what it has been given decides what comes next."""

    def __init__(
        self,
        calls: TextCalls | NamedCall | None,
        *,
        reasons: bool,
        thinks: bool = False,
        only_calls: bool = False,
        parallel: bool = True,
    ) -> None:
        """`reasons`: text up to `</think>` is reasoning, if it begins with `<think>` or the prompt
        did (`thinks`). `only_calls`: what is no call is the grammar's, as brackets between calls
        are. Without `parallel` calls after the first one are left out."""
        self._calls = calls
        self._only_calls, self._parallel = only_calls, parallel
        self._thinks: bool | None = (True if thinks else None) if reasons else False
        """None: the text has not said yet."""
        self._before = False
        """Only line breaks have come since the reasoning's beginning."""
        self._after = False
        """Only line breaks have come since the reasoning's end."""
        self._held = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._found: list[Delta] = []

    @property
    def calls_a_tool(self) -> bool:
        """A tool is called."""
        return self._calls is not None and self._calls.count > 0

    def push(self, text: str) -> list[dict[str, object]]:
        """Deltas of the chunks that this text makes."""
        reasoning, text = self._split_reasoning(text)
        deltas: list[dict[str, object]] = []
        if reasoning:
            self._reasoning.append(reasoning)
            deltas.append({"reasoning": reasoning})
        if not text:
            return deltas
        return deltas + self._record(
            [Delta(content=text)] if self._calls is None else self._calls.push(text)
        )

    def finish(self) -> list[dict[str, object]]:
        """Deltas of what was held back."""
        held, self._held = self._held, ""
        if held and self._thinks:
            self._reasoning.append(held)
            return [{"reasoning": held}]
        if self._calls is None:
            return self._record([Delta(content=held)] if held else [])
        return self._record([*(self._calls.push(held) if held else []), *self._calls.finish()])

    def message(self) -> tuple[str | None, dict[str, object]]:
        """Content and further members of a whole message."""
        more: dict[str, object] = {}
        if self._reasoning:
            more["reasoning"] = "".join(self._reasoning)
        if self.calls_a_tool:
            more["tool_calls"] = join_calls(self._found)
        content = "".join(self._content)
        return (None if self.calls_a_tool and not content else content), more

    def _record(self, deltas: list[Delta]) -> list[dict[str, object]]:
        deltas = [
            delta
            for delta in deltas
            if (self._parallel or not delta.index) and (delta.calls or not self._only_calls)
        ]
        self._found += [delta for delta in deltas if delta.calls]
        self._content += [delta.content for delta in deltas if not delta.calls]
        return [delta.to_json() for delta in deltas]

    def _split_reasoning(self, text: str) -> tuple[str, str]:
        """(reasoning, the rest)"""
        if self._thinks is False:
            return "", self._content_of(text)
        text, self._held = self._held + text, ""
        if self._thinks is None:
            begun = text.lstrip()
            if len(begun) < len(_BEGIN) and _BEGIN.startswith(begun):
                self._held = text
                return "", ""
            self._thinks = begun.startswith(_BEGIN)
            if not self._thinks:
                return "", text
            text, self._before = begun.removeprefix(_BEGIN), True
        if self._before:
            text = text.lstrip("\n")
            self._before = not text
        reasoning, mark, rest = text.partition(_END)
        if mark:
            self._thinks, self._after = False, True
            return reasoning, self._content_of(rest)
        keep = max(n for n in range(len(_END)) if text.endswith(_END[:n]))
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def _content_of(self, text: str) -> str:
        text = text.lstrip("\n") if self._after else text
        self._after = self._after and not text
        return text
