"""Stop strings: cut the text at the first one, even when it arrives in pieces."""

from operator import itemgetter

__all__ = ["StopScanner"]


class StopScanner:
    """Holds back only what could still become a stop string."""

    __slots__ = ("_held", "_stops", "found", "include")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._held = ""
        self.include = include
        """The text ends with the stop string, not before it."""
        self.found: str | None = None
        """The stop string that ended the text."""

    @property
    def looks(self) -> bool:
        """There are stop strings."""
        return bool(self._stops)

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may go out, and whether a stop string was found after it."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            # The one that is whole first: pieces of any size give the same text.
            end, self.found = min(found, key=itemgetter(0))
            return text[: end if self.include else end - len(self.found)], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
