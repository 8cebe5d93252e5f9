"""jinja2's immutable sandbox, with bounds: a template comes to an end, and fills no memory.

The folder of a model is not trusted, and what a client sends reaches the template. So a rendering
has a budget of characters and of CPU time. What makes much of little (a product, a width, a
replacement, a list in a list in a list) is measured before it is made. `over` begins a rendering.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_CHARACTERS = 32 << 20
"""Of one text; several times what the longest body can hold."""
_MOST_MADE = 8 * MOST_CHARACTERS  # characters that one rendering makes and reads, all together
_MOST_S = 5.0  # CPU time of a rendering; one of the longest body takes half a second
_MOST_BITS = 4096  # of a whole number
_WIDEST = 1 << 20
"""Of a whole number that a method or filter is given, and of a text that is taken apart."""
_ELEMENT = 8  # what an element of a list counts for, besides what it is
_SMALL = frozenset({int, float, bool, type(None)})
"""Elements of these kinds count as `_ELEMENT` alone, which makes reading long lists quick."""
_DIGITS = re.compile(r"\d+")
_BY_ELEMENT = {
    "list", "sort", "batch", "slice", "groupby", "unique", "map", "select", "reject", "selectattr",
    "rejectattr", "min", "max", "sum", "random", "wordwrap", "urlize", "striptags", "pprint",
    "xmlattr",
}  # fmt: skip
_AT_ONCE = {"length", "count", "first", "last", "default", "d", "attr", "int", "float", "abs"}
"""Filters that read no more of a list than its length or an end."""
_NO_TEXT = _BY_ELEMENT - {"wordwrap", "urlize", "striptags", "pprint", "xmlattr"} | {
    "reverse", "dictsort", "items", "_turns"
}  # fmt: skip
"""Filters that write no text: what is nested in a list costs nothing."""


class _Work(threading.local):
    """What is left of the budget of this thread's rendering."""

    left = 1 << 60  # when a template is compiled, constants are computed outside of a rendering
    ticks = 0
    until_s = float("inf")


_work = _Work()


@contextmanager
def over() -> Iterator[None]:
    """One rendering, in this thread."""
    _work.left, _work.ticks, _work.until_s = _MOST_MADE, 0, time.thread_time() + _MOST_S
    try:
        yield
    finally:
        _work.left, _work.until_s = _Work.left, _Work.until_s


def _spend(characters: int) -> None:
    _work.left = left = _work.left - characters
    if left < 0:
        raise SecurityError(f"it makes more than {_MOST_MADE} characters")
    _work.ticks = ticks = _work.ticks + 1
    if characters > _WIDEST or not ticks % 64:
        refuse_late()


def refuse_late() -> None:
    """SecurityError when the time of this thread's rendering is over."""
    if time.thread_time() > _work.until_s:
        raise SecurityError(f"it computes for more than {_MOST_S:g} s: it may loop")


def _refuse_beyond(size: int, what: str) -> None:
    if size > MOST_CHARACTERS:
        raise SecurityError(f"{what} is too long")


def _size(*values: Any) -> tuple[int, int]:
    """Characters that these values take when they are written, at least; how deep they are nested.

    Values that share a part have it once in memory and each in a text.
    """
    size, deepest, open_ = 0, 0, [(0, value) for value in values]
    while open_:
        depth, value = open_.pop()
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, list | tuple | set | frozenset | dict):
            size += _ELEMENT * len(value)
            _refuse_beyond(size, "a list or an object")
            deepest = max(deepest, depth + 1)
            open_.extend((depth + 1, one) for one in value if type(one) not in _SMALL)
            if isinstance(value, dict):
                open_.extend((depth + 1, one) for one in value.values())
        elif isinstance(value, int):
            size += value.bit_length() // 3
        _refuse_beyond(size, "a list or an object")
    return size, deepest


def _shallow(value: Any) -> int:
    """What a value holds itself, without what is nested in it."""
    if isinstance(value, str | bytes):
        return len(value)
    return _ELEMENT * len(value) if isinstance(value, list | tuple | dict | set) else 1


def _nested(value: Any) -> Any:
    """A list, tuple or object that is made of others.

    What shares its parts is small, and is as large as it looks to whatever compares, hashes or
    prints it. Some of these look at no budget, and let no other thread run.
    """
    _spend(_size(value)[0] if isinstance(value, list | tuple | set | dict) else _shallow(value))
    return value


def _show(value: Any) -> Any:
    """Each value that is written passes here first."""
    _spend(len(value) if type(value) is str else _size(value)[0])
    return value


def _turns(values: Iterable[Any], fixed: int) -> Iterator[Any]:
    """Of a loop, whose body has so many characters of its own."""
    for value in values:
        _spend(1 + fixed)
        yield value


def _concatenated(values: list[Any]) -> str:
    size, _ = _size(values)
    _refuse_beyond(size, "a text")
    _spend(size)
    return "".join(map(str, values))


class _Bounds(NodeTransformer):
    """Passes what no method of the environment sees through filters of ours."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), "_concatenated", node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._measure(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._measure(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._measure(node, node.items)

    def _measure(self, node: nodes.Expr, items: Iterable[nodes.Node]) -> nodes.Node:
        self.generic_visit(node)
        if all(isinstance(one, nodes.Const) for one in items):
            return node
        return _filtered(node, "_nested", node)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        fixed = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        values = cast("nodes.Expr", node.iter)
        node.iter = _filtered(values, "_turns", node, nodes.Const(fixed))
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "_show", node)
        return node


def _filtered(
    inner: nodes.Expr | None, name: str, at: nodes.Node, *more: nodes.Expr
) -> nodes.Filter:
    made = nodes.Filter(inner, name, list(more), [], None, None)
    for node in (made, *more, *([inner] if isinstance(inner, nodes.List) else [])):
        node.set_lineno(at.lineno)
        node.set_environment(at.environment)  # type: ignore[arg-type]
    return made


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates are rendered within `over`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_show, **options)
        del self.globals["lipsum"]
        self.filters = {name: _bound(name, kind) for name, kind in self.filters.items()}
        self.filters |= {"_concatenated": _concatenated, "_turns": _turns, "_show": _show}
        self.filters["_nested"] = _nested

    def bound_filter(self, name: str, kind: Callable[..., Any]) -> None:
        """Add a filter or replace one."""
        self.filters[name] = _bound(name, kind)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> Any:
        """jinja2's hook between parser and compiler."""
        return super()._generate(_Bounds().visit(source), *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`format` and `format_map` of a text; jinja2 asks for each attribute."""
        made = super().wrap_str_format(value)
        if made is None:
            return None

        @wraps(value)
        def measured(*args: Any, **kwargs: Any) -> str:
            _spend(_formatted(value.__self__, "{", *args, *kwargs.values()))
            return made(*args, **kwargs)

        return measured

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Measure what the operator makes, and then make it."""
        _spend(_result_of(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __called: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As above, for methods, macros and functions."""
        owner, name = getattr(__called, "__self__", None), getattr(__called, "__name__", "")
        if isinstance(owner, str | bytes | int):
            args = _bound_method(owner, name, args, kwargs)
        _spend(1)
        if _keeps_arguments(__called):
            _nested((*args, *kwargs.values()))
        return _nested(super().call(__context, __called, *args, **kwargs))


def _keeps_arguments(called: Any) -> bool:
    """As a tuple or an object: `dict`, `cycler`, and a macro that reads `varargs` or `kwargs`."""
    catches = ("catch_varargs", "catch_kwargs")
    return isinstance(called, type) or any(getattr(called, one, False) is True for one in catches)


def _result_of(operator: str, left: Any, right: Any) -> int:
    """Characters, or an error."""
    size = 1
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        size = (len(left) + len(right)) * (1 if isinstance(left, str) else _ELEMENT)
        _refuse_beyond(size, "a sum of texts or lists")
    elif operator == "*":
        for text, times in ((left, right), (right, left)):
            if hasattr(text, "__len__") and isinstance(times, int):
                size = len(text) * times * (1 if isinstance(text, str) else _ELEMENT)
                _refuse_beyond(size, "a product of a text or a list")
    elif operator == "%" and isinstance(left, str):
        size = _formatted(left, "%", right)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else (left * right).bit_length()
        if bits > _MOST_BITS:
            raise SecurityError("a power or a product of numbers is too large")
    return max(1, size)


def _formatted(form: str, mark: str, *values: Any) -> int:
    """At most so many characters: each mark may write each value, or a width, whole."""
    widths = [int(digits[:9]) for digits in _DIGITS.findall(form)]
    widths += [v for one in values for v in (one if isinstance(one, tuple) else (one,))
               if isinstance(v, int)]  # fmt: skip
    widest = max([64, _size(*values)[0], *widths])
    size = len(form) + form.count(mark) * widest
    _refuse_beyond(size, "a formatted text")
    return size


def _replaced(text: Any, old: Any, new: Any) -> int:
    size = len(text) + (text.count(old) if old else len(text) + 1) * len(new)
    _refuse_beyond(size, "a text with replacements")
    return int(size)


def _refuse_wide(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > _WIDEST for value in values):
        raise SecurityError(f"a number that is given to it is above {_WIDEST}")


def _bound_method(
    owner: str | bytes | int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments, or an error if the method could make too much of them."""
    if isinstance(owner, int):
        _refuse_wide((*args, *kwargs.values()))
        return args
    if name == "translate":
        raise SecurityError(f"{name} is not allowed")
    _refuse_wide((*args, *kwargs.values()))
    if name == "replace" and len(args) >= 2:
        _spend(_replaced(owner, *args[:2]))
    elif name == "expandtabs":
        tab: Any = "\t" if isinstance(owner, str) else b"\t"
        width = (*args, *kwargs.values(), 8)[0]
        _refuse_beyond(owner.count(tab) * int(width), "a text with tabs")
    elif name == "join" and args:
        return (_joinable(args[0], len(owner)), *args[1:])
    return args


def _joinable(values: Any, between: int) -> list[Any]:
    items = list(values)
    size = _size(items)[0] + len(items) * between
    _refuse_beyond(size, "a text of joined parts")
    _spend(size)
    return items


def _bound(name: str, kind: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is measured before and after."""
    first = 1 if hasattr(kind, "jinja_pass_arg") else 0

    @wraps(kind)
    def measured(*args: Any, **kwargs: Any) -> Any:
        value, *more = args[first:]
        given = (*more, *kwargs.values())
        _refuse_wide(given)
        if name in _BY_ELEMENT and isinstance(value, str) and len(value) > _WIDEST:
            raise SecurityError(f"{name} takes texts of at most {_WIDEST} characters")
        if name == "join":
            separator = kwargs.get("d", more[0] if more else "")
            value = _joinable(value, len(str(separator)))
            args = (*args[:first], value, *more)
        _spend(_filtered_size(name, value, given))
        return _nested(kind(*args, **kwargs))

    return kind if name in _AT_ONCE else measured


def _filtered_size(name: str, value: Any, given: tuple[Any, ...]) -> int:
    """Characters that the filter reads, or an error if it could make too much of them."""
    if name in _NO_TEXT:
        if name == "sum" and any(isinstance(one, list | tuple) for one in given):
            raise SecurityError("sum adds numbers only")
        return _shallow(value)
    size, depth = _size(value, *given)
    numbers = [abs(one) for one in given if isinstance(one, int)]
    lengths = [len(one) for one in given if isinstance(one, str)]
    widest = max([0, *numbers, *lengths])
    if name == "replace" and len(given) >= 2:
        size += _replaced(str(value), str(given[0]), str(given[1]))
    elif name == "format":
        size += _formatted(str(value), "%", *given)
    elif name == "indent":
        _refuse_beyond(size + str(value).count("\n") * max(4, widest), "an indented text")
    elif name == "wordwrap":
        _refuse_beyond(size * max(1, *lengths, 1), "a wrapped text")
    elif name == "tojson":  # a line for each element, as far in as it is nested
        _refuse_beyond(size + size // _ELEMENT * depth * widest, "an indented object")
    return size
