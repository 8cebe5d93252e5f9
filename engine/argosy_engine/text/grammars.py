"""Grammars of JSON schemas, regular expressions, choices and EBNF, by llguidance.

The HTTP side composes a grammar from a request's body. It is tried in a process of its own
(`grammar_process`), and then compiled here before its request enters the scheduler. The runner asks
which tokens may follow. What is known of a request's output is kept between its tokens. Where it is
not known, as for a stream that began at another engine, it is computed again from the tokens.

llguidance is imported at the first use: that takes 0.4 s, which most engines never need.
"""

import json
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from argosy_engine.errors import GrammarError

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


if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


T = TypeVar("T")

_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,20}", "lenient": True}
"""White space between the tokens of JSON has a bound: some models write spaces until `max_tokens`.
Keywords that llguidance does not know are left to the model."""
_STACK = 256 << 20
"""Bytes of the stack on which a grammar is compiled. llguidance recurses along chains of rules and
of `$ref`. The deepest ones that 64 KiB can spell need about 60 MiB, and a thread has 8 MiB: the
process ended with SIGSEGV. Memory is taken as it is used, and given back when the thread ends."""
_DEEPEST_TERMINAL = 200
"""Levels of terminals and parentheses within each other. The time for a mask grows with the square
and more: 0.1 s for 200 levels of `(A "x")*`, 3 s for 1,000. All streams wait for a mask."""
_MOST_GBNF_RULES = 500
"""llguidance reads them in Python, in a time that grows with the square: 0.1 s for 500."""
_TRIED_MASKS = 8
_KEPT_GRAMMARS = 64
"""Besides those of requests that have not ended."""
_KEPT_OUTPUTS = 512
_LONGEST_REASON = 300


def compose(kind: str, value: Any) -> str:
    """The grammar of a `json` schema, a `regex`, a list (`choice`), or a `grammar` in Lark's or
    GBNF's form. GrammarError if it has no such form."""
    from llguidance import grammar_from

    try:
        if kind == "json":
            if isinstance(value, dict):
                value = {**value, "x-guidance": _OPTIONS}
            return json.dumps({"grammars": [{"json_schema": value}]}, separators=(",", ":"))
        if kind == "choice":
            # Not ASCII: Lark's strings know fewer escapes than JSON's.
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
            texts = texts.replace("\x7f", "\\x7f")  # which JSON leaves as it is, and Lark refuses
            return str(grammar_from("lark", f"start: {texts}"))
        if kind == "regex":
            return str(grammar_from("regex", value))
        if value.count("::=") > _MOST_GBNF_RULES:
            raise GrammarError(f"has more than {_MOST_GBNF_RULES} GBNF rules: write it for Lark")
        grammar = str(grammar_from("grammar", value))
        if terminal_depth(grammar) > _DEEPEST_TERMINAL:  # in Lark's form, whatever it was
            raise GrammarError(f"its terminals are nested more than {_DEEPEST_TERMINAL} deep")
        return grammar
    except (ValueError, RecursionError) as error:
        raise GrammarError(_short(str(error))) from error


def after_thought(grammar: str) -> str:
    """The grammar of a text that goes on with reasoning, and matches `grammar` after its end."""
    try:
        (answer,) = json.loads(grammar)["grammars"]
    except ValueError:
        answer = {"lark_grammar": grammar}
    outer = {
        "lark_grammar": "start: thought gap @answer\n"
        'thought[suffix="</think>"]: /(?s:.*)/\n'
        "gap: /\\n{0,2}/"
    }
    return json.dumps({"grammars": [outer, {**answer, "name": "answer"}]}, separators=(",", ":"))


def defined_tokenizer(definition: str, n_vocab: int, eos: list[int]) -> "LLTokenizer":
    """Of a `tokenizer.json`; `n_vocab` is at least the number of its ids."""
    from llguidance import LLTokenizer

    return LLTokenizer(definition, n_vocab=n_vocab, eos_token=eos)


@dataclass(slots=True)
class _Output:
    matcher: "LLMatcher"
    seen: int
    """Tokens of the output that it has taken in."""


class TokenGrammars:
    """Implements `core.tokenizer.Grammars`."""

    def __init__(self, make: "Callable[[], LLTokenizer]") -> None:
        """`make` is called at the first use: it takes a second. It can be pickled, so that another
        process makes the same."""
        self.make = make
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        """As they are before the first token; the one used last stands last."""
        self._held: Counter[str] = Counter()
        self._outputs: OrderedDict[str, _Output] = OrderedDict()

    def refusal(self, grammar: str) -> str | None:
        matcher = _on_a_large_stack(partial(self._compile, grammar))
        # Some grammars are small and have masks that are not: the first few are tried.
        for _ in range(_TRIED_MASKS):
            if matcher.is_error() or matcher.is_stopped():
                break
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            matcher.consume_token((allowed & -allowed).bit_length() - 1)
        return _short(matcher.get_error()) if matcher.is_error() else None

    def knows(self, grammar: str) -> bool:
        with self._lock:
            return grammar in self._compiled

    def prepare(self, grammar: str) -> None:
        self._fresh(grammar)

    @contextmanager
    def held(self, grammar: str) -> Iterator[None]:
        with self._lock:
            self._held[grammar] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[grammar] -= 1
                if not self._held[grammar]:
                    del self._held[grammar]
                self._drop_beyond()

    def mask(self, request_id: str, grammar: str, output: Sequence[int]) -> bytes:
        known = self._outputs.get(request_id)
        if known is None or known.seen > len(output):
            known = _Output(self._fresh(grammar), 0)
            self._outputs[request_id] = known
            if len(self._outputs) > _KEPT_OUTPUTS:
                self._outputs.popitem(last=False)
        self._outputs.move_to_end(request_id)
        matcher = known.matcher
        for token in output[known.seen :]:
            matcher.consume_token(token)
        known.seen = len(output)
        found: bytes = matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(f"the answer cannot go on: {_short(matcher.get_error())}")
        return found

    def _fresh(self, grammar: str) -> "LLMatcher":
        if (known := self._copy(grammar)) is not None:
            return known
        # Without the other lock: a step that begins a known grammar does not wait for a new one.
        with self._compiling:
            if (known := self._copy(grammar)) is not None:
                return known
            made = _on_a_large_stack(partial(self._compile, grammar))
            with self._lock:
                self._compiled[grammar] = made
                self._drop_beyond()
                return made.deep_copy()

    def _drop_beyond(self) -> None:
        idle = [grammar for grammar in self._compiled if grammar not in self._held]
        for grammar in idle[: max(0, len(idle) - _KEPT_GRAMMARS)]:
            del self._compiled[grammar]

    def _copy(self, grammar: str) -> "LLMatcher | None":
        with self._lock:
            known = self._compiled.get(grammar)
            if known is None:
                return None
            self._compiled.move_to_end(grammar)
            return known.deep_copy()

    def _compile(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        if self._tokenizer is None:
            self._tokenizer = self.make()
        # A grammar that needs more is refused, or ends its request: all streams wait for a mask.
        limits = LLParserLimits(
            max_items_in_row=1000,
            step_max_items=10_000,
            step_lexer_fuel=100_000,
            max_lexer_states=20_000,
            max_grammar_size=50_000,
            verbose_errors=False,
        )
        return LLMatcher(self._tokenizer, grammar, limits=limits, log_level=0)


_starting = threading.Lock()
"""The size of new threads' stacks is one setting of the process."""


def _on_a_large_stack(work: Callable[[], T]) -> T:
    """`work()` in a thread of its own, or what it raised."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # a panic in Rust is no Exception
            done.set_exception(error)

    with _starting:
        before = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=run, name="grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()


def _short(reason: str) -> str:
    """Its first lines, without what llguidance adds for its own developers."""
    kept = reason.replace("<non-verbose/>", "").strip()
    return kept if len(kept) <= _LONGEST_REASON else kept[:_LONGEST_REASON] + " …"
