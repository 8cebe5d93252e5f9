"""Ids to text: what is streamed after a prompt is what the whole text has there."""

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("tokenizers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tokenizers import Tokenizer, decoders, models  # noqa: E402

from tests.engine_torch import tokenizers as made  # noqa: E402

KINDS = {"byte level": made.byte_level, "metaspace": made.metaspace}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("read")
    return {name: made.read(kind(), folder / name) for name, kind in KINDS.items()}


def streamed(tokenizer, prompt, output, **options):
    stream = tokenizer.new_detokenizer(prompt, **options)
    return "".join(stream.push(token) for token in output) + stream.flush()


def test_a_completion_keeps_the_space_that_its_first_token_begins_with(read):
    tokenizer = read["metaspace"]
    the, cat = tokenizer.encode("the"), tokenizer.encode("the cat")[1:]
    assert len(the) == len(cat) == 1
    assert streamed(tokenizer, the, cat) == " cat"
    assert streamed(tokenizer, the * 40, cat) == " cat"
    assert streamed(tokenizer, [], cat) == "cat"  # here a text begins


def test_t45_a_character_that_the_prompt_began_is_whole_in_the_output(read):
    for tokenizer in read.values():
        ids = tokenizer.encode("a🙂b")
        for at in range(2, len(ids) - 1):
            assert streamed(tokenizer, ids[:at], ids[at:]) in ("🙂b", "a🙂b"[2:])


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.sampled_from(["the", " cat", " ", "é", "🙂", "▁", "c"]), max_size=40),
    share=st.floats(0, 1),
)
def test_prompt_and_output_together_are_the_whole_text(read, name, text, share):
    tokenizer = read[name]
    ids = tokenizer.encode("".join(text))
    at = round(len(ids) * share)
    begun = streamed(tokenizer, [], ids[:at]).rstrip("\ufffd")
    assert begun + streamed(tokenizer, ids[:at], ids[at:]) == streamed(tokenizer, [], ids)


def test_a_decoder_that_changes_earlier_text_does_not_end_the_stream(tmp_path):
    """`ab` becomes `c` when `a` is out already: the library calls that an invalid prefix."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "d": 2}, unk_token="a"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")])
    assert streamed(made.read(tokenizer, tmp_path), [2], [0, 1, 2]) == "abd"
