"""A chat's text as its message has it: reasoning, content and calls of tools."""

from argosy_engine.server.openai.reply.calls import Delta, NamedCall, TextCalls, called

__all__ = ["Shaper", "thinks_at_its_end"]

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
    def called(self) -> bool:
        """A tool is called."""
        return self._calls is not None and self._calls.count > 0

    def push(self, text: str) -> list[dict[str, object]]:
        """Deltas of the chunks that this text makes."""
        reasoning, text = self._reasoned(text)
        deltas: list[dict[str, object]] = []
        if reasoning:
            self._reasoning.append(reasoning)
            deltas.append({"reasoning": reasoning})
        if not text:
            return deltas
        return deltas + self._kept(
            [Delta(content=text)] if self._calls is None else self._calls.push(text)
        )

    def finish(self) -> list[dict[str, object]]:
        """Deltas of what was held back."""
        held, self._held = self._held, ""
        if held and self._thinks:
            self._reasoning.append(held)
            return [{"reasoning": held}]
        if self._calls is None:
            return self._kept([Delta(content=held)] if held else [])
        return self._kept([*(self._calls.push(held) if held else []), *self._calls.finish()])

    def message(self) -> tuple[str | None, dict[str, object]]:
        """Content and further members of a whole message."""
        more: dict[str, object] = {}
        if self._reasoning:
            more["reasoning"] = "".join(self._reasoning)
        if self.called:
            more["tool_calls"] = called(self._found)
        content = "".join(self._content)
        return (None if self.called and not content else content), more

    def _kept(self, deltas: list[Delta]) -> list[dict[str, object]]:
        deltas = [
            delta
            for delta in deltas
            if (self._parallel or not delta.index) and (delta.calls or not self._only_calls)
        ]
        self._found += [delta for delta in deltas if delta.calls]
        self._content += [delta.content for delta in deltas if not delta.calls]
        return [delta.to_json() for delta in deltas]

    def _reasoned(self, text: str) -> tuple[str, str]:
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
