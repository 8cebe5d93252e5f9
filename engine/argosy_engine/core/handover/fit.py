"""Whether the KV of two engines fits together, as far as their layouts' texts do not say it."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

__all__ = ["prompt_digest", "refuse_tp"]


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """16 bytes by which two engines see that they mean the same prompt."""
    return blake2b(array("I", token_ids).tobytes(), digest_size=16).digest()


def refuse_tp(*, prefill: int, decode: int) -> str | None:
    """Why engines of these tensor-parallel sizes cannot exchange KV; None if they can.

    Each rank holds a share of the KV heads. Shares can be cut and joined when one size divides the
    other.
    """
    if max(prefill, decode) % min(prefill, decode) == 0:
        return None
    return (
        f"prefill splits its KV heads over {prefill} ranks and decode over {decode}: use sizes of "
        "which one divides the other"
    )
