"""Grammars that are chains of rules or of `$ref`, as long as 64 KiB hold.

llguidance recurses along a chain. On the stack of a thread it ended the process with SIGSEGV, so
each of these runs in a process of its own.
"""

import json
import subprocess
import sys
import threading
from itertools import islice, pairwise, product
from string import ascii_lowercase

import pytest

pytest.importorskip("llguidance")

from argosy_engine.text.byte_tokenizer import ByteTokenizer
from argosy_engine.text.grammars import TokenGrammars, compose
from tests.engine.server.spelling import EOS, Engine

COMPLETIONS = "/v1/completions"
LONGEST = 64 << 10
NAMES = ["".join(letters) for letters in islice(product(ascii_lowercase, repeat=3), 9000)]
NAMES = [name for name in NAMES if name not in ("any", "lex")]


def lark(body):
    return "grammar", lambda n: "\n".join(
        (f"start:{NAMES[0]}", *(f"{a}:{body % b}" for a, b in chain(n)), f'{NAMES[n]}:"a"')
    )


def terminals(body):
    kind, make = lark(body)
    return kind, lambda n: make(n).upper().replace("START", "start")


def gbnf(n):
    rules = (f"{a} ::= {b}" for a, b in chain(n))
    return "\n".join((f"root ::= {NAMES[0]}", *rules, f'{NAMES[n]} ::= "a"'))


def schema(link):
    def make(n):
        defs = {a: link({"$ref": f"#/$defs/{b}"}) for a, b in chain(n)}
        return {"$ref": f"#/$defs/{NAMES[0]}", "$defs": {**defs, NAMES[n]: {"const": 1}}}

    return "json", make


def chain(n):
    return pairwise(NAMES[: n + 1])


def nested(levels):
    def link(inner):
        for _ in range(levels):
            inner = {"items": inner}
        return inner

    return link


CHAINS = {
    "rules": lark("%s"),
    "rules with text": lark('"x" %s'),
    "rules in parentheses": lark("(" * 40 + "%s" + ")" * 40),
    "rules that may be left out": lark("%s?"),
    "terminals": terminals("%s"),
    "terminals that repeat": terminals('(%s "x")*'),
    "gbnf": ("grammar", gbnf),
    "$ref": schema(lambda ref: ref),
    "properties": schema(lambda ref: {"properties": {"a": ref}}),
    "patternProperties": schema(lambda ref: {"patternProperties": {"a": ref}}),
    "additionalProperties": schema(lambda ref: {"additionalProperties": ref}),
    "items": schema(lambda ref: {"items": ref}),
    "items in items": schema(nested(40)),
    "prefixItems": schema(lambda ref: {"prefixItems": [ref]}),
    "anyOf": schema(lambda ref: {"anyOf": [ref, {}]}),
    "allOf": schema(lambda ref: {"allOf": [ref]}),
    "mixed": schema(lambda ref: {"anyOf": [{"items": {"properties": {"a": ref}}}, ref]}),
}


def longest(name):
    """The kind, and the longest chain that is let through for its length."""
    kind, make = CHAINS[name]

    def size(n):
        value = make(n)
        return len(json.dumps(value, separators=(",", ":")) if kind == "json" else value) + 100

    low, high = 1, len(NAMES) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle) <= LONGEST else (low, middle - 1)
    return kind, make(low)


IN_A_PROCESS = """
import asyncio, json, sys, threading
from argosy_engine.errors import GrammarError
from argosy_engine.text.grammars import compose
from tests.engine.server.spelling import EOS, ByteTokenizer, Engine

kind, value = json.load(sys.stdin)
body = {"model": "m", "prompt": "a", "max_tokens": 30, "seed": 1}
answer = asyncio.run(
    Engine().post("/v1/completions", {**body, "structured_outputs": {kind: value}})
)
print(answer.status_code, answer.text)

def masks():  # of a grammar that this engine did not try, as a prefill engine's
    grammars = ByteTokenizer(256).grammars(256, [EOS])
    try:
        output = []
        for _ in range(20):
            mask = grammars.mask("r", compose(kind, value), output)
            output.append(next(b for b in range(256) if mask[b // 8] >> b % 8 & 1))
    except GrammarError:
        pass
    grammars._compiled.clear()
    grammars._outputs.clear()

threading.stack_size(1 << 20)
thread = threading.Thread(target=masks)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_as_long_as_a_grammar_may_be_is_answered_or_refused(name):
    asked = json.dumps(longest(name))
    assert len(asked) > 60_000
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS], input=asked, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout[:3] in ("200", "400"), ended.stdout[:500]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("terminals that repeat", "nested more than 200 deep"),
        ("gbnf", "more than 500 GBNF rules"),
    ],
)
async def test_what_would_take_minutes_is_refused(name, why):
    kind, value = longest(name)
    body = {"model": "m", "prompt": "a", "structured_outputs": {kind: value}}
    response = await Engine().post(COMPLETIONS, body)
    assert response.status_code == 400
    assert why in response.json()["error"]["message"]


def test_a_step_does_not_wait_for_a_grammar_that_is_being_compiled():
    class Slow(TokenGrammars):
        def _compile(self, grammar):
            if "slow" in grammar:
                begun.set()
                assert goes_on.wait(60)
            return super()._compile(grammar)

    begun, goes_on = threading.Event(), threading.Event()
    grammars = Slow(ByteTokenizer(256).grammars(256, [EOS]).make)
    known, slow = compose("regex", "a"), compose("regex", "slow")
    grammars.prepare(known)
    compiling = threading.Thread(target=grammars.prepare, args=(slow,))
    compiling.start()
    try:
        assert begun.wait(60)
        assert grammars.mask("r", known, []) == grammars.mask("s", known, [])
        assert not grammars.knows(slow)
    finally:
        goes_on.set()
        compiling.join()
    assert grammars.knows(slow)


def gbnf(rules: int) -> str:
    names = NAMES[: rules - 1]
    each = "\n".join(f'{name} ::= "{name}"' for name in names)
    return f"root ::= {' | '.join(names)}\n{each}"
