"""What changes in the prefix cache: blocks that become findable, and blocks that stop being so.

The pool notes them only if someone asked (`BlockPool.changes`); `server/kv_events.py` publishes
them.
"""

from dataclasses import dataclass

__all__ = ["Change", "Removed", "Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A full block can be found by its text."""

    digest: bytes
    """Names the block's text and everything before it (`prefix.hash_block`)."""
    parent: bytes | None
    """Of the block before it; None for the first block of a text."""
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """A block was given to another text."""

    digest: bytes


Change = Stored | Removed
