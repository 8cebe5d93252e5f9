"""What a streamed completion held, read line by line, and whether it is the whole answer.

An answer is whole when every event is JSON and none is an error, when its text came in as many
tokens as were asked for by its own `usage`, when it stopped because of its length, and when it
ended with `[DONE]`. Anything else is a failure, also where the status was 200.
"""

import json
from dataclasses import dataclass


@dataclass(slots=True)
class Stream:
    """One answer to a request with `stream`, `include_usage`, `ignore_eos` and `max_tokens`."""

    asked_tokens: int
    """`max_tokens` of the request."""
    text: str = ""
    first_s: float | None = None
    """When the first text came, on the reader's clock."""
    last_s: float | None = None
    """When the last text came."""
    pieces: int = 0
    """Events with text."""
    tokens: int | None = None
    """`completion_tokens` of the answer's `usage`; None before it came."""
    finish_reason: str | None = None
    done: bool = False
    """`[DONE]` was read."""
    fault: str = ""
    """The first event that an answer must not have."""

    def line(self, line: str, now_s: float) -> None:
        """Read one line of the body, which came at `now_s`."""
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.done = True
            return
        try:
            event = json.loads(line.removeprefix("data: "))
            self._event(event, now_s)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            self.fault = self.fault or f"not a completion event: {line[:200]}"

    def _event(self, event: dict[str, object], now_s: float) -> None:
        if "error" in event:
            self.fault = self.fault or f"error event: {json.dumps(event['error'])[:200]}"
            return
        choices, usage = event["choices"], event.get("usage")
        for choice in choices:  # type: ignore[attr-defined]
            if choice["text"]:
                self.text += choice["text"]
                self.first_s = now_s if self.first_s is None else self.first_s
                self.last_s = now_s
                self.pieces += 1
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if usage:
            self.tokens = usage["completion_tokens"]  # type: ignore[index]

    def problem(self) -> str:
        """Why the answer is not whole; empty if it is."""
        if self.fault:
            return self.fault
        if not self.done:
            return "the answer ended without [DONE]"
        if self.tokens is None:
            return "the answer has no usage"
        if self.tokens != self.asked_tokens:
            return f"{self.tokens} tokens instead of {self.asked_tokens}"
        if self.finish_reason != "length":
            return f"finish_reason is {self.finish_reason!r} instead of 'length'"
        return "" if self.text else "the answer has no text"

    def tpot_s(self) -> float | None:
        """Mean seconds between tokens; None where it cannot be seen.

        It cannot for an answer of one token, and not for a text that came in one piece: a gateway
        that holds an answer back until it is whole streams nothing.
        """
        if self.pieces < 2 or self.first_s is None or self.last_s is None or not self.tokens:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None
