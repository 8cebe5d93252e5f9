"""Masks of grammars change the rows that they are of, and are made from the tokens alone."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.runtime.torch.logits import Masks  # noqa: E402
from argosy_engine.text.byte_tokenizer import ByteTokenizer  # noqa: E402
from argosy_engine.text.grammars import compose  # noqa: E402

NEVER = float("-inf")


def flat_of(*rows):
    chunks = tuple(
        Chunk(
            request_id=name, tokens=list(tokens), block_table=to_table([1]),
            start=len(tokens) - 1, count=1, samples=True, decode=True, n_prompt=n_prompt,
            sampling=SamplingParams(max_tokens=9, grammar=grammar, sent=sent),
        )
        for name, tokens, n_prompt, sent, grammar in rows
    )  # fmt: skip
    return flatten(
        StepPlan(
            index=1, chunks=chunks, block_size=32, prefill_tokens=0, prefill_sequences=0,
            decode_sequences=len(chunks), decode_context_tokens=0, after_idle=True,
        )
    )  # fmt: skip


def test_each_row_is_held_to_its_own_grammar_from_where_its_output_begins():
    masks = Masks(ByteTokenizer(256).grammars(256, [3]))
    ab, bad = compose("regex", "ab+c"), compose("regex", "x")
    flat = flat_of(
        ("free", b"ab", 1, 0, ""),
        ("first", b"ab", 2, 0, ab),
        ("third", b"xab", 1, 0, ab),
        ("resumed", b"xab", 3, 2, ab),
        ("lost", b"xab", 1, 0, bad),
    )
    making = masks.begin(flat)
    assert making is not None
    made, failed = making.result()
    allowed = {
        row: [b for b in range(256) if mask[b // 8] >> b % 8 & 1] for row, mask in made.items()
    }
    assert allowed == {1: [ord("a")], 2: [ord("b"), ord("c")], 3: [ord("b"), ord("c")]}
    assert failed.keys() == {4}
    assert "cannot go on" in failed[4]
    assert masks.begin(flat_of(("free", b"ab", 1, 0, ""))) is None
    masks.close()


class Panicking:
    """Rust's panics reach Python as what is no Exception."""

    def mask(self, request_id, grammar, output):
        raise BaseException("index out of bounds")


def test_a_panic_fails_its_row_and_no_other():
    masks = Masks(Panicking())
    making = masks.begin(flat_of(("r", b"ab", 1, 0, "a grammar")))
    assert making is not None
    assert making.result() == ({}, {0: "the answer cannot go on: index out of bounds"})
    masks.close()
