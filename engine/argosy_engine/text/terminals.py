"""How deep the terminals of a Lark grammar are nested."""

import re

__all__ = ["terminal_depth"]

_NO_NAMES = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/')
"""Strings, comments and regular expressions. llguidance bounds the nesting of the last itself."""
_DEFINITION = re.compile(r"\b(\w+)[ \t]*(?:\[[^\]\n]*\])?(?:\.\d+)?[ \t]*:")
_PART = re.compile(r"[A-Z_][A-Z0-9_]*\b|[a-z]\w*|[(\[)\]]")


def terminal_depth(lark: str) -> int:
    """Levels of terminals and parentheses within each other, at most. A terminal that contains
    itself counts once: llguidance refuses it."""
    uses = _uses(_NO_NAMES.sub(" ", lark))
    depths: dict[str, int] = {}
    opened: set[str] = set()
    ahead = list(uses)
    while ahead:  # no recursion: the chains may be thousands long
        name = ahead[-1]
        if name not in opened:
            opened.add(name)
            ahead.extend(used for used, _ in uses[name] if used not in opened)
            continue
        ahead.pop()
        if name not in depths:
            depths[name] = 1 + max(
                (level + depths.get(used, 0) for used, level in uses[name]), default=0
            )
    return max(depths.values(), default=0)


def _uses(text: str) -> dict[str, list[tuple[str, int]]]:
    """Of each terminal the terminals in it, each with the number of parentheses around it. An empty
    name stands for the inside of parentheses."""
    marks = list(_DEFINITION.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    uses: dict[str, list[tuple[str, int]]] = {"": []}
    for mark, end in zip(marks, ends, strict=True):
        if mark[1] != mark[1].upper():
            continue
        found = uses.setdefault(mark[1], [])
        level = 0
        for part in _PART.findall(text, mark.end(), end):
            if part in "([":
                level += 1
                found.append(("", level))
            elif part in ")]":
                level -= 1
            else:
                found.append((part, level))
    return {
        name: [(used, level) for used, level in found if used in uses]
        for name, found in uses.items()
    }
