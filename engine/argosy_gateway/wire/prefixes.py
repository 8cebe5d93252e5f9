"""Names for the prefixes of a prompt: a chained hash for each 256 bytes of its text.

Two prompts have the first n hashes in common exactly if they have the first n · 256 bytes in
common. `openai` computes them from a request's prompt; strategies with affinity look them up. They
are hashes of text, not of tokens: a gateway has no tokenizer.
"""

from hashlib import blake2b

__all__ = ["CHUNK_BYTES", "LONGEST_BYTES", "prefixes_of"]

CHUNK_BYTES = 256
"""About 64 tokens of English text: four blocks of an engine's prefix cache."""
LONGEST_BYTES = 64 << 10
"""Later text is not looked at: about 16,000 tokens say enough about which pod has the prefix."""


def prefixes_of(text: bytes) -> tuple[int, ...]:
    """The hashes of all whole chunks within `LONGEST_BYTES`; none for a text shorter than a chunk.

    The last, partial chunk is left out: it ends in the middle of what the next turn continues.
    """
    found: list[int] = []
    chain = blake2b(digest_size=8)
    for end in range(CHUNK_BYTES, min(len(text), LONGEST_BYTES) + 1, CHUNK_BYTES):
        chain.update(text[end - CHUNK_BYTES : end])
        found.append(int.from_bytes(chain.digest()))
    return tuple(found)
