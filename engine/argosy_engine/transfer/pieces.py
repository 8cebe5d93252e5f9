"""A range of blocks that several connections fetch, each the next free piece."""

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class Piece:
    """Blocks of a prompt. One connection at a time has it, and moves `at`."""

    at: int
    """The first block that is not here."""

    end: int

    free: bool = True
    """No connection has it."""

    @property
    def count(self) -> int:
        """Blocks that are missing."""
        return self.end - self.at


class Pieces:
    """Of one range. Methods may be called from any thread."""

    def __init__(self, first: int, end: int, step: int) -> None:
        """Pieces of `step` blocks."""
        self._pieces = [Piece(at, min(at + step, end)) for at in range(first, end, step)]
        self._end = end
        self._lock = threading.Lock()
        self._closed = False

    @property
    def at(self) -> int:
        """The first block that is not here; blocks behind it may be."""
        return next((piece.at for piece in self._pieces if piece.count), self._end)

    def take(self) -> Piece | None:
        """The first one that is free; None: none is, or they are closed."""
        with self._lock:
            for piece in self._pieces:
                if piece.free and piece.count and not self._closed:
                    piece.free = False
                    return piece
        return None

    def give_back(self, piece: Piece) -> None:
        """Its connection does not touch its blocks any more; another one may fetch the rest."""
        with self._lock:
            piece.free = True

    def close(self) -> None:
        """None is taken any more."""
        with self._lock:
            self._closed = True
