"""How many failed requests may be sent again, over all requests of this process. Pure.

If every pod fails, each request would be computed twice without a limit. The budget is a reserve,
which covers the sudden end of a pod under load, and a tenth of a retry per request. With a reserve
of 10, 1000 failing requests have 10 + 100 retries.
"""

__all__ = ["RetryBudget"]

_REQUESTS_PER_RETRY = 10
"""In the long run retries add at most a tenth to the engines' work."""


class RetryBudget:
    """A bucket of retries. It starts full and never has more than the reserve."""

    def __init__(self, reserve: int) -> None:
        """`reserve` is in retries; the bucket counts in requests, ten to a retry."""
        self._full = self._left = reserve * _REQUESTS_PER_RETRY

    def count_request(self) -> None:
        """A request was accepted."""
        self._left = min(self._left + 1, self._full)

    def take(self) -> bool:
        """Whether one more retry may be made; if so, it is taken from the bucket."""
        if self._left < _REQUESTS_PER_RETRY:
            return False
        self._left -= _REQUESTS_PER_RETRY
        return True
