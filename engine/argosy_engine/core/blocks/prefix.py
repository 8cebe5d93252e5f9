"""Names for prefixes: a chained hash per full block, the key of the prefix cache."""

from array import array
from collections.abc import Sequence as Tokens
from hashlib import blake2b

from argosy_engine.core.request import Sequence

__all__ = ["hash_block", "hashes_of", "root"]


def root(salt: str, adapter: str = "") -> bytes:
    """What the first block of a text is chained over; empty without both.

    `adapter` is the place for the name of a LoRA adapter, which computes other KV of the same
    text. The engine serves none yet. BLAKE2's `person` keeps the two apart: no salt gives the root
    of an adapter.
    """
    if not adapter:
        return blake2b(salt.encode(), digest_size=16).digest() if salt else b""
    named = blake2b(adapter.encode(), digest_size=16, person=b"adapter").digest()
    return blake2b(salt.encode(), digest_size=16, key=named, person=b"adapter").digest()


def hash_block(parent: bytes, token_ids: Tokens[int]) -> bytes:
    """16 bytes that name a full block's text *and* everything before it (chained over `parent`)."""
    return blake2b(array("I", token_ids).tobytes(), digest_size=16, key=parent).digest()


def hashes_of(sequence: Sequence, full_blocks: int, block_size: int) -> list[bytes]:
    """Hashes of the first `full_blocks` blocks; each is computed once and kept."""
    hashes = sequence.hashes
    for index in range(len(hashes), full_blocks):
        parent = hashes[-1] if hashes else root(sequence.request.cache_salt)
        start = index * block_size
        hashes.append(hash_block(parent, sequence.tokens[start : start + block_size]))
    return hashes[:full_blocks]
