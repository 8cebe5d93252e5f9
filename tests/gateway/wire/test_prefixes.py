"""Prefix hashes: equal as far as two prompts are, and no further."""

from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.wire.openai import CHUNK_BYTES, LONGEST_BYTES, prefixes_of, read_completion


@given(
    common=st.integers(0, 5 * CHUNK_BYTES),
    first=st.binary(max_size=600),
    second=st.binary(max_size=600),
)
def test_two_texts_share_the_hashes_of_the_chunks_that_they_share(common, first, second):
    start = b"x" * common
    texts = start + b"a" + first, start + b"b" + second
    one, other = map(prefixes_of, texts)
    shared = sum(a == b for a, b in zip(one, other, strict=False))
    assert shared == common // CHUNK_BYTES
    assert one[:shared] == other[:shared]
    assert [len(one), len(other)] == [len(text) // CHUNK_BYTES for text in texts]


def test_text_after_64_kib_is_not_looked_at():
    text = b"y" * LONGEST_BYTES
    assert len(prefixes_of(text + b"z" * 1000)) == 256
    assert prefixes_of(text + b"z" * 1000) == prefixes_of(text)


def test_a_request_has_hashes_only_if_they_were_asked_for():
    body = b'{"model":"m","messages":[{"content":"%b"},{"content":"%b"}]}' % (
        b"s" * 300,
        b"u" * 300,
    )
    path = "/v1/chat/completions"
    assert read_completion(path, body, served_names=("m",)).prefixes == ()
    asked = read_completion(path, body, served_names=("m",), prefixes=True)
    assert asked.prefixes == prefixes_of(b"s" * 300 + b" " + b"u" * 300)
    assert len(asked.prompt_start) == 601
