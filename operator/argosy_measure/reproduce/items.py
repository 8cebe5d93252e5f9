"""Which study shows which claim of the four texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from argosy_measure.reproduce import chunks

__all__ = ["ITEMS", "Item", "Study"]

Study = Callable[[int], dict[str, float]]
"""A seed → named figures."""


@dataclass(frozen=True, slots=True)
class Item:
    """One claim."""

    says: str
    """What the text says."""
    study: Study
    kind: str = "virtual time"
    """What it needs. So far no study needs a GPU or weights."""


ITEMS: Mapping[str, Item] = {
    "A21": Item(
        "chunks of half the length that saturates the GPU double TTFT of longer prompts",
        chunks.small_chunks,
    ),
    "A22": Item(
        "each chunk reads the KV of those before it: reads grow with the square of their number",
        chunks.read_again,
    ),
    "C6": Item(
        "small steps shorten gaps between tokens, large ones TTFT; 512 or 2,048 tokens",
        chunks.step_tokens,
    ),
}
"""The id of `docs/explanation/sources.md` → its claim."""
