"""How many failed requests may be sent again, over all requests of this process. Pure.

Where every pod fails, each request would otherwise be computed twice. The budget bounds that: a
fixed reserve, which covers the sudden end of a pod under load, and a share of the requests.
"""

__all__ = ["RetryBudget"]

_REQUESTS_PER_RETRY = 5
"""In the long run: retries add a fifth to the engines' work at most."""


class RetryBudget:
    """A bucket of retries: full at the start, and never fuller than its reserve."""

    def __init__(self, reserve: int) -> None:
        self._full = self._left = reserve * _REQUESTS_PER_RETRY

    def request(self) -> None:
        """A request was accepted."""
        self._left = min(self._left + 1, self._full)

    def take(self) -> bool:
        """Whether one more retry may be made; it is then counted."""
        if self._left < _REQUESTS_PER_RETRY:
            return False
        self._left -= _REQUESTS_PER_RETRY
        return True
