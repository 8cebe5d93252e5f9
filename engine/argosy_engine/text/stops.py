"""Stop strings: cut the text before the first one, even when it arrives in pieces."""

from operator import itemgetter

__all__ = ["StopScanner"]


class StopScanner:
    """Holds back only what could still become a stop string."""

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
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
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            first, self.found = min(found, key=itemgetter(0))
            return text[:first], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
