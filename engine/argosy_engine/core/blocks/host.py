"""Bookkeeping of the host pool: where the KV of swapped sequences lies.

Slots are numbers from 0 to `total - 1`; their bytes belong to the runner.
"""

__all__ = ["HostPool"]


class HostPool:
    """Slots of one block each."""

    __slots__ = ("_free", "total")

    def __init__(self, slots: int) -> None:
        self.total = slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used_share(self) -> float:
        """0 to 1; 0 for a pool without slots."""
        return (self.total - self.free) / max(1, self.total)

    def allocate(self, count: int) -> list[int]:
        """`count` slots, or none of them if fewer are free."""
        if count > len(self._free):
            return []
        return [self._free.pop() for _ in range(count)]

    def release(self, slots: list[int]) -> None:
        self._free.extend(reversed(slots))
