"""Grammars of JSON schemas, regular expressions, choices and EBNF, by llguidance.

The HTTP side composes a grammar from a request's body and has it checked here. The runner asks
which tokens may follow. What is known of a request's output is kept between its tokens. Where it is
not known, as for a stream that began at another engine, it is computed again from the tokens.

llguidance is imported at the first use: that takes 0.4 s, which most engines never need.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from argosy_engine.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["TokenGrammars", "compose"]

_WHITE_SPACE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,20}"}
"""Between the tokens of JSON; without a bound some models write spaces until `max_tokens`."""
_TRIED_MASKS = 8
_KEPT_GRAMMARS = 64
_KEPT_OUTPUTS = 512
_LONGEST_REASON = 300


def compose(kind: str, value: Any) -> str:
    """The grammar of a `json` schema, a `regex`, a list (`choice`), or a `grammar` in Lark's or
    GBNF's form. GrammarError if it has no such form."""
    from llguidance import grammar_from

    try:
        if kind == "json":
            if isinstance(value, dict):
                value = {**value, "x-guidance": _WHITE_SPACE}
            return json.dumps({"grammars": [{"json_schema": value}]}, separators=(",", ":"))
        if kind == "choice":
            # Not ASCII: Lark's strings know fewer escapes than JSON's.
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
            return str(grammar_from("lark", f"start: {texts}"))
        return str(grammar_from("regex" if kind == "regex" else "grammar", value))
    except (ValueError, RecursionError) as error:
        raise GrammarError(_short(str(error))) from error


@dataclass(slots=True)
class _Output:
    matcher: "LLMatcher"
    seen: int
    """Tokens of the output that it has taken in."""


class TokenGrammars:
    """Implements `ports.grammars.Grammars`."""

    def __init__(self, make: "Callable[[], LLTokenizer]") -> None:
        """`make` is called at the first use: it takes a second."""
        self._make = make
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        """As they are before the first token; the one used last stands last."""
        self._outputs: OrderedDict[str, _Output] = OrderedDict()

    def refusal(self, grammar: str) -> str | None:
        matcher = self._fresh(grammar)
        # Some grammars are small and have masks that are not: the first few are tried.
        for _ in range(_TRIED_MASKS):
            if matcher.is_error() or matcher.is_stopped():
                break
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            matcher.consume_token((allowed & -allowed).bit_length() - 1)
        return _short(matcher.get_error()) if matcher.is_error() else None

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
        from llguidance import LLMatcher, LLParserLimits

        with self._lock:
            known = self._compiled.get(grammar)
            if known is None:
                if self._tokenizer is None:
                    self._tokenizer = self._make()
                # A grammar that needs more is refused, or ends its request: all streams wait
                # for a mask.
                limits = LLParserLimits(
                    max_items_in_row=1000,
                    step_max_items=10_000,
                    step_lexer_fuel=100_000,
                    max_lexer_states=20_000,
                    max_grammar_size=50_000,
                    verbose_errors=False,
                )
                known = LLMatcher(self._tokenizer, grammar, limits=limits, log_level=0)
                self._compiled[grammar] = known
                if len(self._compiled) > _KEPT_GRAMMARS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return known.deep_copy()


def _short(reason: str) -> str:
    """Its first lines, without what llguidance adds for its own developers."""
    kept = reason.replace("<non-verbose/>", "").strip()
    return kept if len(kept) <= _LONGEST_REASON else kept[:_LONGEST_REASON] + " …"
