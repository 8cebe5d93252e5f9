"""Load failures that end the process with a message for the operator (designs/0001-seams.md §3)."""

from typing import Literal

__all__ = ["LoadError", "LoadReason"]

LoadReason = Literal[
    "ModelNotFound", "WeightsInvalid", "UnsupportedArchitecture", "OutOfMemory", "BadArgument"
]


class LoadError(Exception):
    """The engine cannot start. `reason` becomes a condition, `message` says what to do."""

    def __init__(self, reason: LoadReason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason: LoadReason = reason
        self.message = message
